// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/cpu/machine.h"

namespace tessera {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kLargestGrowth = uint64_t{1} << 30;

// Classes are 64, 80, 96, 112, 128, 160, ...: four to each doubling. Class c is
// (4 + c % 4) * 2^(c / 4) * 16 bytes, rounded up to the alignment.
constexpr uint64_t class_bytes(int size_class) {
  const uint64_t bytes = (uint64_t{4} + size_class % 4) << (size_class / 4 + 4);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int class_of(uint64_t size_bytes) {
  if (size_bytes <= kAlignment) return 0;
  const int log2 = std::bit_width(size_bytes) - 1;
  for (int size_class = 4 * (log2 - 6);; ++size_class) {
    if (class_bytes(size_class) >= size_bytes) return size_class;
  }
}

// Gives the mapping all its pages, so that no write meets a page fault; 0 or an errno.
int reserve_pages(int fd, std::byte* data, uint64_t size_bytes) {
  int error = 0;
#ifdef MADV_POPULATE_WRITE
  // Unlike fallocate() it knows the mapping's wish for huge pages. Linux 5.14.
  while ((error = madvise(data, size_bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno) == EINTR) {
  }
  if (error != EINVAL) return error;
#endif
  while ((error = posix_fallocate(fd, 0, static_cast<off_t>(size_bytes))) == EINTR) {
  }
  return error;
}

}  // namespace

StatusOr<SharedMapping> SharedMapping::create(const char* name, uint64_t size_bytes, Pages pages) {
  if (pages == Pages::kReserve) {
    // Reserving more does not fail: the kernel kills somebody instead.
    const uint64_t available = available_memory_bytes();
    if (size_bytes > available) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the system has ", available, " bytes of memory left, and ", size_bytes,
                       " are needed; use smaller tensors, or more hosts"));
    }
  }
  const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot make a shared memory file: ", std::strerror(errno)));
  }
  int error = 0;
  if (ftruncate(fd, static_cast<off_t>(size_bytes)) != 0) error = errno;
  if (error == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    error = errno;
  }
  const auto refused = [size_bytes](int reason) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system does not give ", size_bytes,
                     " bytes of shared memory: ", std::strerror(reason)));
  };
  if (error != 0) {
    close(fd);
    return refused(error);
  }
  TESSERA_ASSIGN_OR_RETURN(SharedMapping mapping, map(fd, size_bytes));
  if (pages == Pages::kReserve) error = reserve_pages(fd, mapping.data_, size_bytes);
  if (error != 0) return refused(error);
  return mapping;
}

StatusOr<SharedMapping> SharedMapping::map(int fd, uint64_t size_bytes) {
  void* data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    close(fd);
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", size_bytes, " bytes of shared memory: ", std::strerror(error)));
  }
  // Granted or not. A small file is not to fill a page of this size.
  constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
  if (size_bytes >= kHugePageBytes) (void)madvise(data, size_bytes, MADV_HUGEPAGE);
  return SharedMapping(fd, static_cast<std::byte*>(data), size_bytes);
}

StatusOr<SharedMapping> SharedMapping::map_received(int fd, uint64_t size_bytes) {
  struct stat file = {};
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  const bool is_right = fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && size_bytes > 0 &&
                        static_cast<uint64_t>(file.st_size) == size_bytes &&
                        (fcntl(fd, F_GET_SEALS) & kSeals) == kSeals;
  if (fd < 0 || !is_right) {
    if (fd >= 0) close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat("what was shared is no sealed file of ", size_bytes, " bytes"));
  }
  TESSERA_ASSIGN_OR_RETURN(SharedMapping mapping, map(fd, size_bytes));
  close(std::exchange(mapping.fd_, -1));
  return mapping;
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
  if (fd_ >= 0) close(fd_);
}

std::shared_ptr<ArenaPool> ArenaPool::create(uint64_t first_arena_bytes) {
  auto pool = std::make_shared<ArenaPool>(PrivateTag{}, first_arena_bytes);
  pool->self_ = pool;
  return pool;
}

