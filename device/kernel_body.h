// SPDX-License-Identifier: Apache-2.0
//
// TESSERA_KERNEL_BODY: of a function that kernels of GPUs and threads of the host call.
//
// nvcc reads this header: it includes nothing.
#ifndef TESSERA_DEVICE_KERNEL_BODY_H_
#define TESSERA_DEVICE_KERNEL_BODY_H_

#if defined(__CUDACC__)
#define TESSERA_KERNEL_BODY __host__ __device__ __forceinline__
#else
#define TESSERA_KERNEL_BODY inline
#endif

#endif  // TESSERA_DEVICE_KERNEL_BODY_H_
