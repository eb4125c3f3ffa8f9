// SPDX-License-Identifier: Apache-2.0
//
// gpu_math_double: a GpuMath over the double of the CUDA runtime, for tests on machines without a
// GPU.
//
//   auto cuda = CudaDouble::create();
//   auto gpu = gpu_math_double(cuda);      for clients whose options have `cuda`
//
// Products and kernels happen on the streams of that double, later and beside other streams;
// kernels are the bodies of digits_kernels.h, products loops over columns as BLAS defines them.
// What a GPU would not do is kept with the double's misuses: memory that is not there or is
// another GPU's, a stream of another GPU than the current one, leading dimensions that are too
// small.
#ifndef TESSERA_EXAMPLES_GPU_MATH_DOUBLE_H_
#define TESSERA_EXAMPLES_GPU_MATH_DOUBLE_H_

#include <memory>

#include "device/cuda/double/cuda_double.h"  // NOTIDY(layers): what this is a part of
#include "examples/gpu_math.h"

namespace tessera::examples {

std::shared_ptr<GpuMath> gpu_math_double(std::shared_ptr<cuda::CudaDouble> cuda);

}  // namespace tessera::examples

#endif  // TESSERA_EXAMPLES_GPU_MATH_DOUBLE_H_
