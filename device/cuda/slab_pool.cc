// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/slab_pool.h"

#include <algorithm>
#include <bit>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/format.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kLargestGrowth = int64_t{1} << 30;

// The smallest of 4, 5, 6 or 7 times a power of two that is no less, and at least the alignment.
int64_t class_bytes(int64_t size_bytes) {
  const auto size = static_cast<uint64_t>(std::max(size_bytes, kAlignment));
  const uint64_t step = std::max(std::bit_floor(size) / 4, static_cast<uint64_t>(kAlignment));
  return static_cast<int64_t>((size + step - 1) / step * step);
}

}  // namespace

SlabPool::~SlabPool() {
  if (slabs_.empty() || !api_->set_device(gpu_).ok()) return;
  for (std::byte* const slab : slabs_) {
    // Where the GPU is lost there is nothing left to free.
    free_slab(slab).IgnoreError();
  }
}

Status SlabPool::free_slab(std::byte* slab) {
  if (source_.free != nullptr) return source_.free(slab);
  return kind_ == Kind::kGpu ? api_->free(slab) : api_->free_pinned(slab);
}

StatusOr<std::byte*> SlabPool::allocate_slab(int64_t size_bytes) {
  TESSERA_RETURN_IF_ERROR(api_->set_device(gpu_));
  const auto bytes = static_cast<uint64_t>(size_bytes);
  if (source_.allocate != nullptr) return source_.allocate(bytes);
  return kind_ == Kind::kGpu ? api_->allocate(bytes) : api_->allocate_pinned(bytes);
}

Status SlabPool::add_slab(int64_t at_least_bytes) {
  const int64_t unit = source_.granularity;
  at_least_bytes = (at_least_bytes + unit - 1) / unit * unit;
  int64_t size_bytes = std::max(at_least_bytes, next_slab_bytes_);
  StatusOr<std::byte*> slab = allocate_slab(size_bytes);
  if (absl::IsResourceExhausted(slab.status()) && size_bytes > at_least_bytes) {
    size_bytes = at_least_bytes;
    slab = allocate_slab(size_bytes);
  }
  if (absl::IsResourceExhausted(slab.status())) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a buffer needs ", format_bytes(at_least_bytes),
        kind_ == Kind::kGpu ? absl::StrCat(" of GPU ", gpu_) : std::string(" of pinned memory"),
        ", which has no more; the device holds ", format_bytes(reserved_bytes_), ", of which ",
        format_bytes(live_bytes_), " are in use (", slab.status().message(), ")"));
  }
  TESSERA_RETURN_IF_ERROR(slab.status());
  slabs_.push_back(*slab);
  reserved_bytes_ += size_bytes;
  free_begin_ = *slab;
  free_end_ = *slab + size_bytes;
  next_slab_bytes_ = std::min(2 * next_slab_bytes_, kLargestGrowth);
  return absl::OkStatus();
}

StatusOr<MemoryPool::Memory> SlabPool::take(int64_t size_bytes) {
  if (size_bytes == 0) return Memory();
  const int64_t rounded = class_bytes(size_bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  std::byte* memory = nullptr;
  std::vector<std::byte*>& free_blocks = free_blocks_[rounded];
  if (!free_blocks.empty()) {
    memory = free_blocks.back();
    free_blocks.pop_back();
  } else {
    if (free_end_ - free_begin_ < rounded) TESSERA_RETURN_IF_ERROR(add_slab(rounded));
    memory = free_begin_;
    free_begin_ += rounded;
  }
  live_bytes_ += rounded;
  peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes_);
  return Memory{.data = memory};
}

void SlabPool::give_back(const Memory& memory, int64_t size_bytes) {
  if (fork_guard_.in_child()) return;
  const int64_t rounded = class_bytes(size_bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  free_blocks_[rounded].push_back(memory.data);
  live_bytes_ -= rounded;
}

int64_t SlabPool::reserved_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reserved_bytes_;
}

int64_t SlabPool::live_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return live_bytes_;
}

int64_t SlabPool::peak_live_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return peak_live_bytes_;
}

}  // namespace tessera::cuda
