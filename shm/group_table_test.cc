// SPDX-License-Identifier: Apache-2.0
//
// The table of groups in a control region: which clients share a block, when it is released, and
// the repair after a client dies.
#include "shm/group_table.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "shm/control.h"
#include "shm/host_link.h"
#include "shm/testing/three_clients.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::shm {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr uint64_t kBodyBytes = uint64_t{28} << 10;

// A client's handle of a block. The body begins with a number that is zero in a new block.
class Handle {
 public:
  static StatusOr<Handle> open(HostLink& link, absl::Span<const GroupMember> members, uint64_t salt,
                               uint64_t num_bytes = kBodyBytes) {
    GroupTable table = link.groups_led_by(members[0].client_id);
    return open(link, table, members, salt, num_bytes);
  }
  static StatusOr<Handle> open(HostLink& link, GroupTable& table,
                               absl::Span<const GroupMember> members, uint64_t salt,
                               uint64_t num_bytes = kBodyBytes) {
    const auto clear = [](std::byte* body) { std::memset(body, 0, sizeof(uint64_t)); };
    const BlockBody body = {
        num_bytes, {reinterpret_cast<const std::byte*>(&num_bytes), sizeof(num_bytes)}, clear};
    TESSERA_ASSIGN_OR_RETURN(GroupBlock * block, table.open(members, salt, body));
    return Handle(link, {members.begin(), members.end()}, block);
  }
  Handle(Handle&& other) noexcept
      : link_(other.link_),
        members_(std::move(other.members_)),
        block_(std::exchange(other.block_, nullptr)),
        offset_(other.offset_),
        generation_(other.generation_) {}
  ~Handle() {
    if (block_ == nullptr) return;
    link_->groups_led_by(members_[0].client_id).close(block_, generation_, members_);
  }

  GroupBlock* block() const { return block_; }
  uint64_t block_offset() const { return offset_; }
  uint64_t generation() const { return generation_; }
  MemberProgress& progress(int member) const {
    auto* const start = reinterpret_cast<std::byte*>(block_);
    return reinterpret_cast<MemberProgress*>(start + block_->progress_offset)[member];
  }
  uint64_t& number() const {
    auto* const start = reinterpret_cast<std::byte*>(block_);
    return *reinterpret_cast<uint64_t*>(start + block_->body_offset);
  }

 private:
  Handle(HostLink& link, std::vector<GroupMember> members, GroupBlock* block)
      : link_(&link),
        members_(std::move(members)),
        block_(block),
        offset_(reinterpret_cast<std::byte*>(block) - link.memory().control(members_[0].client_id)),
        generation_(block->generation) {}

  HostLink* link_;
  std::vector<GroupMember> members_;
  GroupBlock* block_;
  uint64_t offset_;
  uint64_t generation_;
};

constexpr GroupMember kPair[] = {{0, 0, 0}, {1, 1, 0}};

// The groups that client 0 leads.
class GroupTableTest : public ThreeClientsTest {
 protected:
  // Opens the group of clients 0 and 1 as `client`.
  Handle open(int client, uint64_t salt = 0) {
    StatusOr<Handle> opened = Handle::open(*links_[client], kPair, salt);
    EXPECT_THAT(opened.status(), IsOk());
    return *std::move(opened);
  }
  int num_blocks() { return links_[0]->groups_led_by(0).num_blocks(); }
  ControlHeader& header() {
    return *reinterpret_cast<ControlHeader*>(links_[0]->memory().control(0));
  }
};

TEST_F(GroupTableTest, ABlockIsGivenBackWithTheLastHandleOfTheLastClient) {
  {
    const Handle of_0 = open(0);
    {
      const Handle of_1 = open(1);
      const Handle again = open(1);
      EXPECT_EQ(of_1.block_offset(), of_0.block_offset());
      EXPECT_EQ(again.block_offset(), of_0.block_offset());
    }
    EXPECT_EQ(num_blocks(), 1);
  }
  EXPECT_EQ(num_blocks(), 0);
}

