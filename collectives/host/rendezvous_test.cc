// SPDX-License-Identifier: Apache-2.0
//
// Rendezvous by itself: which members pass, which verdict each gets, and the effect on the next
// operation.
#include "collectives/host/rendezvous.h"

#include <linux/futex.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "collectives/host/last_seen.h"
#include "collectives/host/testing/rendezvous_fixture.h"
#include "collectives/host/verdicts.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "shm/activity.h"
#include "tests/support/matchers.h"

namespace tessera::host {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::Not;
using testing::StatusIs;
using From = Rendezvous::From;

TEST_F(RendezvousTest, AMemberThatHasLeftAcknowledgesNothing) {
  open(3);
  for (const From from : {From::kOpen, From::kRunning}) {
    const uint32_t seq = from == From::kOpen ? 1 : 2;
    for (int m = 0; m < 3; ++m) ASSERT_THAT(arrive(seq, m), IsOk());
    ASSERT_THAT(group_->finish(seq, 1, Rendezvous::Then::kLeave), IsOk());
    ASSERT_THAT(group_->finish(seq, 1, Rendezvous::Then::kLeave), IsOk());
    const Status lost = absl::UnavailableError("client 1 is lost");
    EXPECT_EQ(group_->settle(seq, VerdictKind::kError, from, lost).ok(), from == From::kOpen);
    EXPECT_FALSE(group_->records().was_freed(seq + kRecords));
    // Only the third member is missing.
    if (from == From::kOpen) {
      EXPECT_THAT(group_->finish(seq, 1), IsOk());
    } else {
      EXPECT_EQ(group_->finish(seq, 1), lost);
      group_->acknowledge(seq);
    }
    EXPECT_TRUE(group_->records().was_freed(seq + kRecords));
  }
}

// tests/facts/barrier.md: double_arrival_does_not_count.
TEST_F(RendezvousTest, ArrivingTwiceCountsOnce) {
  open(2);
  EXPECT_THAT(arrive(1, 0), IsOk());
  EXPECT_THAT(arrive(1, 0), IsOk());
  EXPECT_FALSE(group_->records().all_arrived(1));
  EXPECT_THAT(group_->wait_arrived(op_that_waits(1, 0, absl::Milliseconds(20))),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("missing client 0")));
}

TEST_F(RendezvousTest, TheLastArrivalLetsAllPass) {
  open(3);
  EXPECT_THAT(arrive(1, 0), IsOk());
  EXPECT_THAT(arrive(1, 2), IsOk());
  EXPECT_FALSE(group_->records().all_arrived(1));
  EXPECT_THAT(arrive(1, 1), IsOk());
  EXPECT_TRUE(group_->records().all_arrived(1));
  for (int m = 0; m < 3; ++m) EXPECT_THAT(group_->wait_arrived(op(1, m)), IsOk());
  for (int m = 0; m < 3; ++m) EXPECT_THAT(group_->finish(1, 1), IsOk());
  EXPECT_TRUE(group_->records().is_finished(1));
}

TEST_F(RendezvousTest, ALateMemberGetsTheStoredVerdict) {
  open(2);
  EXPECT_THAT(arrive(1, 0), IsOk());
  const Status verdict = group_->wait_arrived(op_that_waits(1, 0, absl::Milliseconds(20)));
  EXPECT_THAT(verdict, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("in 20 ms")));
  EXPECT_EQ(group_->align(1, kSum).seq, 1u);
  EXPECT_EQ(arrive(1, 1), verdict);
  EXPECT_EQ(group_->settle(1, VerdictKind::kError, From::kRunning, absl::InternalError("later")),
            verdict);
}

