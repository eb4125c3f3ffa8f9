// SPDX-License-Identifier: Apache-2.0
//
// Starts the kernels of math_launch.cu on a stream of the current GPU, as kernel_launch.h.
#ifndef TESSERA_COMPUTE_CUDA_MATH_LAUNCH_H_
#define TESSERA_COMPUTE_CUDA_MATH_LAUNCH_H_

#include "compute/cuda/math.h"

namespace tessera::cuda {

// Loads all kernels on the current GPU.
int load_math_kernels();

#define TESSERA_LAUNCH_(Value) int launch(const Value& value, void* stream);
TESSERA_MATH_KERNELS_(TESSERA_LAUNCH_)
#undef TESSERA_LAUNCH_

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_MATH_LAUNCH_H_
