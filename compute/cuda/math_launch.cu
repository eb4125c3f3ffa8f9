// SPDX-License-Identifier: Apache-2.0
//
// The kernels of operations on the GPU: each runs the items of math_bodies.h, in a loop over the
// grid; of a Map, a thread for each; of a reduction, by lanes.
#include <cuda_runtime.h>

#include <type_traits>

#include "compute/cuda/math_bodies.h"
#include "compute/cuda/math_launch.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads == kReduceThreads);
// As kernel_launch.cu: enough to fill any GPU several times.
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

// A block computes kReduceThreads / lanes items. Neighbouring threads are the lanes of an item
// where packs are its terms, else the same lane of neighbouring items: a warp reads neighbours.
template <class Body>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_kernel(const __grid_constant__ ReduceDims reduce) {
  using Part = typename Body::Part;
  const int lanes = reduce.lanes;
  const int items = kReduceThreads / lanes;  // of a block
  const int thread = static_cast<int>(threadIdx.x);
  const bool columns = reduce.kept_is_fastest;
  const int lane = columns ? thread / items : thread % lanes;
  const int64_t item = int64_t{blockIdx.x} * items + (columns ? thread % items : thread / lanes);
  const bool is_item = static_cast<uint64_t>(item) < reduce.num_items;
  Part part = {};
  if (is_item) part = Body::part(reduce, item, lane);
  // Lanes of one warp are added by shuffles, others in shared memory.
  int distance = first_distance(lanes);
  if (!columns) {
    for (; distance > 0 && distance < 32; distance = next_distance(distance)) {
      const auto other = static_cast<typename Body::W>(
          __shfl_down_sync(0xffffffffu, part.elements[0], static_cast<unsigned>(distance)));
      part.elements[0] = Body::joined(part.elements[0], other);
    }
  }
  const int lane_threads = columns ? items : 1;  // from a lane to the next
  __shared__ Part parts[kReduceThreads];
  if (distance > 0 && distance < lanes) {
    parts[thread] = part;
    for (; distance < lanes; distance = next_distance(distance)) {
      __syncthreads();
      if (takes_total(lane, distance)) {
        Body::add_to(parts[thread], parts[thread + distance * lane_threads]);
      }
    }
    part = parts[thread];
  }
  if (is_item && lane == 0) Body::give(reduce, item, part);
}

template <class Body, class Value>
constexpr auto kernel_of() {
  if constexpr (std::is_same_v<Value, ReduceDims>) {
    return &reduce_kernel<Body>;
  } else if constexpr (std::is_same_v<Value, Map>) {
    return &map_kernel<Body>;
  } else {
    return &math_kernel<Body, Value>;
  }
}

template <class Value>
unsigned blocks_of(const Value& value) {
  const uint64_t blocks = (value.num_items + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}
unsigned blocks_of(const Map& map) {
  return static_cast<unsigned>((map.num_items + kThreads - 1) / kThreads);
}
unsigned blocks_of(const ReduceDims& reduce) {
  const auto items = static_cast<uint64_t>(kReduceThreads / reduce.lanes);
  return static_cast<unsigned>((reduce.num_items + items - 1) / items);
}

template <class Value>
int launch_value(const Value& value, void* stream) {
  const unsigned blocks = blocks_of(value);
  with_body(value, [&](auto body) {
    kernel_of<decltype(body), Value>()<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        value);
  });
  return cudaGetLastError();
}

template <class Value>
void load_value(cudaError_t* error) {
  with_every_body<Value>([error](auto body) {
    cudaFuncAttributes attributes;
    if (*error == cudaSuccess) {
      *error = cudaFuncGetAttributes(&attributes, kernel_of<decltype(body), Value>());
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
