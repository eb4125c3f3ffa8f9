// SPDX-License-Identifier: Apache-2.0
//
// ArenaPool against a model: random allocations and releases, with the invariants after each; and
// what threads that stop anywhere see of it.
#include "device/cpu/arena.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"
#include "tests/support/random_stalls.h"
#include "tests/support/sanitizers.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

struct Live {
  ArenaPool::Block block;
  uint64_t size_bytes;
  unsigned char fill;
};

// Live blocks by (arena, offset): the model.
using Model = std::map<std::pair<int, uint64_t>, Live>;

void check_new_block(const Model& model, const Live& live) {
  const ArenaAddress address = live.block.address();
  ASSERT_EQ(address.offset % 64, 0u);
  ASSERT_EQ(reinterpret_cast<uintptr_t>(live.block.data()) % 64, 0u);
  const auto next = model.lower_bound({address.arena, address.offset});
  if (next != model.end() && next->first.first == address.arena) {
    ASSERT_LE(address.offset + live.size_bytes, next->first.second) << "overlaps the next block";
  }
  if (next != model.begin()) {
    const auto& [place, before] = *std::prev(next);
    if (place.first == address.arena) {
      ASSERT_LE(place.second + before.size_bytes, address.offset) << "overlaps the one before";
    }
  }
}

void check_contents(const Live& live) {
  for (uint64_t i = 0; i < live.size_bytes; ++i) {
    ASSERT_EQ(std::to_integer<int>(live.block.data()[i]), live.fill);
  }
}

TEST(ArenaTest, RandomOperationsKeepTheInvariants) {
  const char* text = std::getenv("TESSERA_TEST_SEED");
  const uint32_t seed = text != nullptr ? static_cast<uint32_t>(std::atoi(text)) : 7;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto pool = ArenaPool::create(1 << 14);
  Model model;
  for (int step = 0; step < 10000; ++step) {
    if (model.size() > 200 || (!model.empty() && random() % 2 == 0)) {
      auto it = model.begin();
      std::advance(it, random() % model.size());
      check_contents(it->second);
      model.erase(it);
    } else {
      const uint64_t size = random() % 8 == 0 ? random() % 20000 : random() % 300;
      TESSERA_ASSERT_OK_AND_ASSIGN(ArenaPool::Block block, pool->allocate(size));
      Live live = {std::move(block), size, static_cast<unsigned char>(random())};
      check_new_block(model, live);
      ASSERT_FALSE(HasFatalFailure()) << "step " << step;
      std::memset(live.block.data(), live.fill, size);
      const ArenaAddress address = live.block.address();
      ASSERT_EQ(pool->find(address, 1), live.block.data());
      const auto located = pool->locate(live.block.data(), size);
      ASSERT_TRUE(located.has_value());
      ASSERT_EQ(located->arena, address.arena);
      ASSERT_EQ(located->offset, address.offset);
      model.emplace(std::pair(address.arena, address.offset), std::move(live));
    }
    ASSERT_LE(pool->live_bytes(), pool->reserved_bytes());
  }
  for (const auto& [place, live] : model) check_contents(live);
  model.clear();
  EXPECT_EQ(pool->live_bytes(), 0u);
}

TEST(ArenaTest, WithheldBlocksAreNotHandedOutAgain) {
  const auto pool = ArenaPool::create(1 << 14);
  std::vector<ArenaPool::Block> blocks;
  for (int i = 0; i < 3; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(ArenaPool::Block block, pool->allocate(640));
    blocks.push_back(std::move(block));
  }
  std::byte* const withheld = blocks[1].data();
  const std::set<std::byte*> others = {blocks[0].data(), blocks[2].data()};
  pool->withhold(withheld, 640);
  pool->withhold(withheld + 600, 40);  // again, and a part of it
  pool->withhold(&others, sizeof others);
  pool->withhold(blocks[0].data(), 0);
  blocks.clear();
  EXPECT_EQ(pool->live_bytes(), 0u);
  std::set<std::byte*> again;
  for (int i = 0; i < 3; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(ArenaPool::Block block, pool->allocate(640));
    again.insert(block.data());
    blocks.push_back(std::move(block));
  }
  EXPECT_THAT(again, ::testing::IsSupersetOf(others));
  EXPECT_THAT(again, ::testing::Not(::testing::Contains(withheld)));
}

