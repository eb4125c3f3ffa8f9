// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/machine.h"
#include "base/system_call.h"

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

// Makes the pages of a part of a file, so that no write meets a page fault; 0 or an errno.
int reserve_pages(int fd, uint64_t offset, std::byte* data, uint64_t size_bytes) {
  int error = 0;
#ifdef MADV_POPULATE_WRITE
  // Unlike fallocate() it knows the mapping's wish for huge pages. Linux 5.14.
  while ((error = madvise(data, size_bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno) == EINTR) {
  }
  if (error != EINVAL) return error;
#endif
  while ((error = posix_fallocate(fd, static_cast<off_t>(offset),
                                  static_cast<off_t>(size_bytes))) == EINTR) {
  }
  return error;
}

Status not_given(uint64_t size_bytes, int error) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "the system does not give ", size_bytes, " bytes of shared memory: ", std::strerror(error)));
}

// Blocks of this size and more are page-aligned, and their pages can go back.
constexpr uint64_t kLarge = (uint64_t{64} << 10) + 1;
bool is_large(int size_class) { return class_bytes(size_class) >= kLarge; }

constexpr uint64_t kPage = 4096;
uint64_t align_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }
// Small blocks get their pages in steps of so many bytes: a huge page.
constexpr uint64_t kStep = uint64_t{2} << 20;

// Reserving more does not fail: the kernel kills a process instead.
Status check_available(uint64_t size_bytes) {
  const uint64_t available = available_memory_bytes();
  if (size_bytes <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the system has ", available, " bytes of memory left, and ", size_bytes,
                   " are needed; use smaller tensors, or more hosts"));
}

}  // namespace

StatusOr<SharedMapping> SharedMapping::create(const char* name, uint64_t size_bytes) {
  const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    const int error = errno;
    return failed_call(kMemfdCreate, error,
                       absl::ResourceExhaustedError(absl::StrCat(
                           "cannot make a shared memory file: ", std::strerror(error))));
  }
  int error = 0;
  if (ftruncate(fd, static_cast<off_t>(size_bytes)) != 0) error = errno;
  if (error == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    error = errno;
  }
  if (error != 0) {
    close(fd);
    return not_given(size_bytes, error);
  }
  return map(fd, size_bytes);
}

Status SharedMapping::populate(uint64_t offset, uint64_t size_bytes) {
  const int error = reserve_pages(fd_, offset, data_ + offset, size_bytes);
  return error == 0 ? absl::OkStatus() : not_given(size_bytes, error);
}

bool SharedMapping::give_back(uint64_t offset, uint64_t size_bytes) {
  return fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                   static_cast<off_t>(size_bytes)) == 0;
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
        absl::StrCat("what was shared is not a sealed file of ", size_bytes, " bytes"));
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
  std::lock_guard<std::mutex> lock(growth_mutex_);
  callback_ = std::move(callback);
  if (!callback_) return absl::OkStatus();
  for (size_t i = 0; i < arenas_.size(); ++i) {
    const SharedMapping& mapping = arenas_[i].mapping;
    TESSERA_RETURN_IF_ERROR(callback_(static_cast<int>(i), mapping.fd(), mapping.size_bytes()));
  }
  return absl::OkStatus();
}

Status ArenaPool::add_arena(uint64_t at_least_bytes) {
  if (arenas_.size() == kMaxArenas) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "all ", kMaxArenas, " arenas of the client are in use; keep fewer or smaller tensors"));
  }
  const uint64_t size_bytes = align_up(std::max(next_arena_bytes_, at_least_bytes), kPage);
  TESSERA_ASSIGN_OR_RETURN(SharedMapping arena, SharedMapping::create("tessera-arena", size_bytes));
  const int index = static_cast<int>(arenas_.size());
  if (callback_) TESSERA_RETURN_IF_ERROR(callback_(index, arena.fd(), size_bytes));
  ranges_[index] = {arena.data(), size_bytes, arena.fd()};
  arenas_.push_back({std::move(arena)});
  num_arenas_.store(index + 1, std::memory_order_release);
  next_arena_bytes_ = std::min(kLargestGrowth, std::max(next_arena_bytes_, size_bytes / 2) * 2);
  return absl::OkStatus();
}

void ArenaPool::set_reclaim(std::function<int()> reclaim) {
  std::lock_guard<std::mutex> lock(reclaim_mutex_);
  reclaim_ = std::move(reclaim);
}

