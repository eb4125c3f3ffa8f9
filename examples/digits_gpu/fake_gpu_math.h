// SPDX-License-Identifier: Apache-2.0
//
// fake_gpu_math: a GpuMath over the fake of the CUDA runtime, for tests on machines without a
// GPU: there nothing else runs math_on_gpu()'s pointers, transposes and leading dimensions.
//
//   auto cuda = FakeCuda::create();
//   auto gpu = fake_gpu_math(cuda);      for clients whose options have `cuda`
//
// Products and kernels happen on the streams of that fake, later and beside other streams;
// kernels are the bodies of digits_kernels.h, products loops over columns as BLAS defines them.
// Calls that a GPU would not take are added to the fake's misuses: memory that is not there or is
// another GPU's, a stream of another GPU than the current one, leading dimensions that are too
// small.
#ifndef TESSERA_EXAMPLES_DIGITS_GPU_FAKE_GPU_MATH_H_
#define TESSERA_EXAMPLES_DIGITS_GPU_FAKE_GPU_MATH_H_

#include <memory>

#include "device/cuda/fake/fake_cuda.h"  // NOTIDY(layers): what this is a part of
#include "examples/digits_gpu/gpu_math.h"

namespace tessera::examples {

std::shared_ptr<GpuMath> fake_gpu_math(std::shared_ptr<cuda::FakeCuda> cuda);

}  // namespace tessera::examples

#endif  // TESSERA_EXAMPLES_DIGITS_GPU_FAKE_GPU_MATH_H_