TEST(ArenaTest, ClassesWasteAtMostAQuarterOrOneLine) {
  const auto pool = ArenaPool::create(1 << 22);
  for (uint64_t size = 0; size < 5000; ++size) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool->allocate(size));
    ASSERT_GE(pool->live_bytes(), size);
    ASSERT_LE(pool->live_bytes(), std::max<uint64_t>(size + size / 4 + 64, 64)) << size;
  }
}

TEST(ArenaTest, AFreedBlockIsUsedAgain) {
  const auto pool = ArenaPool::create();
  const std::byte* first;
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool->allocate(1000));
    first = block.data();
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block again, pool->allocate(1001));
  EXPECT_EQ(again.data(), first);
  const uint64_t reserved = pool->reserved_bytes();
  for (int i = 0; i < 10000; ++i) ASSERT_THAT(pool->allocate(100000).status(), IsOk());
  EXPECT_EQ(pool->reserved_bytes(), reserved);
}

// The bytes that the files of a pool hold, as the kernel counts them.
uint64_t bytes_in_files(ArenaPool& pool) {
  uint64_t bytes = 0;
  for (int arena = 0; pool.shared(arena).has_value(); ++arena) {
    struct stat file = {};
    EXPECT_EQ(fstat(pool.shared(arena)->fd, &file), 0);
    bytes += static_cast<uint64_t>(file.st_blocks) * 512;
  }
  return bytes;
}

// Every phase has blocks of sizes of its own, as many as make up its peak, and frees them all.
TEST(ArenaTest, PhasesOfOtherSizesHoldAtMostOneAndAHalfTimesThePeak) {
  std::mt19937 random(20);
  const auto pool = ArenaPool::create();
  constexpr uint64_t kPhaseBytes = uint64_t{48} << 20;
  // A huge page for small blocks in each arena, and for each end that is cut within one.
  for (int phase = 0; phase < 20; ++phase) {
    const uint64_t largest = uint64_t{100} << (10 + random() % 8);  // 100 KiB to 12.5 MiB
    std::vector<ArenaPool::Block> blocks;
    for (uint64_t used = 0; used < kPhaseBytes;) {
      const uint64_t size = 70000 + random() % largest;
      TESSERA_ASSERT_OK_AND_ASSIGN(ArenaPool::Block block, pool->allocate(size));
      std::memset(block.data(), phase + 1, size);
      used += size;
      blocks.push_back(std::move(block));
    }
    const uint64_t most = pool->peak_live_bytes() * 3 / 2 + (uint64_t{16} << 20);
    ASSERT_LE(pool->reserved_bytes(), most) << "phase " << phase;
    ASSERT_LE(bytes_in_files(*pool), most) << "phase " << phase;
    // Blocks keep their contents when other blocks' pages are returned and come back.
    for (const ArenaPool::Block& block : blocks) {
      ASSERT_EQ(std::to_integer<int>(block.data()[69999]), phase + 1);
    }
  }
}

// Two sizes in turn, which together are less than 1.5 times the larger one, take pages once.
TEST(ArenaTest, TwoSizesInTurnTakePagesOnce) {
  const auto pool = ArenaPool::create();
  uint64_t held = 0;
  for (int round = 0; round < 20; ++round) {
    { TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block large, pool->allocate(8 << 20)); }
    { TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block small, pool->allocate(3 << 20)); }
    { TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block most, pool->allocate(7 << 20)); }
    if (round == 0) held = pool->reserved_bytes();
    EXPECT_EQ(pool->reserved_bytes(), held);
  }
  EXPECT_EQ(held, uint64_t{8 + 3} << 20);
}

// The rest of an arena that was too small for a block serves the next one.
TEST(ArenaTest, RestsOfArenasAreUsed) {
  const auto pool = ArenaPool::create(1 << 20);
  TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block first, pool->allocate(128 << 10));
  TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block large, pool->allocate(1 << 20));
  EXPECT_EQ(large.address().arena, 1);
  for (int i = 0; i < 7; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block rest, pool->allocate(100 << 10));
    EXPECT_EQ(rest.address().arena, 0);
  }
}