ArenaPool::Found ArenaPool::take_free(int size_class, int largest_class) {
  std::lock_guard<std::mutex> lock(mutex_);
  const int end = std::min(largest_class + 1, static_cast<int>(free_blocks_.size()));
  for (int c = size_class; c < end; ++c) {
    std::vector<uint64_t>& listed = free_blocks_[c];
    if (listed.empty()) continue;
    const uint64_t word = listed.back();
    listed.pop_back();
    return {word, c};
  }
  return {};
}

StatusOr<ArenaPool::Found> ArenaPool::take_or_grow(int size_class, int* num_read) {
  // Four classes to a doubling.
  const int largest_class = is_large(size_class) ? size_class + 4 : size_class;
  Found found = take_free(size_class, largest_class);
  if (found.word != 0) return found;
  {
    std::lock_guard<std::mutex> calls(reclaim_mutex_);
    if (reclaim_) *num_read = reclaim_();
  }
  std::lock_guard<std::mutex> growing(growth_mutex_);
  found = take_free(size_class, largest_class);
  if (found.word != 0) return found;
  StatusOr<Found> grown = grow(size_class);
  if (!absl::IsResourceExhausted(grown.status())) return grown;
  // A block that is too large to be worth it is better than none.
  constexpr int kLastClass = INT_MAX - 1;
  found = take_free(size_class, kLastClass);
  if (found.word != 0) return found;
  return grown;
}

StatusOr<ArenaPool::Found> ArenaPool::grow(int size_class) {
  const uint64_t bytes = class_bytes(size_class);
  make_cold(excess_with(bytes));
  StatusOr<uint64_t> word = take_without_pages(size_class);
  if (absl::IsResourceExhausted(word.status())) {
    make_cold(UINT64_MAX);
    word = take_without_pages(size_class);
  }
  if (word.ok() && *word == 0) {
    // Before an arena is made for it, whose address space stays.
    if (!check_available(bytes).ok()) make_cold(UINT64_MAX);
    TESSERA_RETURN_IF_ERROR(check_available(bytes));
    TESSERA_RETURN_IF_ERROR(add_arena(bytes));
    word = take_without_pages(size_class);
  }
  TESSERA_RETURN_IF_ERROR(word);
  return Found{*word, size_class};
}

StatusOr<uint64_t> ArenaPool::take_without_pages(int size_class) {
  const uint64_t bytes = class_bytes(size_class);
  if (static_cast<size_t>(size_class) < cold_blocks_.size() && !cold_blocks_[size_class].empty()) {
    const uint64_t word = cold_blocks_[size_class].back();
    const ArenaAddress address = address_of(word);
    TESSERA_RETURN_IF_ERROR(populate(address.arena, address.offset, address.offset + bytes));
    cold_blocks_[size_class].pop_back();
    return word;
  }
  const uint64_t alignment = is_large(size_class) ? kPage : kAlignment;
  // The arena with the least room for it keeps the others whole.
  int best = -1;
  uint64_t least_left = UINT64_MAX;
  for (size_t i = 0; i < arenas_.size(); ++i) {
    const uint64_t begin = align_up(arenas_[i].used, alignment);
    const uint64_t size = arenas_[i].mapping.size_bytes();
    if (begin > size || size - begin < bytes || size - begin >= least_left) continue;
    best = static_cast<int>(i);
    least_left = size - begin;
  }
  if (best < 0) return uint64_t{0};
  Arena& arena = arenas_[best];
  const uint64_t begin = align_up(arena.used, alignment);
  if (begin + bytes > arena.populated) {
    const uint64_t step = is_large(size_class) ? 0 : kStep;
    const uint64_t end = std::min(arena.mapping.size_bytes(),
                                  align_up(std::max(begin + bytes, arena.populated + step), kPage));
    TESSERA_RETURN_IF_ERROR(populate(best, arena.populated, end));
    arena.populated = end;
  }
  arena.used = begin + bytes;
  return word_of({best, begin});
}

Status ArenaPool::populate(int arena, uint64_t begin, uint64_t end) {
  TESSERA_RETURN_IF_ERROR(check_available(end - begin));
  TESSERA_RETURN_IF_ERROR(arenas_[arena].mapping.populate(begin, end - begin));
  reserved_bytes_.fetch_add(end - begin, std::memory_order_relaxed);
  return absl::OkStatus();
}

uint64_t ArenaPool::excess_with(uint64_t size_bytes) {
  former_peak_ = std::max(former_peak_, peak_live_bytes());
  const uint64_t peak = std::max(former_peak_, live_bytes() + size_bytes);
  const uint64_t most = peak + peak / 2;
  const uint64_t wanted = reserved_bytes() + size_bytes;
  return wanted > most ? wanted - most : 0;
}

