// SPDX-License-Identifier: Apache-2.0
//
// MemoryPool: where the memory of a device comes from, or memory of the host that a device copies
// from and to.
//
//   StatusOr<MemoryPool::Memory> memory = pool.take(num_bytes);
//   pool.give_back(*memory, num_bytes);
//
// Buffer does both (buffer.h).
#ifndef TESSERA_DEVICE_MEMORY_POOL_H_
#define TESSERA_DEVICE_MEMORY_POOL_H_

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace tessera {

// Thread-safe.
class MemoryPool {
 public:
  // What uses the memory: the stream's tasks themselves, or the device, in work that tasks have
  // given it. With kDevice the stream orders the blocks: a block that is given back may be handed
  // out again while the device still has work to do on it, because its next use comes later in the
  // same stream.
  enum class UsedBy : uint8_t { kTasks, kDevice };

  struct Memory {
    std::byte* data = nullptr;
    // The pool's own: where the memory is in it.
    uint64_t place = 0;
    int size_class = 0;
  };

  virtual ~MemoryPool() = default;
  UsedBy used_by() const { return used_by_; }
  // At least so many bytes, not initialised; may be null for none. ResourceExhausted names the need
  // and what the pool holds.
  virtual StatusOr<Memory> take(int64_t size_bytes) = 0;
  // Takes back what take() gave for this size, unless it is null. With kDevice once all that uses
  // it was given to the stream.
  virtual void give_back(const Memory& memory, int64_t size_bytes) = 0;

 protected:
  explicit MemoryPool(UsedBy used_by) : used_by_(used_by) {}

 private:
  const UsedBy used_by_;
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_MEMORY_POOL_H_
