// SPDX-License-Identifier: Apache-2.0
//
// The table of groups in a control region: which clients share a block, when it is given back, and
// what is left of a client that dies.
#include "collectives/host/group_table.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/host/rendezvous.h"
#include "collectives/host/testing/rendezvous_fixture.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::host {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

// The groups that client 0 leads.
class GroupTableTest : public ThreeClientsTest {
 protected:
  // The group of clients 0 and 1, as one of them opens it.
  Rendezvous open(int client, uint64_t salt = 0) {
    StatusOr<Rendezvous> opened =
        Rendezvous::open(*links_[client], {{0, 0, 0}, {1, 1, 0}}, kRecords, salt);
    EXPECT_THAT(opened.status(), IsOk());
    return *std::move(opened);
  }
  int num_blocks() { return links_[0]->groups_led_by(0).num_blocks(); }
  ControlHeader& header() { return *reinterpret_cast<ControlHeader*>(links_[0]->control(0)); }

  static Rendezvous::Op op(uint32_t seq, int member, absl::Duration timeout) {
    Rendezvous::Op result;
    result.seq = seq;
    result.member = member;
    result.detail_field = "counts";
    result.signature = kSum;
    result.start = steady_now();
    result.deadline = result.start + timeout;
    return result;
  }
  static Status meet(Rendezvous& group, uint32_t seq, int member, absl::Duration timeout) {
    group.entry(seq, member).signature = kSum;
    TESSERA_RETURN_IF_ERROR(group.arrive(op(seq, member, timeout)));
    return group.wait_arrived(op(seq, member, timeout));
  }
};

TEST_F(GroupTableTest, ABlockIsGivenBackWithTheLastHandleOfTheLastClient) {
  {
    const Rendezvous of_0 = open(0);
    {
      const Rendezvous of_1 = open(1);
      const Rendezvous again = open(1);
      EXPECT_EQ(of_1.block_offset(), of_0.block_offset());
      EXPECT_EQ(again.block_offset(), of_0.block_offset());
    }
    EXPECT_EQ(num_blocks(), 1);
  }
  EXPECT_EQ(num_blocks(), 0);
}

TEST_F(GroupTableTest, MemoryIsUsedAgain) {
  for (uint64_t salt = 0; salt < 5000; ++salt) {
    const Rendezvous of_0 = open(0, salt);
    const Rendezvous of_1 = open(1, salt);
    EXPECT_EQ(of_0.next_seq(0), 0u);
    EXPECT_FALSE(of_0.all_arrived(1));  // nothing is left of the group before
    for (int m = 0; m < 2; ++m) {
      of_0.entry(1, m).signature = kSum;
      ASSERT_THAT(const_cast<Rendezvous&>(of_0).arrive(op(1, m, absl::Seconds(9))), IsOk());
    }
  }
  EXPECT_EQ(num_blocks(), 0);
  // Two blocks never were in use at a time.
  EXPECT_LT(header().fresh_unit * kHeapUnit, uint64_t{2} << 20);
}

TEST_F(GroupTableTest, NumbersGoOnWhereAClientOpensAgainWhatAnotherHolds) {
  const Rendezvous of_1 = open(1);
  {
    Rendezvous of_0 = open(0);
    of_0.set_next_seq(0, 7);
  }
  EXPECT_EQ(open(0).next_seq(0), 7u);
}

// Invariant 4.
TEST_F(GroupTableTest, ALateClientFindsTheVerdictOfAGroupThatTheOthersGaveBack) {
  Status verdict;
  {
    Rendezvous of_0 = open(0);
    verdict = meet(of_0, 1, 0, absl::ZeroDuration());
    EXPECT_THAT(verdict, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("missing")));
  }
  EXPECT_EQ(num_blocks(), 1);
  {
    Rendezvous of_1 = open(1);
    EXPECT_EQ(meet(of_1, 1, 1, absl::Seconds(9)), verdict);
  }
  EXPECT_EQ(num_blocks(), 0);
}

TEST_F(GroupTableTest, WhatNoClientHoldsMakesRoom) {
  // 256 MiB hold some 9,000 of these.
  for (uint64_t salt = 0; salt < 20000; ++salt) {
    ASSERT_THAT(Rendezvous::open(*links_[0], {{0, 0, 0}, {1, 1, 0}}, kRecords, salt).status(),
                IsOk());
  }
}

TEST_F(GroupTableTest, AGroupThatIsTooLargeLeavesRoomForOthers) {
  std::vector<GroupMember> many;
  for (int m = 0; m < kMaxMembers; ++m) many.push_back({m, 0, m});
  std::vector<Rendezvous> groups;
  Status status;
  for (uint64_t salt = 0; status.ok() && salt < 100; ++salt) {
    StatusOr<Rendezvous> group = Rendezvous::open(*links_[0], many, 8, salt);
    if (group.ok()) groups.push_back(*std::move(group));
    status = group.status();
  }
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("are full; drop meshes")));
  EXPECT_THAT(Rendezvous::open(*links_[0], many, 8, 1000).status(),
              StatusIs(absl::StatusCode::kResourceExhausted));
  const Rendezvous small = open(0);
}

