// SPDX-License-Identifier: Apache-2.0
//
// The kernels of operations on the GPU: each runs the items of math_bodies.h in a loop over the
// grid.
#include <cuda_runtime.h>

#include "device/cuda/math_bodies.h"
#include "device/cuda/math_launch.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;
// As kernels.cu: enough to fill any GPU several times.
constexpr uint64_t kMaxBlocks = 132 * 32;

template <class Body, class Value>
__global__ void math_kernel(const __grid_constant__ Value value) {
  const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < value.num_items; i += step) {
    Body::item(value, static_cast<int64_t>(i));
  }
}

template <class Value>
int launch_value(const Value& value, void* stream) {
  const uint64_t blocks = (value.num_items + kThreads - 1) / kThreads;
  const auto grid = static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
  with_body(value, [&](auto body) {
    math_kernel<decltype(body), Value>
        <<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(value);
  });
  return cudaGetLastError();
}

template <class Value>
void load_value(cudaError_t* error) {
  with_every_body<Value>([error](auto body) {
    cudaFuncAttributes attributes;
    if (*error == cudaSuccess) {
      *error = cudaFuncGetAttributes(&attributes, math_kernel<decltype(body), Value>);
    }
  });
}

}  // namespace

int load_math_kernels() {
  cudaError_t error = cudaSuccess;
#define TESSERA_LOAD_(Value) load_value<Value>(&error);
  TESSERA_MATH_KERNELS_(TESSERA_LOAD_)
#undef TESSERA_LOAD_
  return error;
}

#define TESSERA_LAUNCH_(Value) \
  int launch(const Value& value, void* stream) { return launch_value(value, stream); }
TESSERA_MATH_KERNELS_(TESSERA_LAUNCH_)
#undef TESSERA_LAUNCH_

}  // namespace tessera::cuda
