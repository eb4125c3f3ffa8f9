// SPDX-License-Identifier: Apache-2.0
//
// SlabPool: blocks out of large pieces of a GPU's memory, or of pinned memory.
//
//   slab 0   [ block | block | block | ...free... ]     2 MiB
//   slab 1   [ block                              ]     made when slab 0 is full; larger each time
//
// The runtime allocates slabs alone: cudaMalloc and cudaFree wait for the GPU. One pool per device,
// because blocks are ordered by its stream (memory_pool.h).
//
// Invariants:
//   1. a block is aligned to 256 bytes and overlaps no other live block;
//   2. slabs stay until the pool is destroyed, which its Buffers keep alive;
//   3. all slabs are of one source: CUDA, or the source that the pool was made with.
//
// Sizes are rounded up to classes, four to each doubling (at most 25 % more), and reused by class.
// Thread-safe. A call that needs a slab, and the destructor, make the pool's GPU the calling
// thread's current one.
#ifndef TESSERA_DEVICE_CUDA_SLAB_POOL_H_
#define TESSERA_DEVICE_CUDA_SLAB_POOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/fork_guard.h"
#include "base/status.h"
#include "device/cuda/api.h"
#include "device/memory_pool.h"

namespace tessera::cuda {

// An allocator of GPU memory instead of CUDA's. Thread-safe. allocate() takes memory of the calling
// thread's GPU, aligned as Api's, and returns ResourceExhausted where none is left. Threads of any
// GPU call free().
struct SlabSource {
  std::function<StatusOr<std::byte*>(uint64_t size_bytes)> allocate = nullptr;  // null: CUDA's
  std::function<Status(std::byte* slab)> free = nullptr;
  // The source itself rounds sizes up to multiples of this.
  int64_t granularity = 1;
};

class SlabPool : public MemoryPool {
 public:
  enum class Kind { kGpu, kPinned };
  SlabPool(std::shared_ptr<Api> api, int gpu, Kind kind, SlabSource source = {})
      : MemoryPool(UsedBy::kDevice),
        api_(std::move(api)),
        gpu_(gpu),
        kind_(kind),
        source_(std::move(source)) {}
  ~SlabPool() override;

  StatusOr<Memory> take(int64_t size_bytes) override;
  void give_back(const Memory& memory, int64_t size_bytes) override;

  // Bytes of the slabs, and of the blocks that are live, by class.
  int64_t reserved_bytes() const;
  int64_t live_bytes() const;
  // The most that live_bytes() has been since the pool was made.
  int64_t peak_live_bytes() const;

 private:
  // Requires the lock.
  Status add_slab(int64_t at_least_bytes);
  StatusOr<std::byte*> allocate_slab(int64_t size_bytes);
  Status free_slab(std::byte* slab);

  const std::shared_ptr<Api> api_;
  const int gpu_;
  const Kind kind_;
  const SlabSource source_;

  const ForkGuard fork_guard_;  // a child gives nothing back
  mutable std::mutex mutex_;    // guards the members below
  std::vector<std::byte*> slabs_;
  std::byte* free_begin_ = nullptr;  // of the last slab
  std::byte* free_end_ = nullptr;
  int64_t next_slab_bytes_ = int64_t{2} << 20;
  std::map<int64_t, std::vector<std::byte*>> free_blocks_;  // by class
  int64_t reserved_bytes_ = 0;
  int64_t live_bytes_ = 0;
  int64_t peak_live_bytes_ = 0;
};

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_SLAB_POOL_H_
