// SPDX-License-Identifier: Apache-2.0
//
// Memory of NCCL's own, and what communicators have registered of it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "collectives/nccl/fake/fake_nccl.h"
#include "collectives/nccl/fake/fake_nccl_state.h"

namespace tessera::nccl {

StatusOr<std::byte*> FakeNccl::mem_alloc(uint64_t size_bytes) {
  // Not under the lock: what it may wait for needs that.
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
    for (const auto& [handle, comm] : comms_) {
      for (const auto& [registration, registered] : comm->registered) {
        if (registered.begin < memory + it->second &&
            memory < registered.begin + registered.num_bytes) {
          return misuse("mem_free: memory that is registered with a communicator");
        }
      }
    }
    allocations_.erase(it);
  }
  // Waits for what is in flight, which may need the lock.
  return options_.uses_cumem ? cuda_->unmap_memory(memory) : cuda_->free(memory);
}

StatusOr<RegisterHandle> FakeNccl::comm_register(CommHandle comm, std::byte* memory,
                                                 uint64_t size_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Comm> found,
                           enter_for_work("comm_register", comm));
  if (refusal_.has_value() && --refusal_->first <= 0) return refusal_->second;
  auto it = allocations_.upper_bound(memory);
  if (it == allocations_.begin() || memory + size_bytes > (--it)->first + it->second) {
    return misuse("comm_register: memory that is not of mem_alloc()");
  }
  const auto handle = reinterpret_cast<RegisterHandle>(next_handle_++);
  found->registered[handle] = {memory, size_bytes};
  return handle;
}

Status FakeNccl::comm_deregister(CommHandle comm, RegisterHandle handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Comm> found, enter("comm_deregister", comm));
  const auto it = found->registered.find(handle);
  if (it == found->registered.end()) {
    return misuse("comm_deregister: a handle that is not the communicator's, or no longer");
  }
  if (found->queued > 0) return misuse("comm_deregister: work of the communicator is in flight");
  found->registered.erase(it);
  return absl::OkStatus();
}

bool FakeNccl::is_registered(const Comm& comm, const Operation& operation) const {
  if (comm.registered.empty() || operation.is_never_registered) return false;
  std::vector<Bytes> memory = operation.memory();
  memory.insert(memory.end(), operation.named.begin(), operation.named.end());
  return std::all_of(memory.begin(), memory.end(), [&](const Bytes& bytes) {
    return std::any_of(comm.registered.begin(), comm.registered.end(), [&](const auto& entry) {
      const Comm::Registration& piece = entry.second;
      return piece.begin <= bytes.first &&
             bytes.first + bytes.second <= piece.begin + piece.num_bytes;
    });
  });
}

}  // namespace tessera::nccl