TEST(ArenaTest, WithheldPagesAreNotGivenBack) {
  const auto pool = ArenaPool::create();
  std::byte* late = nullptr;
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool->allocate(1 << 20));
    late = block.data();
    std::memset(late, 7, 1 << 20);
    pool->withhold(late, 1 << 20);
  }
  for (int k = 0; k < 6; ++k) {
    ASSERT_THAT(pool->allocate((300 << 10) << k).status(), IsOk());
  }
  EXPECT_EQ(std::to_integer<int>(late[5000]), 7);
}

TEST(ArenaTest, ABlockKeepsThePoolAlive) {
  ArenaPool::Block block;
  {
    const auto pool = ArenaPool::create();
    TESSERA_ASSERT_OK_AND_ASSIGN(block, pool->allocate(64));
  }
  std::memset(block.data(), 1, 64);
}

TEST(ArenaTest, ABlockThatIsAssignedToGivesItsMemoryBack) {
  const auto pool = ArenaPool::create();
  TESSERA_ASSERT_OK_AND_ASSIGN(ArenaPool::Block a, pool->allocate(64));
  TESSERA_ASSERT_OK_AND_ASSIGN(ArenaPool::Block b, pool->allocate(64));
  a = std::move(b);
  b = ArenaPool::Block();
  EXPECT_EQ(pool->live_bytes(), 64u);
}

TEST(ArenaTest, ThePeakIsTheMostThatWasLive) {
  const auto pool = ArenaPool::create();
  TESSERA_ASSERT_OK_AND_ASSIGN(ArenaPool::Block a, pool->allocate(64));
  TESSERA_ASSERT_OK_AND_ASSIGN(ArenaPool::Block b, pool->allocate(128));
  b = ArenaPool::Block();
  EXPECT_EQ(pool->live_bytes(), 64u);
  EXPECT_EQ(pool->peak_live_bytes(), 192u);
  pool->restart_peak();
  EXPECT_EQ(pool->peak_live_bytes(), 64u);
  TESSERA_ASSERT_OK_AND_ASSIGN(b, pool->allocate(64));
  EXPECT_EQ(pool->peak_live_bytes(), 128u);
}

TEST(ArenaTest, WhatIsNoMemoryOfThePoolIsNotLocated) {
  const auto pool = ArenaPool::create(4096);
  TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool->allocate(64));
  int elsewhere = 0;
  EXPECT_FALSE(pool->locate(&elsewhere, sizeof elsewhere).has_value());
  EXPECT_TRUE(pool->locate(block.data(), 4096 - block.address().offset).has_value());
  EXPECT_FALSE(pool->locate(block.data(), 4097).has_value());
}

TEST(ArenaTest, TheCallbackHearsOfEveryArenaBeforeItsBlocks) {
  const auto pool = ArenaPool::create(4096);
  TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block first, pool->allocate(4096));
  std::vector<uint64_t> sizes;
  ASSERT_THAT(pool->set_arena_callback([&](int arena, int fd, uint64_t size_bytes) -> Status {
    EXPECT_EQ(arena, static_cast<int>(sizes.size()));
    EXPECT_GE(fd, 0);
    sizes.push_back(size_bytes);
    return absl::OkStatus();
  }),
              IsOk());
  EXPECT_EQ(sizes.size(), 1u);
  TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block second, pool->allocate(4096));
  ASSERT_EQ(sizes.size(), 2u);
  EXPECT_EQ(second.address().arena, 1);
  EXPECT_GT(sizes[1], sizes[0]);
}

TEST(ArenaTest, AnErrorOfTheCallbackIsTheErrorOfTheAllocation) {
  const auto pool = ArenaPool::create(4096);
  ASSERT_THAT(pool->set_arena_callback(
                  [](int, int, uint64_t) { return absl::UnavailableError("no listener"); }),
              IsOk());
  EXPECT_THAT(pool->allocate(64).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no listener")));
}

TEST(ArenaTest, TooMuchIsRefusedWithTheNeedAndWhatIsHeld) {
  const auto pool = ArenaPool::create(4096);
  TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool->allocate(64));
  EXPECT_THAT(pool->allocate(uint64_t{1} << 45).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("a block of 35184372088832 bytes, beside the 4096 bytes that the "
                                 "client holds: the system has ")));
  EXPECT_THAT(pool->allocate((uint64_t{1} << 46) + 1).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("a block of 70368744177665 bytes is beyond the address space")));
  EXPECT_THAT(pool->allocate(64).status(), IsOk());
}