TEST_F(RendezvousTest, AMemberThatMissedAnotherOperationGoesOnWithTheNextOne) {
  open(2);
  EXPECT_THAT(arrive(1, 0), IsOk());
  EXPECT_THAT(group_->wait_arrived(op_that_waits(1, 0, absl::ZeroDuration())), Not(IsOk()));
  Signature other = kSum;
  other.kind = OpKind::kBarrier;
  EXPECT_EQ(group_->align(1, other).seq, 2u);
  EXPECT_EQ(group_->align(1, kSum).seq, 1u);
  // No member had arrived at all: it was given up in the queue.
  EXPECT_THAT(group_->settle_timed_out(op_that_waits(2, 0, absl::ZeroDuration()), From::kOpen),
              Not(IsOk()));
  EXPECT_EQ(group_->align(2, other).seq, 2u);
}

TEST_F(RendezvousTest, AMemberThatMissedMoreThanTheRecordsHoldJoinsWhatGoesOn) {
  open(2);
  for (uint32_t seq = 1; seq <= kRecords + 2; ++seq) {
    EXPECT_TRUE(group_->wait_free(seq, absl::InfinitePast()));
    EXPECT_THAT(arrive(seq, 0), IsOk());
    if (seq == kRecords + 2) break;
    EXPECT_THAT(group_->wait_arrived(op_that_waits(seq, 0, absl::ZeroDuration())), Not(IsOk()));
  }
  EXPECT_EQ(newest_of(group_->records()), kRecords + 2);
  EXPECT_EQ(group_->align(1, kSum).seq, kRecords + 2);
  EXPECT_THAT(arrive(1, 1),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("operation 1 of the group")));
}

TEST_F(RendezvousTest, ARecordGoesOnWhenAllHaveReadItsVerdict) {
  open(2);
  for (uint32_t seq = 1; seq <= kRecords; ++seq) {
    EXPECT_THAT(
        group_->settle(seq, VerdictKind::kError, From::kOpen, absl::InternalError("broken")),
        StatusIs(absl::StatusCode::kInternal));
    group_->acknowledge(seq);
  }
  EXPECT_FALSE(group_->wait_free(kRecords + 1, absl::InfinitePast()));
  EXPECT_FALSE(group_->records().is_next(kRecords + 1));
  // It is not taken away from member 1 either.
  EXPECT_THAT(group_->settle(kRecords + 1, VerdictKind::kError, From::kOpen,
                             absl::AbortedError("not recorded")),
              StatusIs(absl::StatusCode::kAborted));
  std::thread member_1([&] {
    EXPECT_THAT(arrive(1, 1), StatusIs(absl::StatusCode::kInternal, "broken"));
    group_->acknowledge(1);
  });
  EXPECT_TRUE(group_->wait_free(kRecords + 1, absl::InfiniteFuture()));
  EXPECT_TRUE(group_->records().is_next(kRecords + 1));
  member_1.join();
}

class MetTest : public RendezvousTest {
 protected:
  Status meet(uint32_t seq, int member) {
    Rendezvous::Op meeting = op(seq, member);
    meeting.signature.inlined = true;
    group_->records().entry(seq, member).signature = kSum;
    return group_->arrive(meeting);
  }
};

TEST_F(MetTest, ARecordGoesOnWhenAllHaveArrivedAtALaterOperation) {
  open(2);
  for (uint32_t seq = 1; seq <= kRecords; ++seq) {
    for (int m = 0; m < 2; ++m) ASSERT_THAT(meet(seq, m), IsOk());
  }
  EXPECT_TRUE(group_->records().was_freed(kRecords + 1));
}

TEST_F(MetTest, ARecordGoesOnWhenAllHaveLeftIt) {
  open(2);
  for (int m = 0; m < 2; ++m) ASSERT_THAT(meet(1, m), IsOk());
  // The later ones time out, which says nothing of the first.
  for (uint32_t seq = 2; seq <= kRecords; ++seq) {
    ASSERT_THAT(group_->settle_timed_out(op(seq, 0, steady_now()), From::kOpen),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("0 of 2 devices")));
  }
  EXPECT_FALSE(group_->records().was_freed(kRecords + 1));
  group_->records().leave(1, 1);
  EXPECT_FALSE(group_->wait_free(kRecords + 1, steady_now() + absl::Milliseconds(1)));
  group_->records().leave(1, 0);
  EXPECT_TRUE(group_->records().was_freed(kRecords + 1));
}

