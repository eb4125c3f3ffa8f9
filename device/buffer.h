// SPDX-License-Identifier: Apache-2.0
//
// Buffer: memory of one device that is written once and knows when it is ready.
//
// A Buffer is made with the op that will fill it, written by that op on the device's stream, and
// immutable from then on; ready() carries the op's error to whoever reads the buffer. Shared as
// shared_ptr<const Buffer>; thread-safe once ready.
//
// A deferred buffer gets its memory when the stream comes to its op, so that the intermediate
// results of a queue of ops are not all there at once.
#ifndef TESSERA_DEVICE_BUFFER_H_
#define TESSERA_DEVICE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "device/completion.h"
#include "device/cpu/arena.h"

namespace tessera {

class Buffer {
 public:
  // ResourceExhausted if the pool cannot give the memory.
  static StatusOr<std::shared_ptr<Buffer>> allocate(ArenaPool& pool, int64_t size_bytes);
  // A buffer that gets its memory by take_memory().
  static std::shared_ptr<Buffer> deferred(std::shared_ptr<ArenaPool> pool, int64_t size_bytes);
  // A buffer without memory that failed before it was made.
  static std::shared_ptr<Buffer> failed(Status error);

  // Takes the memory of a deferred buffer; the op that fills it calls this, from one thread, before
  // it asks for mutable_data(). Nothing where the memory is there. ResourceExhausted as allocate().
  Status take_memory();

  // Makes memory that others share the buffer's; `owner` keeps it. The op that fills the buffer
  // calls this instead of take_memory(), before it sets ready().
  void share_memory(std::byte* data, std::shared_ptr<const void> owner);

  // Null as long as there is no memory.
  const std::byte* data() const { return data_; }
  // For the op that fills the buffer, before it sets ready().
  std::byte* mutable_data() { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

  // Set by the op that fills the buffer: OK when the contents are there.
  const Completion& ready() const { return ready_; }
  Completion& mutable_ready() { return ready_; }

 private:
  Buffer() = default;

  std::shared_ptr<ArenaPool> deferred_pool_;  // Until the memory is taken.
  ArenaPool::Block block_;
  std::shared_ptr<const void> shared_owner_;
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  Completion ready_;
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_BUFFER_H_