void ArenaPool::make_cold(uint64_t size_bytes) {
  std::vector<Found> given;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int c = static_cast<int>(free_blocks_.size()) - 1; c >= 0 && is_large(c); --c) {
      while (size_bytes > 0 && !free_blocks_[c].empty()) {
        given.push_back({free_blocks_[c].back(), c});
        free_blocks_[c].pop_back();
        size_bytes -= std::min(size_bytes, class_bytes(c));
      }
    }
  }
  for (const Found& block : given) {
    const ArenaAddress address = address_of(block.word);
    const uint64_t bytes = class_bytes(block.size_class);
    if (!arenas_[address.arena].mapping.give_back(address.offset, bytes)) {
      std::lock_guard<std::mutex> lock(mutex_);
      free_blocks_[block.size_class].push_back(block.word);
      continue;
    }
    reserved_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    const auto index = static_cast<size_t>(block.size_class);
    if (cold_blocks_.size() <= index) cold_blocks_.resize(index + 1);
    cold_blocks_[index].push_back(block.word);
  }
}

StatusOr<MemoryPool::Memory> ArenaPool::take(int64_t size_bytes) {
  constexpr int64_t kLargestBlock = int64_t{1} << 46;
  if (size_bytes < 0 || size_bytes > kLargestBlock) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a block of ", static_cast<uint64_t>(size_bytes), " bytes is beyond the address space"));
  }
  const int size_class = class_of(static_cast<uint64_t>(size_bytes));
  int num_read = 0;
  const StatusOr<Found> found = take_or_grow(size_class, &num_read);
  if (!found.ok()) {
    const std::string read = num_read == 0
                                 ? ""
                                 : absl::StrCat(", of which others have yet to read ", num_read,
                                                num_read == 1 ? " tensor" : " tensors");
    return with_context(found.status(),
                        absl::StrCat("a block of ", size_bytes, " bytes, beside the ",
                                     reserved_bytes(), " bytes that the client holds", read));
  }
  const ArenaAddress address = address_of(found->word);
  count_live(class_bytes(size_class));
  return Memory{ranges_[address.arena].data + address.offset, found->word, found->size_class};
}

StatusOr<ArenaPool::Block> ArenaPool::allocate(uint64_t size_bytes) {
  Block block;
  block.size_bytes_ = static_cast<int64_t>(size_bytes);
  TESSERA_ASSIGN_OR_RETURN(block.memory_, take(block.size_bytes_));
  block.pool_ = self_.lock();
  return block;
}

// The peak is the highest sum that any thread computes here, in whatever order the threads write
// it.
void ArenaPool::count_live(uint64_t bytes) {
  const uint64_t live = live_bytes_.fetch_add(bytes) + bytes;
  uint64_t peak = peak_live_bytes_.load();
  while (peak < live && !peak_live_bytes_.compare_exchange_weak(peak, live)) {
  }
}

void ArenaPool::restart_peak() {
  {
    std::lock_guard<std::mutex> lock(growth_mutex_);
    former_peak_ = std::max(former_peak_, peak_live_bytes());
  }
  peak_live_bytes_.store(0);
  // A thread that found the former peak high enough has added to live_bytes_ before, and
  // count_live() sees its addition: these accesses have one order for all threads (seq_cst).
  count_live(0);
}

void ArenaPool::withhold(const void* pointer, uint64_t size_bytes) {
  const std::optional<ArenaAddress> address = locate(pointer, size_bytes);
  if (!address.has_value() || size_bytes == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  withheld_.push_back(*address);
}

bool ArenaPool::end_withholding(ArenaAddress address, int size_class) {
  const auto is_inside = [&](ArenaAddress other) {
    return other.arena == address.arena && other.offset >= address.offset &&
           other.offset - address.offset < class_bytes(size_class);
  };
  return std::erase_if(withheld_, is_inside) > 0;
}

// The block may be of a larger class than the request, which live_bytes() counts.
void ArenaPool::give_back(const Memory& memory, int64_t size_bytes) {
  if (fork_guard_.in_child()) return;
  // Before another thread can take the block and count it again.
  live_bytes_.fetch_sub(class_bytes(class_of(static_cast<uint64_t>(size_bytes))),
                        std::memory_order_relaxed);
  const int size_class = memory.size_class;
  std::lock_guard<std::mutex> lock(mutex_);
  if (end_withholding(address_of(memory.place), size_class)) return;
  if (free_blocks_.size() <= static_cast<size_t>(size_class)) free_blocks_.resize(size_class + 1);
  free_blocks_[size_class].push_back(memory.place);
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
