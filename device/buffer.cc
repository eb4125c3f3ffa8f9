// SPDX-License-Identifier: Apache-2.0
#include "device/buffer.h"

#include <utility>

#include "base/check.h"

namespace tessera {

std::shared_ptr<Buffer> Buffer::deferred(std::shared_ptr<MemoryPool> pool, int64_t size_bytes) {
  auto buffer = std::make_shared<Buffer>(PrivateTag{});
  if (pool->used_by() == MemoryPool::UsedBy::kDevice) {
    buffer->progress_ = std::make_shared<Progress>();
  }
  buffer->pool_ = std::move(pool);
  buffer->size_bytes_ = size_bytes;
  return buffer;
}

StatusOr<std::shared_ptr<Buffer>> Buffer::allocate(std::shared_ptr<MemoryPool> pool,
                                                   int64_t size_bytes) {
  std::shared_ptr<Buffer> buffer = deferred(std::move(pool), size_bytes);
  TESSERA_RETURN_IF_ERROR(buffer->take_memory());
  return buffer;
}

Status Buffer::take_memory() {
  if (pool_ == nullptr || memory_.data != nullptr) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(memory_, pool_->take(size_bytes_));
  return absl::OkStatus();
}

bool Buffer::take_memory_of(const std::shared_ptr<const Buffer>& old) {
  if (old.use_count() != 1 || old->viewed_ != nullptr || old->memory_.data == nullptr ||
      old->pool_ != pool_ || old->size_bytes_ != size_bytes_ || memory_.data != nullptr) {
    return false;
  }
  // Other threads have dropped their handles, so their reads are over. Dropping a handle here
  // acquires the writes that they released; reading the count does not.
  std::shared_ptr<const Buffer>(old).reset();
  memory_ = std::exchange(const_cast<Buffer&>(*old).memory_, {});
  return true;
}

void Buffer::give_memory_back() {
  if (pool_ != nullptr && memory_.data != nullptr) pool_->give_back(memory_, size_bytes_);
  pool_ = nullptr;
}

void Buffer::share_memory(std::byte* data, std::shared_ptr<const void> owner) {
  give_memory_back();
  shared_owner_ = std::move(owner);
  memory_ = {.data = data};
}

std::shared_ptr<const Buffer> Buffer::host_copy(
    absl::FunctionRef<std::shared_ptr<const Buffer>()> make) const {
  if (progress_ == nullptr) return make();  // it failed, and has no memory
  std::lock_guard<std::mutex> lock(progress_->mutex);
  std::shared_ptr<const Buffer> copy = progress_->host_copy.lock();
  if (copy == nullptr) progress_->host_copy = copy = make();
  return copy;
}

std::shared_ptr<const Buffer> Buffer::view(std::shared_ptr<const Buffer> whole,
                                           int64_t offset_bytes, int64_t size_bytes) {
  const bool has_failed = whole->ready().done() && !whole->ready().status().ok();
  TESSERA_CHECK(has_failed || (offset_bytes >= 0 && offset_bytes <= whole->size_bytes() &&
                               size_bytes <= whole->size_bytes() - offset_bytes),
                "a view is a part of its buffer");
  auto buffer = std::make_shared<Buffer>(PrivateTag{});
  buffer->size_bytes_ = size_bytes;
  buffer->offset_bytes_ = whole->offset_bytes_ + offset_bytes;
  if (whole->progress_ != nullptr) buffer->progress_ = std::make_shared<Progress>();
  buffer->viewed_ = whole->viewed_ != nullptr ? whole->viewed_ : std::move(whole);
  return buffer;
}

Buffer::~Buffer() { give_memory_back(); }

std::shared_ptr<Buffer> Buffer::failed(Status error) {
  auto buffer = std::make_shared<Buffer>(PrivateTag{});
  buffer->ready_.set(std::move(error));
  return buffer;
}

}  // namespace tessera
