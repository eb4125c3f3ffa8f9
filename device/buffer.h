// SPDX-License-Identifier: Apache-2.0
//
// Buffer: memory of one device that is written once and knows when it is ready.
//
// A Buffer is made with the op that will fill it, written by that op on the device's stream, and
// immutable from then on; ready() carries the op's error to every reader. Shared as
// shared_ptr<const Buffer>; thread-safe once ready.
//
// A deferred buffer gets its memory when the stream reaches its op, so that the intermediate
// results of a queue of ops do not exist all at once.
//
// A view is a part of another buffer: the same memory and the same ready(). It has no op of its
// own. A view can be made before that buffer is ready. The memory is released when the buffer and
// all of its views are gone.
//
// Where the device itself fills the memory (MemoryPool::UsedBy::kDevice), it does so after the op's
// task has run: the task gives it work to do. Then issued() is set before ready(), and is enough
// for work that follows in the same stream.
#ifndef TESSERA_DEVICE_BUFFER_H_
#define TESSERA_DEVICE_BUFFER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/functional/function_ref.h"
#include "base/status.h"
#include "device/completion.h"
#include "device/memory_pool.h"

namespace tessera {

class Buffer {
 public:
  // ResourceExhausted if the pool cannot give the memory.
  static StatusOr<std::shared_ptr<Buffer>> allocate(std::shared_ptr<MemoryPool> pool,
                                                    int64_t size_bytes);
  // A buffer that gets its memory by take_memory().
  static std::shared_ptr<Buffer> deferred(std::shared_ptr<MemoryPool> pool, int64_t size_bytes);
  // A buffer without memory that failed before it was made.
  static std::shared_ptr<Buffer> failed(Status error);
  // A view of the part of `whole` that begins at `offset_bytes`; all of it must be in `whole`,
  // unless `whole` has failed. A view of a view becomes a view of the buffer behind it.
  static std::shared_ptr<const Buffer> view(std::shared_ptr<const Buffer> whole,
                                            int64_t offset_bytes, int64_t size_bytes);

  // Acquires the memory of a deferred buffer. The op that fills the buffer calls this, from one
  // thread, before it calls mutable_data(). Does nothing where the memory is there.
  // ResourceExhausted as allocate().
  Status take_memory();

  // An alternative to take_memory(): moves the memory of `old` to this buffer, as if `old` had been
  // dropped and its memory acquired. Returns false, and changes nothing, unless `old` is the only
  // handle of a buffer of this pool and size that is no view and shares no memory. `old` has no
  // contents afterwards.
  bool take_memory_of(const std::shared_ptr<const Buffer>& old);

  // Makes memory of another owner the buffer's memory; `owner` keeps it. The op that fills the
  // buffer calls this instead of take_memory(), before it sets ready().
  void share_memory(std::byte* data, std::shared_ptr<const void> owner);

  // Null as long as there is no memory.
  const std::byte* data() const {
    if (viewed_ == nullptr) return memory_.data;
    return viewed_->memory_.data == nullptr ? nullptr : viewed_->memory_.data + offset_bytes_;
  }
  // For the op that fills the buffer, before it sets ready().
  std::byte* mutable_data() { return memory_.data; }
  int64_t size_bytes() const { return size_bytes_; }

  // The buffer that an op fills: this one, or the buffer of which this is a view.
  const Buffer& filled() const { return viewed_ == nullptr ? *this : *viewed_; }

  // Set by the op that fills the buffer: OK when the contents are there.
  const Completion& ready() const {
    const Buffer& buffer = filled();
    return buffer.progress_ != nullptr ? buffer.progress_->ready : buffer.ready_;
  }
  Completion& mutable_ready() { return progress_ != nullptr ? progress_->ready : ready_; }
  // OK when later work in the device's stream finds the contents there. Equals ready() for a buffer
  // that is filled within the op's task.
  const Completion& issued() const {
    const Buffer& buffer = filled();
    return buffer.progress_ != nullptr ? buffer.progress_->issued : buffer.ready_;
  }
  Completion& mutable_issued() { return progress_ != nullptr ? progress_->issued : ready_; }
  // For a caller that enqueues the next work in the same stream: waits for issued(). Also returns
  // an error that has been reported since. For an unverified buffer it waits for ready(): so data
  // that leaves the device, as the parts of a collective do, is verified.
  Status wait_issued() const {
    TESSERA_RETURN_IF_ERROR(issued().wait());
    return is_unverified() ? ready().wait() : ready().status();
  }
  // Whether the device determines after issued() whether the contents can be computed: an index may
  // be out of range. Set before issued(). LocalDevice::use() does not wait for it.
  bool is_unverified() const {
    const Buffer& buffer = filled();
    return buffer.progress_ != nullptr &&
           buffer.progress_->is_unverified.load(std::memory_order_acquire);
  }
  void mark_unverified() { progress_->is_unverified.store(true, std::memory_order_release); }
  // For the callback that sets ready() when the device is done: it does not own the memory, which
  // later work of the stream may reuse. Null where ready() and issued() are the same.
  std::shared_ptr<Completion> share_ready() const {
    return progress_ != nullptr ? std::shared_ptr<Completion>(progress_, &progress_->ready)
                                : nullptr;
  }

  // The copy in host memory of a buffer that a device fills, while a shared_ptr to the copy exists;
  // otherwise calls `make`, whose result is the copy from then on.
  std::shared_ptr<const Buffer> host_copy(
      absl::FunctionRef<std::shared_ptr<const Buffer>()> make) const;

  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

 private:
  struct PrivateTag {
    explicit PrivateTag() = default;
  };

 public:
  explicit Buffer(PrivateTag) {}

 private:
  struct Progress {
    Completion issued;
    Completion ready;
    std::atomic<bool> is_unverified{false};
    std::mutex mutex;  // guards host_copy
    std::weak_ptr<const Buffer> host_copy;
  };

  void give_memory_back();

  std::shared_ptr<MemoryPool> pool_;  // of the memory, once there is any; null if others share it
  MemoryPool::Memory memory_;
  std::shared_ptr<const void> shared_owner_;
  // Set where the device fills the memory; in a view only for its host copy.
  std::shared_ptr<Progress> progress_;
  std::shared_ptr<const Buffer> viewed_;  // of a view; not a view itself
  int64_t offset_bytes_ = 0;              // in viewed_
  int64_t size_bytes_ = 0;
  Completion ready_;
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_BUFFER_H_
