// SPDX-License-Identifier: Apache-2.0
//
// ArenaPool against a model: random allocations and releases, with the invariants after each.
#include "device/cpu/arena.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"
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
      ASSERT_EQ(pool->at(address), live.block.data());
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
                  [](int, int, uint64_t) { return absl::UnavailableError("nobody listens"); }),
              IsOk());
  EXPECT_THAT(pool->allocate(64).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("nobody listens")));
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

TEST(ArenaTest, ThreadsGetBlocksOfTheirOwn) {
  const auto pool = ArenaPool::create(4096);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 500; ++i) {
        TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool->allocate(64 + i));
        std::memset(block.data(), t, 64 + i);
        for (int k = 0; k < 64 + i; ++k) ASSERT_EQ(std::to_integer<int>(block.data()[k]), t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tessera
