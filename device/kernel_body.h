// SPDX-License-Identifier: Apache-2.0
//
// TESSERA_KERNEL_BODY: marks a function that both kernels of GPUs and threads of the host call.
//
// A source that is compiled for each instruction set defines it as `static inline` before it
// includes a header, so that the linker does not take the function of another set.
//
// nvcc reads this header: it includes nothing.
#ifndef TESSERA_DEVICE_KERNEL_BODY_H_
#define TESSERA_DEVICE_KERNEL_BODY_H_

#if defined(__CUDACC__)
#define TESSERA_KERNEL_BODY __host__ __device__ __forceinline__
#elif !defined(TESSERA_KERNEL_BODY)
#define TESSERA_KERNEL_BODY inline
#endif

#endif  // TESSERA_DEVICE_KERNEL_BODY_H_