// Row "cannot make a shared memory file" of docs/errors.md: the process may open no more files.
TEST(ArenaTest, DescriptorsThatRunOutAreNamed) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto pool = ArenaPool::create(4096);
  const Status status = pool->allocate(64).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("cannot make a shared memory file: Too many open files")));
  EXPECT_THAT(pool->allocate(64).status(), IsOk());
}

int64_t page_faults() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST(ArenaTest, WritingToANewBlockMeetsNoPageFault) {
  if (testing::kThreadSanitizer) GTEST_SKIP() << "its shadow memory has faults of its own";
  constexpr int64_t kPages = 4096;
  const auto pool = ArenaPool::create();
  TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool->allocate(4096 * kPages));
  const int64_t before = page_faults();
  std::memset(block.data(), 1, 4096 * kPages);
  // Not none: a sanitizer's shadow memory is an eighth of it.
  EXPECT_LT(page_faults() - before, kPages / 4);
}

// The flags of the mapping that holds `pointer`, as the kernel lists them: "rd wr sh ... hg".
std::string mapping_flags(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  std::ifstream file("/proc/self/smaps");
  std::string line;
  for (bool found = false; std::getline(file, line);) {
    uintptr_t begin, end;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      found = begin <= address && address < end;
    }
    if (found && line.rfind("VmFlags:", 0) == 0) return line + " ";
  }
  return "";
}

TEST(ArenaTest, ArenasAskForHugePages) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) {
    GTEST_SKIP() << "the kernel has none";
  }
  const auto pool = ArenaPool::create();
  TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool->allocate(4 << 20));
  EXPECT_THAT(mapping_flags(block.data()), HasSubstr(" hg "));
  int unasked = 0;
  EXPECT_THAT(mapping_flags(&unasked), ::testing::Not(HasSubstr(" hg ")));
}

void run_threads(int num_threads, const std::function<void(int thread)>& body) {
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) threads.emplace_back(body, t);
  for (std::thread& thread : threads) thread.join();
}

// Threads stop at any instruction, but under ThreadSanitizer.
class Stalls {
 public:
  Stalls() {
    if (!testing::kThreadSanitizer) stalls_.emplace(/*seed=*/4);
  }

 private:
  std::optional<testing::RandomStalls> stalls_;
};

// Every block ever handed out, by the requested size.
using Places = std::map<uint64_t, std::set<std::byte*>>;

// No block is live now. Allocations return exactly these blocks: none is lost, and none is twice in
// a list.
void expect_all_come_back(ArenaPool& pool, const Places& places) {
  for (const auto& [size, of_size] : places) {
    std::vector<ArenaPool::Block> blocks(of_size.size());
    std::set<std::byte*> again;
    for (ArenaPool::Block& block : blocks) {
      TESSERA_ASSERT_OK_AND_ASSIGN(block, pool.allocate(size));
      again.insert(block.data());
    }
    EXPECT_EQ(again, of_size) << "of " << size << " bytes";
  }
}

