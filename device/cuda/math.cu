// SPDX-License-Identifier: Apache-2.0
//
// The kernels of operations on the GPU: each runs the items of math_bodies.h, in a loop over the
// grid or, of a Map, a thread for each.
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

// A thread for each item, of which there are fewer than 2^31.
template <class Body>
__global__ void __launch_bounds__(kThreads) map_kernel(const __grid_constant__ Map map) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i < map.num_items) Body::item(map, i);
}

template <class Value>
int launch_value(const Value& value, void* stream) {
  const uint64_t blocks = (value.num_items + kThreads - 1) / kThreads;
  const auto on = static_cast<cudaStream_t>(stream);
  with_body(value, [&](auto body) {
    using Body = decltype(body);
    if constexpr (IsSame<Value, Map>::kValue) {
      map_kernel<Body><<<static_cast<unsigned>(blocks), kThreads, 0, on>>>(value);
    } else {
      const auto grid = static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
      math_kernel<Body, Value><<<grid, kThreads, 0, on>>>(value);
    }
  });
  return cudaGetLastError();
}

template <class Value>
void load_value(cudaError_t* error) {
  with_every_body<Value>([error](auto body) {
    cudaFuncAttributes attributes;
    if (*error != cudaSuccess) return;
    if constexpr (IsSame<Value, Map>::kValue) {
      *error = cudaFuncGetAttributes(&attributes, map_kernel<decltype(body)>);
    } else {
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