TEST_F(MetTest, NobodyIsWaitedForAfterTheArrival) {
  open(2);
  ASSERT_THAT(meet(1, 0), IsOk());
  EXPECT_FALSE(group_->records().all_arrived(1));
  ASSERT_THAT(meet(1, 1), IsOk());
  EXPECT_TRUE(group_->records().all_arrived(1));
  EXPECT_TRUE(group_->records().is_finished(1));
  // A loss is of the next one.
  for (const From from : {From::kOpen, From::kRunning}) {
    const Status lost = absl::UnavailableError("client 1 is lost");
    EXPECT_THAT(group_->settle(1, VerdictKind::kError, from, lost), IsOk());
  }
}

TEST_F(RendezvousTest, AVerdictFromOpenDoesNotEndWhatIsRunning) {
  open(2);
  EXPECT_THAT(arrive(1, 0), IsOk());
  EXPECT_THAT(arrive(1, 1), IsOk());
  const Status error = absl::InternalError("lost");
  EXPECT_THAT(group_->settle(1, VerdictKind::kError, From::kOpen, error), IsOk());
  EXPECT_THAT(group_->finish(1, 1), IsOk());
  EXPECT_EQ(group_->settle(1, VerdictKind::kError, From::kRunning, error), error);
  EXPECT_EQ(group_->finish(1, 1), error);
  EXPECT_TRUE(failed_on_the_move(group_->records(), 1));
}

TEST_F(RendezvousTest, WhatIsFinishedIsNotSettled) {
  open(2);
  for (int m = 0; m < 2; ++m) EXPECT_THAT(arrive(1, m), IsOk());
  for (int m = 0; m < 2; ++m) EXPECT_THAT(group_->finish(1, 1), IsOk());
  EXPECT_THAT(
      group_->settle(1, VerdictKind::kError, From::kRunning, absl::InternalError("too late")),
      IsOk());
  EXPECT_THAT(group_->wait_finished(op(1, 0), From::kRunning), IsOk());
}

