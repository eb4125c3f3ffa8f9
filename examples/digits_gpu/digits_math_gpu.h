// SPDX-License-Identifier: Apache-2.0
//
// math_on_gpu: the DigitsMath of GPUs, where cuBLASLt and kernels compute.
//
//   TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<GpuMath> gpu, open_gpu_math());
//   const DigitsMath math = math_on_gpu(std::move(gpu));
#ifndef TESSERA_EXAMPLES_DIGITS_GPU_DIGITS_MATH_GPU_H_
#define TESSERA_EXAMPLES_DIGITS_GPU_DIGITS_MATH_GPU_H_

#include <memory>

#include "examples/digits_gpu/digits_math.h"
#include "examples/digits_gpu/gpu_math.h"

namespace tessera::examples {

// Local functions on the streams of GPUs.
DigitsMath math_on_gpu(std::shared_ptr<GpuMath> gpu);

}  // namespace tessera::examples

#endif  // TESSERA_EXAMPLES_DIGITS_GPU_DIGITS_MATH_GPU_H_
