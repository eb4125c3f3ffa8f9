// SPDX-License-Identifier: Apache-2.0
#include "examples/collatz.h"

#include <cuda_runtime.h>

static __global__ void collatz(const int64_t* n, int32_t* steps, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) steps[i] = collatz_steps(n[i]);
}

int launch_collatz(const int64_t* n, int32_t* steps, int64_t count, void* stream) {
  if (count == 0) return cudaSuccess;  // CUDA refuses a launch of no blocks
  const auto blocks = static_cast<unsigned>((count + 127) / 128);
  collatz<<<blocks, 128, 0, static_cast<cudaStream_t>(stream)>>>(n, steps, count);
  return cudaGetLastError();
}