Status ArenaPool::set_arena_callback(ArenaCallback callback) {
  std::lock_guard<std::mutex> lock(mutex_);
  callback_ = std::move(callback);
  if (!callback_) return absl::OkStatus();
  for (size_t i = 0; i < arenas_.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(
        callback_(static_cast<int>(i), arenas_[i].fd(), arenas_[i].size_bytes()));
  }
  return absl::OkStatus();
}

Status ArenaPool::add_arena(uint64_t at_least_bytes) {
  if (arenas_.size() == kMaxArenas) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "all ", kMaxArenas, " arenas of the client are in use; keep fewer or smaller tensors"));
  }
  constexpr uint64_t kPage = 4096;
  const uint64_t wanted = std::max(next_arena_bytes_, at_least_bytes);
  const uint64_t size_bytes = (wanted + kPage - 1) / kPage * kPage;
  TESSERA_ASSIGN_OR_RETURN(
      SharedMapping arena,
      SharedMapping::create("tessera-arena", size_bytes, SharedMapping::Pages::kReserve));
  const int index = static_cast<int>(arenas_.size());
  if (callback_) TESSERA_RETURN_IF_ERROR(callback_(index, arena.fd(), size_bytes));
  ranges_[index] = {arena.data(), size_bytes, arena.fd()};
  arenas_.push_back(std::move(arena));
  num_arenas_.store(index + 1, std::memory_order_release);
  reserved_bytes_.fetch_add(size_bytes, std::memory_order_relaxed);
  last_arena_used_ = 0;
  next_arena_bytes_ = std::min(kLargestGrowth, std::max(next_arena_bytes_, size_bytes / 2) * 2);
  return absl::OkStatus();
}

void ArenaPool::set_reclaim(std::function<void()> reclaim) {
  std::lock_guard<std::mutex> lock(reclaim_mutex_);
  reclaim_ = std::move(reclaim);
}

uint64_t ArenaPool::take_from_slot(int size_class) {
  static_assert(class_bytes(kClassesWithSlots - 1) == 64 << 10);
  if (size_class >= kClassesWithSlots) return 0;
  for (std::atomic<uint64_t>& slot : slots_[size_class].words) {
    // Looked at first: an exchange takes the line from the other cores, even of an empty slot.
    if (slot.load(std::memory_order_relaxed) == 0) continue;
    const uint64_t word = slot.exchange(0, std::memory_order_acquire);
    if (word != 0) return word;
  }
  return 0;
}