TEST_F(GroupTableTest, AClientWhoseProcessHasEndedHoldsNothing) {
  Rendezvous of_1 = open(1);
  { const Rendezvous of_0 = open(0); }
  EXPECT_EQ(num_blocks(), 1);
  auto& life = reinterpret_cast<ControlHeader*>(links_[0]->control(1))->life;
  // Declared lost, it may still run: it keeps what it has.
  links_[0]->report_lost(1, absl::UnavailableError("client 1 does not answer"));
  { const Rendezvous of_0 = open(0); }
  EXPECT_EQ(num_blocks(), 1);
  life.fetch_or(FUTEX_OWNER_DIED);
  { const Rendezvous of_0 = open(0); }
  EXPECT_EQ(num_blocks(), 0);
  life.fetch_and(~FUTEX_OWNER_DIED);
  // A handle of a block that has been freed gives nothing back.
  const Rendezvous keep = std::move(of_1);
}

// A process that dies with the lock leaves the table as if it had done nothing.
TEST_F(GroupTableTest, ADeadHolderOfTheLockLeavesTheTableWhole) {
  const Rendezvous held = open(0);
  auto* const block = reinterpret_cast<GroupBlock*>(links_[0]->control(0) + held.block_offset());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    links_[0]->groups_led_by(0).with_block(block, held.generation(), [this] {
      // In the middle of making a block: all units are marked, and no slot says why.
      std::memset(links_[0]->control(0) + header().units_offset, 0xff,
                  kControlBytes / kHeapUnit / 8);
      raise(SIGKILL);
    });
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const Rendezvous other = open(0, /*salt=*/1);
  EXPECT_NE(other.block_offset(), held.block_offset());
  EXPECT_EQ(open(1).block_offset(), held.block_offset());
}

TEST_F(GroupTableTest, AHolderOfTheLockThatDoesNotRunIsNotWaitedForForEver) {
  const Rendezvous held = open(0);
  auto* const block = reinterpret_cast<GroupBlock*>(links_[0]->control(0) + held.block_offset());
  GroupTable impatient(
      links_[1]->control(0), /*leader=*/0, /*self=*/1, [](int) { return false; },
      /*find_stopped=*/nullptr, absl::Milliseconds(1));
  const GroupMember members[] = {{0, 0, 0}, {1, 1, 0}};
  std::thread other;
  EXPECT_TRUE(links_[0]->groups_led_by(0).with_block(block, held.generation(), [&] {
    other = std::thread([&] {
      EXPECT_THAT(impatient.open(members, kRecords, 0).status(),
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
  const GroupMember members[] = {{0, 0, 0}, {1, 1, 0}};
  Rendezvous held = open(1);
  auto* const block = reinterpret_cast<GroupBlock*>(links_[1]->control(0) + held.block_offset());
  ASSERT_EQ(pthread_mutex_lock(&header().table_lock), 0);
  std::thread other([&] {
    // Functions that may run on a thread that others wait for do not wait even so long.
    EXPECT_FALSE(links_[1]->groups_led_by(0).with_block(block, held.generation(), [] {}));
    links_[1]->report_lost(2, absl::UnavailableError("client 2 missed its heartbeats"));
    EXPECT_THAT(links_[1]->groups_led_by(0).open(members, kRecords, 1).status(),
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
      const Rendezvous group = open(c, i % kSalts);
      const Rendezvous beside = open(c, 100 + i % 2);
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
    const Rendezvous of_0 = open(0);
    const Rendezvous of_1 = open(1);
    offset = of_0.block_offset();
    generation = of_0.generation();
    EXPECT_NE(GroupTable::find(links_[2]->control(0), offset, generation), nullptr);
  }
  EXPECT_EQ(GroupTable::find(links_[2]->control(0), offset, generation), nullptr);
  const Rendezvous next = open(0, /*salt=*/1);
  EXPECT_EQ(next.block_offset(), offset);
  EXPECT_EQ(GroupTable::find(links_[2]->control(0), offset, generation), nullptr);
  auto* const block = reinterpret_cast<GroupBlock*>(links_[2]->control(0) + offset);
  EXPECT_FALSE(links_[2]->groups_led_by(0).with_block(block, generation, [] { ADD_FAILURE(); }));
  for (const uint64_t bad : {uint64_t{0}, uint64_t{8}, kControlBytes, kControlBytes + kHeapUnit}) {
    EXPECT_EQ(GroupTable::find(links_[2]->control(0), bad, generation), nullptr);
  }
}

}  // namespace
}  // namespace tessera::host
