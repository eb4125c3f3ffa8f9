// SPDX-License-Identifier: Apache-2.0
//
// ArenaPool: the memory of a client's CPU devices, in files that other clients can map.
//
//   arena 0   [ block | block | block | ...free... ]     memfd, sealed against resizing
//   arena 1   [ block                              ]     made when arena 0 is full
//
// Every block is named by (arena, offset), which means the same in every process that has mapped
// the arena; a pointer does not. The files have no name in any folder: they vanish with the last
// process that holds them, SIGKILL included.
//
//   1. a block is wholly in one arena, is aligned to 64 bytes, and overlaps no other live block;
//   2. an arena is never resized, moved or unmapped while the pool lives, so a pointer into it
//      stays valid;
//   3. the pages of a block exist when it is handed out, huge pages where the system grants them: a
//      write of its owner causes no page fault, and no access causes SIGBUS;
//   4. a free block is in the list of its class, once, until it is taken; a withheld block is in no
//      list. The pool takes no new memory for a class while its list has a block;
//   5. the pages that the pool holds are at most the sum of 1.5 times the largest amount that was
//      ever live, 2 MiB per arena, and the memory of small blocks (up to 64 KiB) of other classes.
//
// Blocks are rounded up to size classes (at most 25 % more) and reused by class.
// - A large block also serves requests of half its size and more.
// - Before the pool takes pages from the system it returns pages of large free blocks, as far as
//   (5) requires. Such a block is cold: it keeps its place, and gets pages again when it is handed
//   out.
// - The factor 1.5 in (5) lets a program that alternates between two sizes keep the blocks of both.
//
// In a forked child blocks are not given back: the memory belongs to the parent.
//
// Thread-safe.
#ifndef TESSERA_DEVICE_CPU_ARENA_H_
#define TESSERA_DEVICE_CPU_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/fork_guard.h"
#include "base/status.h"
#include "device/memory_pool.h"

namespace tessera {

// The place of a block in the arenas of its client. The client is not stored: the message or record
// with the address names it.
struct ArenaAddress {
  int32_t arena = -1;
  uint64_t offset = 0;
};

// A sealed memfd and its mapping, owned.
class SharedMapping {
 public:
  // `name` is shown in /proc. The system adds pages when they are first touched.
  static StatusOr<SharedMapping> create(const char* name, uint64_t size_bytes);
  // Makes the pages of a part at once. ResourceExhausted where the system does not have them.
  Status populate(uint64_t offset, uint64_t size_bytes);
  // Returns the pages of a part to the system: it reads as zero then. Returns whether that worked.
  bool give_back(uint64_t offset, uint64_t size_bytes);
  // Maps a file that a peer sent, and closes the descriptor: fd() is negative. InvalidArgument
  // unless it is a file of this size that can never change its size, so that no access causes
  // SIGBUS; ResourceExhausted where there is no address space.
  static StatusOr<SharedMapping> map_received(int fd, uint64_t size_bytes);

  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }
  int fd() const { return fd_; }

 private:
  // Takes the descriptor.
  static StatusOr<SharedMapping> map(int fd, uint64_t size_bytes);
  SharedMapping(int fd, std::byte* data, uint64_t size_bytes)
      : fd_(fd), data_(data), size_bytes_(size_bytes) {}

  int fd_ = -1;
  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
};

class ArenaPool final : public MemoryPool {
 public:
  static constexpr int kMaxArenas = 1024;

  // A live block; gives it back to the pool when destroyed. Move-only. Keeps the pool alive.
  class Block {
   public:
    Block() = default;
    Block(Block&& other) noexcept { *this = std::move(other); }
    Block& operator=(Block&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(memory_, other.memory_);
      std::swap(size_bytes_, other.size_bytes_);
      return *this;
    }
    ~Block() {
      if (pool_ != nullptr) pool_->give_back(memory_, size_bytes_);
    }
    std::byte* data() const { return memory_.data; }
    ArenaAddress address() const { return address_of(memory_.place); }

   private:
    friend class ArenaPool;
    std::shared_ptr<ArenaPool> pool_;
    Memory memory_;
    int64_t size_bytes_ = 0;
  };

  // Called for each new arena, before a block of it is handed out, from the allocating thread. It
  // must not allocate.
  using ArenaCallback = std::function<Status(int arena, int fd, uint64_t size_bytes)>;

  // The first arena has `first_arena_bytes`; later ones double, up to 1 GiB or the block's size.
  static std::shared_ptr<ArenaPool> create(uint64_t first_arena_bytes = uint64_t{4} << 20);

  // Sets the callback and calls it for the arenas that exist.
  Status set_arena_callback(ArenaCallback callback);

  // Sets the function that the pool calls, on the allocating thread, before it asks the system for
  // memory. It may give blocks back, and must not wait for another client. It returns the number of
  // blocks that it would give back but that other clients still read. Null: no function; when this
  // returns the previous function is not running.
  void set_reclaim(std::function<int()> reclaim);

  // A block of at least `size_bytes` >= 0, not initialised. Never waits for another client.
  // ResourceExhausted names the need, the memory of the pool and the part of it that others still
  // read.
  StatusOr<Block> allocate(uint64_t size_bytes);