TEST_F(GroupTableTest, MemoryIsUsedAgain) {
  for (uint64_t salt = 0; salt < 5000; ++salt) {
    const Handle of_0 = open(0, salt);
    const Handle of_1 = open(1, salt);
    ASSERT_EQ(of_0.number(), 0u);  // nothing is left of the group before
    ASSERT_EQ(of_0.progress(0).next_seq, 0u);
    uint64_t layout;
    std::memcpy(&layout, of_1.block()->layout, sizeof(layout));
    ASSERT_EQ(layout, kBodyBytes);
    of_0.number() = salt + 1;
    of_0.progress(0).next_seq = 7;
  }
  EXPECT_EQ(num_blocks(), 0);
  // Two blocks never were in use at a time.
  EXPECT_LT(header().fresh_unit * kHeapUnit, uint64_t{2} << 20);
}

TEST_F(GroupTableTest, WhatAMemberKeepsStaysWhereAClientOpensAgainWhatAnotherHolds) {
  const Handle of_1 = open(1);
  {
    const Handle of_0 = open(0);
    of_0.progress(0).next_seq = 7;
  }
  EXPECT_EQ(open(0).progress(0).next_seq, 7u);
}

// Invariant 4.
TEST_F(GroupTableTest, ALateClientFindsTheBlockThatTheOthersGaveBack) {
  {
    const Handle of_0 = open(0);
    of_0.number() = 5;
  }
  EXPECT_EQ(num_blocks(), 1);
  {
    const Handle of_1 = open(1);
    EXPECT_EQ(of_1.number(), 5u);
  }
  EXPECT_EQ(num_blocks(), 0);
}

TEST_F(GroupTableTest, WhatNoClientHoldsMakesRoom) {
  // 256 MiB hold some 9,000 of these.
  for (uint64_t salt = 0; salt < 20000; ++salt) {
    ASSERT_THAT(Handle::open(*links_[0], kPair, salt).status(), IsOk());
  }
}

TEST_F(GroupTableTest, AGroupThatIsTooLargeLeavesRoomForOthers) {
  constexpr uint64_t kLarge = uint64_t{50} << 20;
  std::vector<Handle> groups;
  Status status;
  for (uint64_t salt = 0; status.ok() && salt < 100; ++salt) {
    StatusOr<Handle> group = Handle::open(*links_[0], kPair, salt, kLarge);
    if (group.ok()) groups.push_back(*std::move(group));
    status = group.status();
  }
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("are full; drop meshes")));
  EXPECT_THAT(Handle::open(*links_[0], kPair, 1000, kLarge).status(),
              StatusIs(absl::StatusCode::kResourceExhausted));
  const Handle small = open(0, /*salt=*/2000);
}

TEST_F(GroupTableTest, AClientWhoseProcessHasEndedHoldsNothing) {
  Handle of_1 = open(1);
  { const Handle of_0 = open(0); }
  EXPECT_EQ(num_blocks(), 1);
  auto& life = reinterpret_cast<ControlHeader*>(links_[0]->memory().control(1))->life;
  // A client that is declared lost may still run: it keeps its block.
  links_[0]->liveness().report_lost(1, absl::UnavailableError("client 1 does not answer"));
  { const Handle of_0 = open(0); }
  EXPECT_EQ(num_blocks(), 1);
  life.fetch_or(FUTEX_OWNER_DIED);
  { const Handle of_0 = open(0); }
  EXPECT_EQ(num_blocks(), 0);
  life.fetch_and(~FUTEX_OWNER_DIED);
  // A handle of a block that has been freed gives nothing back.
  const Handle keep = std::move(of_1);
}

// A process that dies with the lock leaves the table as if it had done nothing.
TEST_F(GroupTableTest, ADeadHolderOfTheLockLeavesTheTableWhole) {
  const Handle held = open(0);
  GroupBlock* const block = held.block();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    links_[0]->groups_led_by(0).with_block(block, held.generation(), [this] {
      // In the middle of making a block: all units are marked, and no slot says why.
      std::memset(links_[0]->memory().control(0) + header().units_offset, 0xff,
                  kControlBytes / kHeapUnit / 8);
      raise(SIGKILL);
    });
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const Handle other = open(0, /*salt=*/1);
  EXPECT_NE(other.block_offset(), held.block_offset());
  EXPECT_EQ(open(1).block_offset(), held.block_offset());
}

