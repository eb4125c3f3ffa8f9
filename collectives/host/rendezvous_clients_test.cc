// SPDX-License-Identifier: Apache-2.0
//
// Rendezvous between clients: circles of waits, and members that are held up, stopped or lost while
// they settle an operation or arrive at it.
#include <linux/futex.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/host/last_seen.h"
#include "collectives/host/rendezvous.h"
#include "collectives/host/rendezvous_texts.h"
#include "collectives/host/testing/rendezvous_fixture.h"
#include "collectives/host/verdicts.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "shm/activity.h"
#include "shm/testing/three_clients.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::host {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::Not;
using testing::StatusIs;
using From = Rendezvous::From;

// Client 0 waits in an operation of all, and client 1 in an operation of a part of them: the error
// that client 0 gets when no other client arrives.
class ConflictTest : public shm::ThreeClientsTest {
 protected:
  Status wait_crosswise(absl::string_view label_of_pair = "") {
    TESSERA_ASSIGN_OR_RETURN(Rendezvous pair,
                             Rendezvous::open(*links_[1], {{0, 0, 0}, {1, 1, 0}}, kRecords, 0));
    TESSERA_ASSIGN_OR_RETURN(
        Rendezvous all,
        Rendezvous::open(*links_[0], {{0, 0, 0}, {1, 1, 0}, {2, 2, 0}}, kRecords, 0));
    shm::Activity waiting;
    waiting.kind = shm::DeviceActivity::kWaiting;
    waiting.code = activity_code(OpKind::kBarrier, DType::kBool, ReduceOp::kSum);
    waiting.seq = 1;
    waiting.leader_client = pair.records().id().leader_client;
    waiting.block_offset = pair.records().id().offset;
    waiting.generation = pair.records().id().generation;
    shm::publish_activity(links_[1]->own_control().activity(0), waiting, label_of_pair);
    pair.records().entry(1, 1).signature = kSum;
    TESSERA_RETURN_IF_ERROR(pair.arrive(op(1)));
    all.records().entry(1, 0).signature = kSum;
    TESSERA_RETURN_IF_ERROR(all.arrive(op(0)));
    return all.wait_arrived(op(0));
  }
  static Rendezvous::Op op(int member) {
    const absl::Time now = steady_now();
    return {.seq = 1,
            .member = member,
            .label = &kLabel,
            .detail_field = "counts",
            .name_hash = 0,
            .holds_device = true,
            .start = now,
            .deadline = now + absl::Milliseconds(20)};
  }
};

TEST_F(ConflictTest, TwoThatWaitForEachOtherAreTold) {
  EXPECT_THAT(wait_crosswise(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("operations differ between clients: client 0 "),
                             HasSubstr(" waits in all_reduce, client 1 "),
                             HasSubstr(" waits in barrier on devices 0, 1; make the same"))));
}

// Two operations of one label, which their groups tell apart.
TEST_F(ConflictTest, OperationsOfOneLabelAreToldApart) {
  EXPECT_THAT(
      wait_crosswise("all_reduce"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr(" waits in all_reduce in the group of devices 0, 1, 2, client 1 "),
                     HasSubstr(" waits in all_reduce in the group of devices 0, 1; make the"))));
}

// Client 1 knows that client 2 is dead, and has gone on; client 0 is about to be told.
TEST_F(ConflictTest, WhoPassesOverADeadClientMakesNoMistake) {
  auto* header = reinterpret_cast<shm::ControlHeader*>(links_[0]->memory().control(2));
  header->life.fetch_or(FUTEX_OWNER_DIED);
  EXPECT_THAT(wait_crosswise(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("missing")));
}

// Client 2 begins to settle an operation of all, and comes no further.
class SettlerTest : public shm::ThreeClientsTest {
 protected:
  void SetUp() override {
    shm::ThreeClientsTest::SetUp();
    for (int c = 0; c < 3; ++c) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          Rendezvous opened,
          Rendezvous::open(*links_[c], {{0, 0, 0}, {1, 1, 0}, {2, 2, 0}}, kRecords, 0));
      groups_.push_back(std::make_unique<Rendezvous>(std::move(opened)));
    }
  }
  static Rendezvous::Op op(int member, absl::Time deadline = absl::InfiniteFuture()) {
    return {.seq = 1,
            .member = member,
            .label = &kLabel,
            .detail_field = "counts",
            .start = steady_now(),
            .deadline = deadline};
  }
  OpRecord& record() { return reinterpret_cast<OpRecord*>(&groups_[0]->records().entry(1, 0))[-1]; }
  void begin_to_settle(uint32_t settler) {
    const State state = {.seq = 1, .phase = Phase::kSettling, .settler = settler};
    record().state = state.pack();
  }
  Status settle(int client) {
    const Rendezvous::Op own = op(client);
    return groups_[client]->settle(1, VerdictKind::kError, From::kRunning,
                                   absl::InternalError("another error"), &own);
  }

  std::vector<std::unique_ptr<Rendezvous>> groups_;
};