TEST_F(RendezvousTest, WhatAMemberHasArrivedAtIsSettled) {
  open(2);
  const Status lost = absl::UnavailableError("client 1 is lost");
  EXPECT_THAT(arrive(1, 0), IsOk());
  // Nothing is settled for member 1, which has not arrived, or for a member that is done with it.
  settle_arrived(group_->records(), 1, 0, From::kRunning, lost);
  settle_arrived(group_->records(), 0, 1, From::kRunning, lost);
  EXPECT_TRUE(group_->records().is_next(1));
  EXPECT_THAT(arrive(1, 1), IsOk());
  // A number from before the first one, as senders have it.
  settle_arrived(group_->records(), 0, 1 - kRecords, From::kRunning, lost);
  EXPECT_THAT(group_->wait_finished(op(1, 0), From::kRunning),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is lost")));
}

// A change of a message's record wakes the thread of the end that waits for it, and no other.
TEST_F(RendezvousTest, EachChangeOfAMessageRingsTheBellOfTheEndThatWaits) {
  open(2);
  group_->ring_bells();
  const auto expect_rings = [&](uint32_t sender, uint32_t receiver) {
    EXPECT_EQ(link_->own_control().activity(0).bell.exchange(0), sender);
    EXPECT_EQ(link_->own_control().activity(1).bell.exchange(0), receiver);
  };
  for (const int first : {0, 1}) {
    const uint32_t seq = first == 0 ? 1 : 2;
    EXPECT_THAT(arrive(seq, first), IsOk());
    expect_rings(0, 0);
    EXPECT_THAT(arrive(seq, 1 - first), IsOk());
    expect_rings(0, 1);
    EXPECT_THAT(group_->finish(seq, 2), IsOk());
    expect_rings(1, 0);
  }
  // Either end may wait for the verdict, or for the record.
  const Status lost = absl::UnavailableError("client 1 is lost");
  EXPECT_EQ(group_->settle(3, VerdictKind::kError, From::kOpen, lost), lost);
  expect_rings(1, 1);
  group_->acknowledge(3, 0);
  expect_rings(0, 0);
  group_->acknowledge(3, 1);
  expect_rings(1, 1);
}

// Operation 2^32 - 1 is followed by operation 1.
TEST_F(RendezvousTest, NumbersGoRound) {
  open(2);
  have_finished(UINT32_MAX - kRecords);
  uint32_t seq = UINT32_MAX - kRecords;
  for (uint32_t i = 0; i < 3 * kRecords; ++i) {
    seq = seq_after(seq);
    ASSERT_NE(seq, 0u);
    ASSERT_TRUE(group_->records().was_freed(seq)) << seq;
    ASSERT_TRUE(group_->records().is_next(seq)) << seq;
    ASSERT_EQ(group_->align(seq, kSum).seq, seq);
    ASSERT_THAT(arrive(seq, 0), IsOk());
    // Operations that member 1 has not reached are not overwritten.
    for (uint32_t later = seq_after(seq), k = 1; k < 2 * kRecords; later = seq_after(later), ++k) {
      ASSERT_EQ(group_->records().was_freed(later), &record(later) != &record(seq))
          << seq << " " << later;
    }
    ASSERT_EQ(newest_of(group_->records()), seq);
    ASSERT_FALSE(group_->records().is_finished(seq));
    ASSERT_THAT(arrive(seq, 1), IsOk());
    for (int m = 0; m < 2; ++m) ASSERT_THAT(group_->finish(seq, 1), IsOk());
    ASSERT_TRUE(group_->records().is_finished(seq));
    uint32_t next = seq_after(seq);
    while (&record(next) != &record(seq)) next = seq_after(next);
    ASSERT_EQ(seq_before(next, kRecords), seq);
    ASSERT_TRUE(group_->records().is_next(next)) << seq;
    ASSERT_FALSE(group_->records().is_next(seq_before(seq, kRecords))) << seq;
  }
}

TEST_F(RendezvousTest, AMemberCatchesUpWhereNumbersGoRound) {
  open(2);
  have_finished(UINT32_MAX - 2);
  const uint32_t first = UINT32_MAX - 1;
  uint32_t seq = first;
  for (int i = 0; i < 3; ++i, seq = seq_after(seq)) {
    ASSERT_THAT(arrive(seq, 0), IsOk());
    ASSERT_THAT(group_->wait_arrived(op_that_waits(seq, 0, absl::ZeroDuration())), Not(IsOk()));
  }
  ASSERT_EQ(seq, 2u);
  Signature other = kSum;
  other.kind = OpKind::kBarrier;
  EXPECT_EQ(group_->align(first, other).seq, 2u);
  // All three operations have their verdict: a member that passes over them ends up here.
  group_->pass_over(first, 2);
  EXPECT_EQ(newest_of(group_->records()), 1u);
  // A member that has missed more than the records hold.
  for (uint32_t k = 0; k < kRecords; ++k, seq = seq_after(seq)) {
    ASSERT_TRUE(group_->wait_free(seq, absl::InfinitePast()));
    ASSERT_THAT(arrive(seq, 0), IsOk());
    ASSERT_THAT(group_->wait_arrived(op_that_waits(seq, 0, absl::ZeroDuration())), Not(IsOk()));
  }
  EXPECT_EQ(group_->align(first, kSum).seq, seq);
}

TEST_F(RendezvousTest, ALossEndsWhatWasBegunWhereNumbersGoRound) {
  open(2);
  have_finished(UINT32_MAX - 1);
  ASSERT_THAT(arrive(UINT32_MAX, 0), IsOk());
  ASSERT_THAT(arrive(1, 0), IsOk());
  settle_arrived(group_->records(), 0, UINT32_MAX - 1, From::kRunning,
                 absl::UnavailableError("lost"));
  for (const uint32_t seq : {UINT32_MAX, uint32_t{1}}) {
    EXPECT_THAT(group_->wait_arrived(op(seq, 0)), StatusIs(absl::StatusCode::kUnavailable));
  }
}

// A record that was never used does not count as a record of operation 0.
TEST_F(RendezvousTest, WhatWasNeverUsedIsNotSettled) {
  open(2);
  settle_arrived(group_->records(), 0, 0 - kRecords, From::kRunning,
                 absl::UnavailableError("lost"));
  for (uint32_t seq = 1; seq <= kRecords; ++seq) {
    EXPECT_TRUE(State::unpack(record(seq).state).is_unused());
  }
}

// The client of the last member to arrive, or to finish, dies before it wakes the others: they are
// woken when the loss is known.
TEST_F(RendezvousTest, AWakeUpThatDiedIsMadeUpForByTheLoss) {
  open(2);
  uint32_t seq = 0;
  const auto expect_woken = [&](const State& last, auto wait) {
    ASSERT_THAT(arrive(++seq, 0), IsOk());
    Status woken = absl::UnknownError("asleep");
    if (last.finished > 0) {
      ASSERT_THAT(arrive(seq, 1), IsOk());
      ASSERT_THAT(group_->finish(seq, 1), IsOk());
    }
    std::thread waiter([&] { woken = wait(); });
    while (record(seq).num_sleepers.load() == 0) std::this_thread::yield();
    State state = last;
    state.seq = seq;
    record(seq).state = state.pack();
    settle_arrived(group_->records(), 0, seq - 1, From::kRunning, absl::UnavailableError("lost"));
    waiter.join();
    EXPECT_NE(woken.code(), absl::StatusCode::kUnknown);
  };
  const auto wait_arrived = [&] { return group_->wait_arrived(op(seq, 0)); };
  expect_woken({.phase = Phase::kRunning}, wait_arrived);
  expect_woken({.arrived = 2, .phase = Phase::kMet}, wait_arrived);
  expect_woken({.phase = Phase::kFailed, .settler = 1}, wait_arrived);
  expect_woken({.finished = 2, .phase = Phase::kRunning},
               [&] { return group_->wait_finished(op(seq, 0), From::kRunning); });
}

TEST_F(RendezvousTest, SharingOfOutputsIsNamed) {
  open(2);
  Signature inlined = kSum;
  inlined.inlined = true;
  EXPECT_THAT(arrive(1, 0), IsOk());
  EXPECT_THAT(arrive(1, 1, inlined), IsOk());
  const Status verdict = group_->check_signatures(op(1, 0));
  EXPECT_THAT(verdict, StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("sharing of outputs differs between clients")));
  EXPECT_THAT(verdict, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has some, ")));
}

TEST_F(RendezvousTest, AMissingDeviceOfAClientIsNamed) {
  open(3);
  EXPECT_THAT(arrive(1, 0), IsOk());
  EXPECT_THAT(group_->wait_arrived(op_that_waits(1, 0, absl::ZeroDuration())),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("1 of 3 devices arrived"), HasSubstr("missing client 0 "),
                             HasSubstr(" devices 1, 2, which has not run any operation yet"))));
}

