// SPDX-License-Identifier: Apache-2.0
//
// The kernels of 03_digits on the GPU: each runs the items of digits_kernels.h in a loop over the
// grid.
#include <cuda_runtime.h>

#include "examples/digits_gpu/digits_kernels.h"

namespace tessera::examples {
namespace {

constexpr int kThreads = 128;
// Blocks of one launch; threads of larger work take several items.
constexpr int64_t kMaxBlocks = 4096;

template <class Kernel>
__global__ void run_items(const Kernel kernel) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < kernel.num_items(); i += step) kernel.run(i);
}

}  // namespace

template <class Kernel>
int launch_digits_kernel(const Kernel& kernel, void* stream) {
  const int64_t blocks = (kernel.num_items() + kThreads - 1) / kThreads;
  const auto grid = static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
  run_items<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(kernel);
  return cudaGetLastError();
}

template int launch_digits_kernel(const AddBiasRelu&, void*);
template int launch_digits_kernel(const AddBiasSoftmax&, void*);
template int launch_digits_kernel(const CrossEntropyGradient&, void*);
template int launch_digits_kernel(const ReluGradient&, void*);
template int launch_digits_kernel(const SumOfRows&, void*);
template int launch_digits_kernel(const Combine&, void*);
template int launch_digits_kernel(const CountAnswers&, void*);

}  // namespace tessera::examples