TEST_F(SettlerTest, OneThatDiesIsReplacedAtOnceWithOneVerdict) {
  ASSERT_THAT(groups_[0]->arrive(op(0)), IsOk());
  ASSERT_THAT(groups_[1]->arrive(op(1)), IsOk());
  begin_to_settle(1 + 2);
  Status told[2];
  std::thread other([&] { told[1] = groups_[1]->wait_arrived(op(1)); });
  reinterpret_cast<shm::ControlHeader*>(links_[0]->memory().control(2))
      ->life.fetch_or(FUTEX_OWNER_DIED);
  told[0] = groups_[0]->wait_arrived(op(0, steady_now()));
  other.join();
  EXPECT_THAT(
      told[0],
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr("all_reduce (operation 1 of the group) failed, and client 2 "),
                     HasSubstr("was lost before it could say why"))));
  EXPECT_EQ(told[1], told[0]);
  // Clients that settle later get the same verdict, and so does the settler if it is resumed.
  for (int client = 0; client < 3; ++client) EXPECT_EQ(settle(client), told[0]);
  EXPECT_TRUE(groups_[0]->records().is_finished(1));
  for (int client = 0; client < 3; ++client) {
    EXPECT_FALSE(groups_[0]->records().was_freed(1 + kRecords));
    groups_[client]->acknowledge(1, client);
  }
  EXPECT_TRUE(groups_[0]->records().was_freed(1 + kRecords));
}

// A number of no client, as a stray write would leave it.
TEST_F(SettlerTest, OneThatIsUnknownIsNotWaitedFor) {
  for (const uint32_t settler : {0u, 4u, 0xfffu}) {
    begin_to_settle(settler);
    EXPECT_THAT(settle(0), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("was lost before")));
  }
}

TEST_F(SettlerTest, OneThatIsHeldUpIsWaitedForPastTheDeadline) {
  ASSERT_THAT(groups_[0]->arrive(op(0)), IsOk());
  begin_to_settle(1 + 2);
  Status told;
  std::thread waiter([&] { told = groups_[0]->wait_arrived(op(0, steady_now())); });
  while (record().num_sleepers.load() == 0) std::this_thread::yield();
  // Goes on.
  record().verdict_code = static_cast<int>(absl::StatusCode::kAborted);
  record().state = State{.seq = 1, .phase = Phase::kFailed, .settler = 1 + 2}.pack();
  waiter.join();
  EXPECT_THAT(told, StatusIs(absl::StatusCode::kAborted));
}

// Calls under locks, and calls that need no verdict, do not wait for a settler that is stopped:
// each of these calls took 20 s. The acknowledgements count although the verdict is written later.
TEST_F(SettlerTest, OneThatIsStoppedHoldsUpNobodyThatNeedsNoVerdict) {
  const testing::TestDeadline deadline(absl::Seconds(10), "less than the time limit of a settler");
  for (int member = 0; member < 3; ++member) {
    ASSERT_THAT(groups_[member]->arrive(op(member)), IsOk());
  }
  begin_to_settle(1 + 2);
  Rendezvous& group = *groups_[0];
  const Status lost = absl::UnavailableError("client 1 is lost");
  settle_at_once(group.records(), 1, From::kRunning, lost);
  settle_arrived(group.records(), 0, 0, From::kRunning, lost);
  EXPECT_FALSE(group.records().has_result(1));
  group.pass_over(1, 2);
  group.acknowledge(1);
  EXPECT_EQ(State::unpack(record().state).phase, Phase::kSettling);
  EXPECT_FALSE(group.records().was_freed(1 + kRecords));
  // Client 2 goes on: it finds the state as the acknowledgements have left it.
  State state = State::unpack(record().state);
  EXPECT_EQ(state.finished, 2u);
  state.phase = Phase::kFailed;
  record().state = state.pack();
  EXPECT_TRUE(group.records().has_result(1));
  EXPECT_FALSE(group.records().was_freed(1 + kRecords));
  group.acknowledge(1);
  EXPECT_TRUE(group.records().was_freed(1 + kRecords));
}