TEST_F(RendezvousTest, DifferentSignaturesAreNamed) {
  open(2);
  Signature other = kSum;
  other.count = 9;
  EXPECT_THAT(arrive(1, 0), IsOk());
  EXPECT_THAT(arrive(1, 1, other), IsOk());
  const auto is_mismatch =
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("count differs between clients: client 0 (host-a, pid "));
  const Status verdict = group_->check_signatures(op(1, 0));
  EXPECT_THAT(verdict, is_mismatch);
  EXPECT_THAT(verdict, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("device 1 has 9")));
  EXPECT_EQ(group_->check_signatures(op(1, 1)), verdict);
  EXPECT_FALSE(failed_on_the_move(group_->records(), 1));
}

// Issue 15: two equal texts were printed as what differs.
TEST_F(RendezvousTest, TextsThatDifferWhereTheyWereCutAreSaidToDiffer) {
  open(2);
  for (int m = 0; m < 2; ++m) {
    MemberEntry& entry = group_->records().entry(1, m);
    std::strcpy(entry.detail, "\"a...z\"");
    Signature signature = kSum;
    signature.detail_hash = 100 + m;
    EXPECT_THAT(arrive(1, m, signature), IsOk());
  }
  EXPECT_THAT(group_->check_signatures(op(1, 0)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(" has \"a...z\", which differ in what is left out here; it is")));
}

