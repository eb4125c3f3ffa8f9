// SPDX-License-Identifier: Apache-2.0
//
// MemoryPool: the source of the memory of a device, or of host memory that a device copies from and
// to.
//
//   StatusOr<MemoryPool::Memory> memory = pool.take(num_bytes);
//   pool.give_back(*memory, num_bytes);
//
// Buffer calls both (buffer.h).
#ifndef TESSERA_DEVICE_MEMORY_POOL_H_
#define TESSERA_DEVICE_MEMORY_POOL_H_

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace tessera {

// Thread-safe.
class MemoryPool {
 public:
  // The user of the memory: the stream's tasks themselves, or the device, in work that tasks have
  // given it. With kDevice the stream orders the blocks: a block that is given back may be handed
  // out again while the device still has work to do on it, because its next use comes later in the
  // same stream.
  enum class UsedBy : uint8_t { kTasks, kDevice };

  struct Memory {
    std::byte* data = nullptr;
    // for the pool: the place of the memory in it
    uint64_t place = 0;
    int size_class = 0;
  };

  virtual ~MemoryPool() = default;
  UsedBy used_by() const { return used_by_; }
  // At least `size_bytes` bytes, not initialised; may be null for none. ResourceExhausted names the
  // need and the memory that the pool holds.
  virtual StatusOr<Memory> take(int64_t size_bytes) = 0;
  // Returns memory of take() with this size to the pool, unless it is null. With kDevice this may
  // be called as soon as all work that uses the memory is in the stream.
  virtual void give_back(const Memory& memory, int64_t size_bytes) = 0;

 protected:
  explicit MemoryPool(UsedBy used_by) : used_by_(used_by) {}

 private:
  const UsedBy used_by_;
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_MEMORY_POOL_H_