// Small blocks and large ones, given back by the thread that has them or by another.
TEST(ArenaTest, ThreadsGetBlocksOfTheirOwn) {
  constexpr int kThreads = 4;
  constexpr size_t kHeld = 12;
  constexpr uint64_t kSizes[] = {64, 640, 5000, 64 << 10, (64 << 10) + 1};
  const int num_rounds = testing::kSanitized ? 3000 : 50000;
  const auto pool = ArenaPool::create();
  std::mutex mutex;
  Places places;
  std::optional<Live> handed_on;
  const auto work = [&](int thread) {
    std::mt19937 random(thread);
    Places own_places;
    std::vector<Live> held;
    for (int round = 0; round < num_rounds; ++round) {
      if (held.size() < kHeld && random() % 2 == 0) {
        const uint64_t size = kSizes[random() % std::size(kSizes)];
        TESSERA_ASSERT_OK_AND_ASSIGN(ArenaPool::Block block, pool->allocate(size));
        own_places[size].insert(block.data());
        held.push_back({std::move(block), 64, static_cast<unsigned char>(random())});
        std::memset(held.back().block.data(), held.back().fill, 64);
      } else if (!held.empty()) {
        std::swap(held.back(), held[random() % held.size()]);
        std::optional<Live> dropped = std::move(held.back());
        held.pop_back();
        if (random() % 4 == 0) {
          std::lock_guard<std::mutex> lock(mutex);
          std::swap(dropped, handed_on);
        }
        if (dropped.has_value()) check_contents(*dropped);
      }
      ASSERT_FALSE(HasFatalFailure()) << "thread " << thread << ", round " << round;
    }
    std::lock_guard<std::mutex> lock(mutex);
    for (auto& [size, of_size] : own_places) places[size].merge(of_size);
  };
  {
    const Stalls stalls;
    run_threads(kThreads, work);
  }
  handed_on.reset();
  EXPECT_EQ(pool->live_bytes(), 0u);
  expect_all_come_back(*pool, places);
}

// Threads count in the blocks, and nothing but the pool orders them.
TEST(ArenaTest, TheNextOwnerOfABlockSeesTheWritesOfTheLast) {
  constexpr int kThreads = 4;
  const int num_rounds = testing::kSanitized ? 10000 : 200000;
  const auto pool = ArenaPool::create();
  std::vector<ArenaPool::Block> blocks(2 * kThreads);
  std::vector<int64_t*> counts;
  for (ArenaPool::Block& block : blocks) {
    TESSERA_ASSERT_OK_AND_ASSIGN(block, pool->allocate(64));
    counts.push_back(reinterpret_cast<int64_t*>(block.data()));
    *counts.back() = 0;
  }
  blocks.clear();
  {
    const Stalls stalls;
    run_threads(kThreads, [&](int) {
      for (int round = 0; round < num_rounds; ++round) {
        TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool->allocate(64));
        ++*reinterpret_cast<int64_t*>(block.data());
      }
    });
  }
  int64_t sum = 0;
  for (const int64_t* count : counts) sum += *count;
  EXPECT_EQ(sum, int64_t{kThreads} * num_rounds);
}

TEST(ArenaTest, AllBlocksThatWereGivenBackAreFound) {
  constexpr uint64_t kArenaBytes = 32 << 10;
  const auto pool = ArenaPool::create(kArenaBytes);
  for (int round = 0; round < 3; ++round) {
    std::vector<ArenaPool::Block> blocks;
    std::set<std::byte*> places;
    for (int i = 0; i < 32; ++i) {
      TESSERA_ASSERT_OK_AND_ASSIGN(ArenaPool::Block block, pool->allocate(1024));
      places.insert(block.data());
      blocks.push_back(std::move(block));
    }
    EXPECT_EQ(places.size(), 32u);
    EXPECT_EQ(pool->reserved_bytes(), kArenaBytes);
  }
}

TEST(ArenaTest, WhatReclaimGivesBackIsFound) {
  const auto pool = ArenaPool::create(4096);
  TESSERA_ASSERT_OK_AND_ASSIGN(ArenaPool::Block kept, pool->allocate(4096));
  pool->set_reclaim([&kept] {
    kept = ArenaPool::Block();
    return 0;
  });
  TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool->allocate(4096));
  EXPECT_EQ(pool->reserved_bytes(), 4096u);
}

TEST(ArenaTest, WithoutMemoryItSaysWhatOthersStillRead) {
  const auto pool = ArenaPool::create(4096);
  pool->set_reclaim([] { return 2; });
  TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool->allocate(4096));
  EXPECT_THAT(pool->allocate(uint64_t{1} << 45).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("beside the 4096 bytes that the client holds, of which others "
                                 "have yet to read 2 tensors: ")));
}