// Hammered: a deadline and the last arrival come at the same time. Either all pass or none does.
TEST_F(RendezvousTest, ADeadlineAndTheLastArrivalCannotBothWin) {
  open(2);
  constexpr uint32_t kRounds = 2000;
  int num_passed = 0;
  std::vector<Status> results[2] = {std::vector<Status>(kRounds + 1),
                                    std::vector<Status>(kRounds + 1)};
  std::atomic<uint32_t> round[2] = {0, 0};
  const auto member = [&](int m) {
    for (uint32_t seq = 1; seq <= kRounds; ++seq) {
      round[m] = seq;
      while (round[1 - m] < seq) std::this_thread::yield();
      group_->wait_free(seq, absl::InfiniteFuture());
      // Member 1 comes later by a time that sweeps over the deadline of member 0.
      const absl::Time until = steady_now() + absl::Microseconds(seq % 200);
      while (m == 1 && steady_now() < until) {
      }
      Status status = arrive(seq, m);
      if (status.ok()) {
        status = group_->wait_arrived(
            op_that_waits(seq, m, m == 0 ? absl::Microseconds(100) : absl::Seconds(20)));
      }
      if (status.ok()) status = group_->finish(seq, 1);
      if (status.ok()) status = group_->wait_finished(op(seq, m), From::kOpen);
      if (!status.ok()) group_->acknowledge(seq, m);
      results[m][seq] = status;
    }
  };
  std::thread other([&] { member(1); });
  member(0);
  other.join();
  for (uint32_t seq = 1; seq <= kRounds; ++seq) {
    ASSERT_EQ(results[0][seq], results[1][seq]) << seq;
    num_passed += results[0][seq].ok() ? 1 : 0;
  }
  RecordProperty("num_passed", num_passed);
}

// A device's thread is delayed while it writes its activity: another member must not follow the
// half-written offset, because it need not be the offset of a group.
TEST_F(RendezvousTest, HalfWrittenActivityIsNotFollowed) {
  open(2);
  shm::DeviceActivity& slot = shm::activity_slot(link_->memory().control(0), 1);
  slot.kind = shm::DeviceActivity::kWaiting;
  slot.block_offset = shm::kControlBytes;  // following it would fault
  slot.version = 1;
  EXPECT_FALSE(shm::read_activity(slot).consistent);
  EXPECT_THAT(arrive(1, 0), IsOk());
  EXPECT_THAT(group_->wait_arrived(op_that_waits(1, 0, absl::Milliseconds(20))),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("missing client 0")));
  slot.version = 2;
  EXPECT_TRUE(shm::read_activity(slot).consistent);
}

// A code that no member wrote: no enumerator out of range comes of it.
TEST_F(RendezvousTest, OverwrittenCodesAreNoOperations) {
  open(2);
  shm::DeviceActivity& slot = shm::activity_slot(link_->memory().control(0), 1);
  for (const uint64_t word : {uint64_t{0xff}, uint64_t{0xff0002}, uint64_t{0xf000002},
                              uint64_t{0xf0000002}, UINT64_MAX}) {
    slot.kind.store(word);
    const shm::ActivitySnapshot seen = last_seen(*link_, 0, 1);
    EXPECT_FALSE(seen.consistent);
    EXPECT_EQ(describe_last_seen(seen), "which has not run any operation yet");
  }
}

