// SPDX-License-Identifier: Apache-2.0
//
// The function of 13_custom_kernel, compiled for CPUs and for GPUs, and its kernel.
#ifndef TESSERA_EXAMPLES_COLLATZ_H_
#define TESSERA_EXAMPLES_COLLATZ_H_

#include <cstdint>

#ifdef __CUDACC__
#define TESSERA_EXAMPLES_BODY __host__ __device__ inline
#else
#define TESSERA_EXAMPLES_BODY inline
#endif

// Steps from n to 1, for n of at least 1: an even n becomes n / 2, an odd one 3 n + 1.
TESSERA_EXAMPLES_BODY int32_t collatz_steps(int64_t n) {
  int32_t steps = 0;
  for (; n > 1; ++steps) n = n % 2 == 0 ? n / 2 : 3 * n + 1;
  return steps;
}

// Gives a stream of the current GPU the kernel. Returns a cudaError_t as a number.
int launch_collatz(const int64_t* n, int32_t* steps, int64_t count, void* stream);

#endif  // TESSERA_EXAMPLES_COLLATZ_H_