// A caller whose deadline has passed does not wait 20 s for a settler that is stopped: the settler
// is named. The operation has failed, whatever the settler says later.
TEST_F(SettlerTest, OneThatIsStoppedIsWaitedForUntilShortlyAfterTheDeadline) {
  const testing::TestDeadline deadline(absl::Seconds(15), "less than the time limit of a settler");
  const auto names_it =
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("all_reduce (operation 1 of the group) failed, and client 2 "),
                     HasSubstr(" has not said why in 1")));
  ASSERT_THAT(groups_[0]->arrive(op(0)), IsOk());
  begin_to_settle(1 + 2);
  const Rendezvous::Op late = op(0, steady_now());
  EXPECT_THAT(groups_[0]->wait_arrived(late), names_it);
  EXPECT_THAT(groups_[0]->finish(1, 1, Rendezvous::Then::kWait, &late), names_it);
  EXPECT_THAT(groups_[1]->arrive(op(1, steady_now())), names_it);
  // A deadline that passes while the member waits.
  std::atomic<bool> is_given_up{false};
  Rendezvous::Op waits = op(0);
  waits.is_given_up = &is_given_up;
  std::thread waiter([&] { EXPECT_THAT(groups_[0]->wait_arrived(waits), names_it); });
  while (record().num_sleepers.load() == 0) std::this_thread::yield();
  is_given_up = true;
  waiter.join();
}

// The settler that is lost is replaced by a caller that does not wait.
TEST_F(SettlerTest, OneThatDiesIsNotWaitedForByALookAtTheResult) {
  ASSERT_THAT(groups_[0]->arrive(op(0)), IsOk());
  begin_to_settle(1 + 2);
  EXPECT_FALSE(groups_[0]->records().has_result(1));
  reinterpret_cast<shm::ControlHeader*>(links_[0]->memory().control(2))
      ->life.fetch_or(FUTEX_OWNER_DIED);
  EXPECT_TRUE(groups_[0]->records().has_result(1));
  EXPECT_EQ(State::unpack(record().state).phase, Phase::kOrphaned);
}

// Client 1 is held up between its entry and its arrival: it is not counted, and so it is missing.
TEST_F(SettlerTest, WhatIsMissingIsWhatIsNotCounted) {
  ASSERT_THAT(groups_[0]->arrive(op(0)), IsOk());
  ASSERT_THAT(groups_[2]->arrive(op(2)), IsOk());
  for (const uint16_t place : {uint16_t{3}, MemberEntry::kNoPlace}) {
    groups_[0]->records().entry(1, 1).place = place;
    groups_[0]->records().entry(1, 1).seq = 1;
    const State open = {.seq = 1, .arrived = 2};
    const std::string text(describe_missing(groups_[0]->records(), op(0), open).message());
    EXPECT_THAT(text, AllOf(HasSubstr("2 of 3 clients arrived"), HasSubstr("missing client 1 "),
                            Not(HasSubstr("client 0 ")), Not(HasSubstr("client 2 "))));
  }
  // It was settled just before; its place is the number of an arrival that was counted.
  groups_[0]->records().entry(1, 1).place = 2;
  groups_[0]->records().entry(1, 1).seq = 1;
  EXPECT_THAT(groups_[0]->wait_arrived(op(0, steady_now())),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr(": the timeout is 0 or had already passed: 2 of 3 clients "
                                 "arrived; one was about to arrive")));
}

// Blocks that are given back and used again (group_table.h).
class ReopenedGroupTest : public shm::ThreeClientsTest {
 protected:
  // Opens the group of clients 0 and 1 as `client`.
  Rendezvous open(int client, uint64_t salt) {
    StatusOr<Rendezvous> opened =
        Rendezvous::open(*links_[client], {{0, 0, 0}, {1, 1, 0}}, kRecords, salt);
    EXPECT_THAT(opened.status(), IsOk());
    return *std::move(opened);
  }
  static Rendezvous::Op op(int member, absl::Duration timeout) {
    Rendezvous::Op result;
    result.seq = 1;
    result.member = member;
    result.detail_field = "counts";
    result.signature = kSum;
    result.start = steady_now();
    result.deadline = result.start + timeout;
    return result;
  }
  static Status meet(Rendezvous& group, int member, absl::Duration timeout) {
    group.records().entry(1, member).signature = kSum;
    TESSERA_RETURN_IF_ERROR(group.arrive(op(member, timeout)));
    return group.wait_arrived(op(member, timeout));
  }
};

TEST_F(ReopenedGroupTest, NothingIsLeftOfTheGroupBefore) {
  for (uint64_t salt = 0; salt < 50; ++salt) {
    Rendezvous of_0 = open(0, salt);
    const Rendezvous of_1 = open(1, salt);
    EXPECT_FALSE(of_0.records().all_arrived(1));
    for (int m = 0; m < 2; ++m) {
      of_0.records().entry(1, m).signature = kSum;
      ASSERT_THAT(of_0.arrive(op(m, absl::Seconds(9))), IsOk());
    }
  }
}

TEST_F(ReopenedGroupTest, ALateClientFindsTheVerdictOfAGroupThatTheOthersGaveBack) {
  Status verdict;
  {
    Rendezvous of_0 = open(0, 0);
    verdict = meet(of_0, 0, absl::ZeroDuration());
    EXPECT_THAT(verdict, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("missing")));
  }
  Rendezvous of_1 = open(1, 0);
  EXPECT_EQ(meet(of_1, 1, absl::Seconds(9)), verdict);
}

}  // namespace
}  // namespace tessera::host