bool ArenaPool::put_into_slot(uint64_t word, int size_class) {
  if (size_class >= kClassesWithSlots) return false;
  for (std::atomic<uint64_t>& slot : slots_[size_class].words) {
    uint64_t empty = slot.load(std::memory_order_relaxed);
    if (empty == 0 && slot.compare_exchange_strong(empty, word, std::memory_order_release,
                                                   std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

uint64_t ArenaPool::take(int size_class) {
  const uint64_t in_slot = take_from_slot(size_class);
  if (in_slot != 0) return in_slot;
  if (free_blocks_.size() <= static_cast<size_t>(size_class)) free_blocks_.resize(size_class + 1);
  std::vector<uint64_t>& listed = free_blocks_[size_class];
  if (!listed.empty()) {
    const uint64_t word = listed.back();
    listed.pop_back();
    return word;
  }
  const uint64_t bytes = class_bytes(size_class);
  if (arenas_.empty() || arenas_.back().size_bytes() - last_arena_used_ < bytes) return 0;
  const uint64_t offset = std::exchange(last_arena_used_, last_arena_used_ + bytes);
  return word_of({static_cast<int32_t>(arenas_.size()) - 1, offset});
}

StatusOr<uint64_t> ArenaPool::take_or_grow(int size_class) {
  std::unique_lock<std::mutex> lock(mutex_);
  uint64_t word = take(size_class);
  if (word == 0) {
    lock.unlock();
    {
      std::lock_guard<std::mutex> calls(reclaim_mutex_);
      if (reclaim_) reclaim_();
    }
    lock.lock();
    word = take(size_class);
  }
  if (word == 0) {
    TESSERA_RETURN_IF_ERROR(add_arena(class_bytes(size_class)));
    word = take(size_class);
  }
  return word;
}

StatusOr<ArenaPool::Block> ArenaPool::allocate(uint64_t size_bytes) {
  constexpr uint64_t kLargestBlock = uint64_t{1} << 46;
  if (size_bytes > kLargestBlock) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a block of ", size_bytes, " bytes is beyond the address space"));
  }
  Block block;
  block.size_class_ = class_of(size_bytes);
  block.word_ = take_from_slot(block.size_class_);
  if (block.word_ == 0) {
    const StatusOr<uint64_t> found = take_or_grow(block.size_class_);
    if (!found.ok()) {
      return with_context(found.status(),
                          absl::StrCat("a block of ", size_bytes, " bytes, beside the ",
                                       reserved_bytes(), " bytes that the client holds"));
    }
    block.word_ = *found;
  }
  const ArenaAddress address = block.address();
  block.data_ = ranges_[address.arena].data + address.offset;
  block.pool_ = self_.lock();
  count_live(class_bytes(block.size_class_));
  return block;
}

// The highest of the sums that all threads get here is the peak, in whatever order they come to
// write it.
void ArenaPool::count_live(uint64_t bytes) {
  const uint64_t live = live_bytes_.fetch_add(bytes) + bytes;
  uint64_t peak = peak_live_bytes_.load();
  while (peak < live && !peak_live_bytes_.compare_exchange_weak(peak, live)) {
  }
}

void ArenaPool::restart_peak() {
  peak_live_bytes_.store(0);
  // Who has found the former peak high enough has added to live_bytes_ before, which is seen here:
  // these accesses have one order for all threads (seq_cst).
  count_live(0);
}

void ArenaPool::withhold(const void* pointer, uint64_t size_bytes) {
  const std::optional<ArenaAddress> address = locate(pointer, size_bytes);
  if (!address.has_value() || size_bytes == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  withheld_.push_back(*address);
  num_withheld_.store(withheld_.size(), std::memory_order_relaxed);
}

bool ArenaPool::end_withholding(ArenaAddress address, int size_class) {
  const auto is_inside = [&](ArenaAddress other) {
    return other.arena == address.arena && other.offset >= address.offset &&
           other.offset - address.offset < class_bytes(size_class);
  };
  const bool was_withheld = std::erase_if(withheld_, is_inside) > 0;
  num_withheld_.store(withheld_.size(), std::memory_order_relaxed);
  return was_withheld;
}

void ArenaPool::release(uint64_t word, int size_class) {
  if (fork_guard_.in_child()) return;
  // Before another thread can take the block and count it again.
  live_bytes_.fetch_sub(class_bytes(size_class), std::memory_order_relaxed);
  if (num_withheld_.load(std::memory_order_relaxed) == 0 && put_into_slot(word, size_class)) {
    return;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (end_withholding(address_of(word), size_class)) return;
  free_blocks_[size_class].push_back(word);
}

std::byte* ArenaPool::find(ArenaAddress address, uint64_t size_bytes) const {
  const int num_arenas = num_arenas_.load(std::memory_order_acquire);
  if (address.arena < 0 || address.arena >= num_arenas) return nullptr;
  const Range& range = ranges_[address.arena];
  if (address.offset > range.size_bytes || size_bytes > range.size_bytes - address.offset) {
    return nullptr;
  }
  return range.data + address.offset;
}

std::optional<ArenaPool::Shared> ArenaPool::shared(int arena) const {
  if (arena < 0 || arena >= num_arenas_.load(std::memory_order_acquire)) return std::nullopt;
  return Shared{ranges_[arena].fd, ranges_[arena].size_bytes};
}

std::optional<ArenaAddress> ArenaPool::locate(const void* pointer, uint64_t size_bytes) const {
  const auto* first = static_cast<const std::byte*>(pointer);
  const int num_arenas = num_arenas_.load(std::memory_order_acquire);
  for (int i = 0; i < num_arenas; ++i) {
    const Range& range = ranges_[i];
    if (first >= range.data && first + size_bytes <= range.data + range.size_bytes) {
      return ArenaAddress{i, static_cast<uint64_t>(first - range.data)};
    }
  }
  return std::nullopt;
}

}  // namespace tessera