TEST_F(GroupTableTest, AHolderOfTheLockThatDoesNotRunIsNotWaitedForForEver) {
  const Handle held = open(0);
  GroupBlock* const block = held.block();
  GroupTable impatient(
      links_[1]->memory().control(0), /*leader=*/0, /*self=*/1, [](int) { return false; },
      /*find_stopped=*/nullptr, absl::Milliseconds(1));
  std::thread other;
  EXPECT_TRUE(links_[0]->groups_led_by(0).with_block(block, held.generation(), [&] {
    other = std::thread([&] {
      EXPECT_THAT(Handle::open(*links_[1], impatient, kPair, 0).status(),
                  StatusIs(absl::StatusCode::kUnavailable,
                           HasSubstr("the table of groups in the control region of client 0 is "
                                     "locked by a client that does not run")));
    });
    other.join();
  }));
}

// Client 2 is stopped while it has the lock, and is declared lost: no other client waits for as
// long as for a client that is slow, and it is named.
TEST_F(GroupTableTest, AHolderOfTheLockThatIsLostIsNotWaitedFor) {
  const testing::TestDeadline deadline(absl::Seconds(9), "less than the time limit of the lock");
  Handle held = open(1);
  GroupBlock* const block = held.block();
  ASSERT_EQ(pthread_mutex_lock(&header().table_lock), 0);
  std::thread other([&] {
    // Functions that may run on a thread that others wait for do not wait even so long.
    EXPECT_FALSE(links_[1]->groups_led_by(0).with_block(block, held.generation(), [] {}));
    links_[1]->liveness().report_lost(2, absl::UnavailableError("client 2 missed its heartbeats"));
    EXPECT_THAT(Handle::open(*links_[1], kPair, 1).status(),
                StatusIs(absl::StatusCode::kUnavailable,
                         HasSubstr("is locked by a client that does not run: client 2 missed its "
                                   "heartbeats")));
  });
  other.join();
  pthread_mutex_unlock(&header().table_lock);
}

// Clients that open and give back the same groups all the time: at every moment all clients that
// hold a group hold the same block, and no other group has it.
TEST_F(GroupTableTest, ClientsThatLookForAGroupAtOnceMeet) {
  constexpr int kRounds = 300;
  constexpr uint64_t kSalts = 3;
  std::atomic<int> round[2] = {0, 0};
  uint64_t offsets[2] = {0, 0};
  int num_different = 0;
  const auto client = [&](int c) {
    const auto wait_for_other = [&](int number) {
      round[c] = number;
      while (round[1 - c] < number) std::this_thread::yield();
    };
    for (int i = 0; i < kRounds; ++i) {
      wait_for_other(3 * i + 1);
      const Handle group = open(c, i % kSalts);
      const Handle beside = open(c, 100 + i % 2);
      offsets[c] = group.block_offset();
      if (group.block_offset() == beside.block_offset()) ++num_different;
      wait_for_other(3 * i + 2);
      if (c == 0 && offsets[0] != offsets[1]) ++num_different;
      wait_for_other(3 * i + 3);
    }
  };
  std::thread other([&] { client(1); });
  client(0);
  other.join();
  EXPECT_EQ(num_different, 0);
  EXPECT_EQ(num_blocks(), 0);
}

// Invariant 5.
TEST_F(GroupTableTest, ABlockOfAnotherGenerationIsNotFound) {
  uint64_t offset = 0;
  uint64_t generation = 0;
  {
    const Handle of_0 = open(0);
    const Handle of_1 = open(1);
    offset = of_0.block_offset();
    generation = of_0.generation();
    EXPECT_NE(GroupTable::find(links_[2]->memory().control(0), offset, generation), nullptr);
  }
  EXPECT_EQ(GroupTable::find(links_[2]->memory().control(0), offset, generation), nullptr);
  const Handle next = open(0, /*salt=*/1);
  EXPECT_EQ(next.block_offset(), offset);
  EXPECT_EQ(GroupTable::find(links_[2]->memory().control(0), offset, generation), nullptr);
  auto* const block = reinterpret_cast<GroupBlock*>(links_[2]->memory().control(0) + offset);
  EXPECT_FALSE(links_[2]->groups_led_by(0).with_block(block, generation, [] { ADD_FAILURE(); }));
  for (const uint64_t bad : {uint64_t{0}, uint64_t{8}, kControlBytes, kControlBytes + kHeapUnit}) {
    EXPECT_EQ(GroupTable::find(links_[2]->memory().control(0), bad, generation), nullptr);
  }
}

}  // namespace
}  // namespace tessera::shm