  // As allocate(), but memory without an owner. Memory::place is the address, as a word.
  StatusOr<Memory> take(int64_t size_bytes) override;
  void give_back(const Memory& memory, int64_t size_bytes) override;

  // Makes sure that the live block with this memory is never handed out again: a peer may go on
  // writing to it after its owner has freed it. Does nothing for memory that is not this pool's,
  // and for null.
  void withhold(const void* pointer, uint64_t size_bytes);

  // The address of `pointer`, if [pointer, pointer + size_bytes) is in an arena of this pool.
  std::optional<ArenaAddress> locate(const void* pointer, uint64_t size_bytes) const;

  // The memory of that many bytes at the address; null if it is not in an arena of this pool.
  std::byte* find(ArenaAddress address, uint64_t size_bytes) const;

  // The file of an arena, for other clients; nullopt where there is no such arena.
  struct Shared {
    int fd;
    uint64_t size_bytes;
  };
  std::optional<Shared> shared(int arena) const;

  // Bytes of the pages that the pool holds.
  uint64_t reserved_bytes() const { return reserved_bytes_.load(std::memory_order_relaxed); }
  // Bytes of the blocks that are live, by size class.
  uint64_t live_bytes() const { return live_bytes_.load(std::memory_order_relaxed); }
  // The largest value of live_bytes() since restart_peak(), or since the pool was made. Allocations
  // of other threads during restart_peak() may count as before it or as after it.
  uint64_t peak_live_bytes() const { return peak_live_bytes_.load(std::memory_order_relaxed); }
  void restart_peak();

 private:
  struct PrivateTag {};

 public:
  ArenaPool(PrivateTag, uint64_t first_arena_bytes)
      : MemoryPool(UsedBy::kTasks), next_arena_bytes_(first_arena_bytes) {}

 private:
  // An address as one word, 0 for none: no arena is as large as 2^48 bytes.
  static_assert(kMaxArenas < 1 << 16);
  static uint64_t word_of(ArenaAddress address) {
    return static_cast<uint64_t>(address.arena + 1) << 48 | address.offset;
  }
  static ArenaAddress address_of(uint64_t word) {
    return {static_cast<int32_t>(word >> 48) - 1, word & ((uint64_t{1} << 48) - 1)};
  }

  // A free block with its pages, of this class or of a larger class up to `largest_class`. Word 0:
  // there is none.
  struct Found {
    uint64_t word = 0;
    int size_class = 0;
  };
  Found take_free(int size_class, int largest_class);
  // As take_free(), but takes pages of the system if no block is free. `num_read`: the result of
  // the reclaim function, where it was called.
  StatusOr<Found> take_or_grow(int size_class, int* num_read);
  // The functions below require growth_mutex_.
  StatusOr<Found> grow(int size_class);
  // A block that is cold, or has never been used. Word 0: the arenas are full.
  StatusOr<uint64_t> take_without_pages(int size_class);
  Status add_arena(uint64_t at_least_bytes);
  // Makes large free blocks cold, largest first, until so many bytes were returned or no such block
  // is left.
  void make_cold(uint64_t size_bytes);
  // How many bytes must be returned before the pool takes `size_bytes` more.
  uint64_t excess_with(uint64_t size_bytes);
  Status populate(int arena, uint64_t begin, uint64_t end);
  // Counts `bytes` more as live.
  void count_live(uint64_t bytes);
  // Ends the withholding of the block, which is never reused. Returns whether it was withheld.
  // Requires mutex_.
  bool end_withholding(ArenaAddress address, int size_class);

  std::weak_ptr<ArenaPool> self_;
  const ForkGuard fork_guard_;
  std::mutex reclaim_mutex_;  // held while reclaim_ runs; before mutex_ where both are
  std::function<int()> reclaim_;
  // Held while pages are taken from the system or returned, which takes long: free blocks are
  // handed out meanwhile without it. Acquired before mutex_ where both are. Guards the members up
  // to mutex_.
  std::mutex growth_mutex_;
  struct Arena {
    SharedMapping mapping;
    uint64_t used = 0;       // the bytes from here on have never been handed out
    uint64_t populated = 0;  // the bytes from here on have no pages
  };
  std::vector<Arena> arenas_;
  uint64_t next_arena_bytes_;
  uint64_t former_peak_ = 0;  // of live bytes, before peaks that were restarted
  std::vector<std::vector<uint64_t>> cold_blocks_;  // words of blocks without pages, by size class
  ArenaCallback callback_;
  mutable std::mutex mutex_;                        // guards the members up to the blank line
  std::vector<std::vector<uint64_t>> free_blocks_;  // their words, by size class
  std::vector<ArenaAddress> withheld_;              // of live blocks, inside of them

  // Readable without the lock: entry i is written before num_arenas_ passes i.
  struct Range {
    std::byte* data;
    uint64_t size_bytes;
    int fd;
  };
  Range ranges_[kMaxArenas] = {};
  std::atomic<int> num_arenas_{0};
  std::atomic<uint64_t> reserved_bytes_{0};
  std::atomic<uint64_t> live_bytes_{0};
  std::atomic<uint64_t> peak_live_bytes_{0};
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_CPU_ARENA_H_