// The activity of a device without a label, in the message of a member that waits for it.
TEST_F(RendezvousTest, WhatHasNoLabelIsNamedByWhatItIs) {
  open(2);
  uint32_t seq = 0;
  const auto expect_text = [&](const std::string& text) {
    Rendezvous::Op waits = op_that_waits(++seq, 0, absl::Milliseconds(1));
    waits.label = nullptr;
    waits.signature = kSum;
    EXPECT_THAT(arrive(seq, 0), IsOk());
    EXPECT_THAT(
        group_->wait_arrived(waits),
        StatusIs(
            absl::StatusCode::kDeadlineExceeded,
            AllOf(HasSubstr("all_reduce sum f32 of 8 elements on devices 0, 1: 1 of 2 devices"),
                  HasSubstr(text))));
  };
  expect_text("which has not run any operation yet");
  shm::Activity activity;
  activity.kind = shm::DeviceActivity::kWaiting;
  activity.code = activity_code(OpKind::kBroadcast, DType::kFloat64, ReduceOp::kSum);
  activity.count = int64_t{1} << 40;
  activity.block_offset = group_->records().id().offset;
  activity.generation = group_->records().id().generation;
  shm::publish_activity(link_->own_control().activity(1), activity, "");
  expect_text("waiting in broadcast f64 of 1099511627776 elements on devices 0, 1 for ");
  link_->own_control().observer(1)->task_finished();
  expect_text("last seen at broadcast f64 of 1099511627776 elements on devices 0, 1, ");
  // Alone it waits for no other device.
  activity.kind = shm::DeviceActivity::kRunning;
  activity.block_offset = 0;
  shm::publish_activity(link_->own_control().activity(1), activity, "");
  expect_text("still in broadcast f64 of 1099511627776 elements on devices 1 for ");
  link_->own_control().observer(1)->task_finished();
  shm::publish_activity(link_->own_control().activity(1), activity, "relayout #3");
  expect_text("still in relayout #3 for ");
}

TEST_F(RendezvousTest, GroupsOfTheSameDevicesShareABlockUnlessTheSaltDiffers) {
  open(3);
  const std::vector<shm::GroupMember> members = {{0, 0, 0}, {1, 0, 1}, {2, 0, 2}};
  const std::vector<shm::GroupMember> reversed = {{2, 0, 2}, {1, 0, 1}, {0, 0, 0}};
  TESSERA_ASSERT_OK_AND_ASSIGN(const Rendezvous same,
                               Rendezvous::open(*link_, members, kRecords, 0));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Rendezvous salted,
                               Rendezvous::open(*link_, members, kRecords, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Rendezvous other_order,
                               Rendezvous::open(*link_, reversed, kRecords, 0));
  EXPECT_EQ(same.records().id().offset, group_->records().id().offset);
  EXPECT_NE(salted.records().id().offset, group_->records().id().offset);
  EXPECT_NE(other_order.records().id().offset, group_->records().id().offset);
}

TEST_F(RendezvousTest, TooManyMembersAreRefused) {
  open(2);
  EXPECT_THAT(Rendezvous::open(*link_, std::vector<shm::GroupMember>(kMaxMembers + 1), kRecords, 0)
                  .status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("a group of 4001 devices")));
}

TEST_F(RendezvousTest, AFullRegionIsSaid) {
  open(2);
  std::vector<Rendezvous> groups;
  Status status;
  for (uint64_t salt = 1; status.ok() && salt < 20000; ++salt) {
    StatusOr<Rendezvous> group = Rendezvous::open(*link_, {{0, 0, 0}, {1, 0, 1}}, 16, salt);
    if (group.ok()) groups.push_back(*std::move(group));
    status = group.status();
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("the 256 MiB in which client 0 keeps them are full; drop "
                                         "meshes and groups that are not needed")));
}

}  // namespace
}  // namespace tessera::host