// The pool holds growth_mutex_ while it calls the callback.
TEST(ArenaTest, FreeBlocksAreHandedOutWhileThePoolGrows) {
  const auto pool = ArenaPool::create();
  std::vector<ArenaPool::Block> blocks;
  for (int i = 0; i < 8; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(ArenaPool::Block block, pool->allocate(64 << 10));
    blocks.push_back(std::move(block));
  }
  int num_calls = 0;
  std::future<void> others;
  ASSERT_THAT(pool->set_arena_callback([&](int, int, uint64_t) -> Status {
    ++num_calls;
    others = std::async(std::launch::async, [&] {
      for (int round = 0; round < 3; ++round) {
        const uint64_t live = pool->live_bytes();
        for (ArenaPool::Block& block : blocks) block = ArenaPool::Block();
        EXPECT_EQ(pool->live_bytes(), 0u);
        for (ArenaPool::Block& block : blocks) {
          TESSERA_ASSERT_OK_AND_ASSIGN(block, pool->allocate(64 << 10));
        }
        EXPECT_EQ(pool->live_bytes(), live);
      }
    });
    // Not reached by the clock, but where they wait for the lock.
    EXPECT_EQ(others.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    return absl::OkStatus();
  }),
              IsOk());
  EXPECT_EQ(num_calls, 1);
}

TEST(ArenaTest, ThreadsNeverGetWhatIsWithheld) {
  constexpr int kThreads = 4;
  const int num_rounds = testing::kSanitized ? 500 : 10000;
  const auto pool = ArenaPool::create(8 << 20);
  std::mutex mutex;
  std::set<std::byte*> withheld;
  run_threads(kThreads, [&](int thread) {
    for (int round = 0; round < num_rounds; ++round) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool->allocate(640));
      {
        std::lock_guard<std::mutex> lock(mutex);
        ASSERT_EQ(withheld.count(block.data()), 0u) << "thread " << thread << ", round " << round;
      }
      if (round % 50 != thread) continue;
      {
        std::lock_guard<std::mutex> lock(mutex);
        withheld.insert(block.data());
      }
      pool->withhold(block.data(), 640);
    }
  });
  EXPECT_EQ(withheld.size(), static_cast<size_t>(kThreads * num_rounds / 50));
  EXPECT_EQ(pool->live_bytes(), 0u);
}

// Two threads allocate in the same instant, time and again.
TEST(ArenaTest, ThePeakOfThreadsIsExact) {
  constexpr int kThreads = 2;
  const int num_rounds = testing::kSanitized ? 3000 : 30000;
  const auto pool = ArenaPool::create();
  std::atomic<int> num_met{0};
  // std::barrier wakes one after the other.
  const auto meet = [&num_met] {
    const int all = num_met++ / kThreads * kThreads + kThreads;
    for (int looks = 0; num_met < all; ++looks) {
      if (looks > 1000) std::this_thread::yield();
    }
  };
  run_threads(kThreads, [&](int thread) {
    for (int round = 0; round < num_rounds; ++round) {
      if (thread == 0) pool->restart_peak();
      meet();
      {
        // Nothing is returned early: the other would wait for ever.
        const StatusOr<ArenaPool::Block> block = pool->allocate(64);
        meet();
        EXPECT_THAT(block.status(), IsOk());
        EXPECT_EQ(pool->peak_live_bytes(), kThreads * 64u) << "round " << round;
      }
      meet();
    }
  });
}

TEST(ArenaTest, ABlockThatGoesFromThreadToThreadCountsOnce) {
  const auto pool = ArenaPool::create(4096);
  { TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool->allocate(4096)); }
  // There is no other.
  ASSERT_THAT(pool->set_arena_callback([](int arena, int, uint64_t) -> Status {
    return arena == 0 ? absl::OkStatus() : absl::ResourceExhaustedError("one arena is all");
  }),
              IsOk());
  const int num_rounds = testing::kSanitized ? 10000 : 1000000;
  const Stalls stalls;
  run_threads(3, [&](int thread) {
    for (int round = 0; round < num_rounds; ++round) {
      const StatusOr<ArenaPool::Block> block = pool->allocate(4096);
      if (block.ok()) block->data()[0] = std::byte(thread);
    }
  });
  EXPECT_EQ(pool->peak_live_bytes(), 4096u);
}

}  // namespace
}  // namespace tessera
