// SPDX-License-Identifier: Apache-2.0
//
// Memory of NCCL's own.
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "collectives/nccl/fake/fake_nccl.h"
#include "collectives/nccl/fake/fake_nccl_state.h"

namespace tessera::nccl {

StatusOr<std::byte*> FakeNccl::mem_alloc(uint64_t size_bytes) {
  // Called without the lock, because the awaited work may need it.
  TESSERA_ASSIGN_OR_RETURN(std::byte* const memory, options_.uses_cumem
                                                        ? cuda_->map_memory(size_bytes)
                                                        : cuda_->allocate(size_bytes));
  std::lock_guard<std::mutex> lock(mutex_);
  ++calls_["mem_alloc"];
  allocations_[memory] = size_bytes;
  return memory;
}

Status FakeNccl::mem_free(std::byte* memory) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++calls_["mem_free"];
    const auto it = allocations_.find(memory);
    if (it == allocations_.end()) return misuse("mem_free: memory that is not of mem_alloc()");
    allocations_.erase(it);
  }
  // Waits for work in flight, which may need the lock.
  return options_.uses_cumem ? cuda_->unmap_memory(memory) : cuda_->free(memory);
}

}  // namespace tessera::nccl
