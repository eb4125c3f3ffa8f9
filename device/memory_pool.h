// SPDX-License-Identifier: Apache-2.0
//
// MemoryPool: where the memory of a device comes from that is not a CPU, and memory of the host
// that such a device copies from and to.
#ifndef TESSERA_DEVICE_MEMORY_POOL_H_
#define TESSERA_DEVICE_MEMORY_POOL_H_

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace tessera {

// Thread-safe. Blocks are ordered by the device's stream: one that is given back may be handed out
// again while the stream has still work to do on it, for whatever uses it next comes later in the
// same stream.
class MemoryPool {
 public:
  virtual ~MemoryPool() = default;
  // Not initialised. Null for no bytes. ResourceExhausted names the need and what the pool holds.
  virtual StatusOr<std::byte*> allocate(int64_t size_bytes) = 0;
  // Takes back what allocate() gave for this size, once all that uses it was given to the stream.
  virtual void release(std::byte* memory, int64_t size_bytes) = 0;
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_MEMORY_POOL_H_
