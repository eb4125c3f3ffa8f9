// SPDX-License-Identifier: Apache-2.0
//
// Operations that waiters give up at any moment: all members do one or none does, and the group
// goes on.
#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/group.h"
#include "collectives/host/op_record.h"
#include "collectives/host/rendezvous.h"
#include "collectives/host/testing/host_job.h"
#include "collectives/testing/start_operation.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "shm/activity.h"
#include "shm/control.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::host {
namespace {

using conformance::Member;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

// One call of a member: 16 bits of its sum for each member, the number of the call that it was in.
struct Call {
  std::vector<int64_t> in;
  std::vector<int64_t> out;
};

struct MemberCalls {
  MemberCalls(int member, int num_calls, int size) {
    for (int64_t i = 1; i <= num_calls; ++i) {
      calls.push_back({std::vector<int64_t>(size, i << 16 * member), std::vector<int64_t>(size)});
    }
    works.reserve(num_calls);
  }
  Work start(const Group& group) {
    Call& call = calls[works.size()];
    works.push_back(group.all_reduce<int64_t>(call.in, absl::MakeSpan(call.out), ReduceOp::kSum));
    num_started.store(static_cast<int>(works.size()), std::memory_order_release);
    return works.back();
  }

  std::vector<Call> calls;
  std::vector<Work> works;
  std::atomic<int> num_started{0};
};

absl::Duration moment(std::minstd_rand& random) {
  return absl::Microseconds(random() % (random() % 2 == 0 ? 20 : 1000));
}

// Waits for the member's operations from another thread, with deadlines of its own.
void wait_beside(const MemberCalls& own, uint32_t seed) {
  std::minstd_rand random(seed);
  for (int i = 0; i < static_cast<int>(own.calls.size()); ++i) {
    while (own.num_started.load(std::memory_order_acquire) <= i) std::this_thread::yield();
    if (random() % 4 == 0) own.works[i].wait(moment(random)).IgnoreError();
  }
}

void make_calls(const Group& group, MemberCalls& own, uint32_t seed) {
  std::minstd_rand random(seed);
  for (size_t i = 0; i < own.calls.size(); ++i) {
    const Work work = own.start(group);
    const uint32_t chance = random() % 16;
    if (chance < 6) work.wait(moment(random)).IgnoreError();
    if (chance >= 6 && chance < 10) work.await().IgnoreError();
    for (uint32_t n = random() % 64; chance == 10 && n > 0; --n) std::this_thread::yield();
  }
  for (const Work& work : own.works) work.await().IgnoreError();
}

// The members may be at different calls: a member that is ahead fails until the others have caught
// up.
Status meet_again(const Group& group) {
  while (true) {
    const Arguments arguments = {.detail = std::string("\"end\""), .detail_field = "name"};
    const Status status = internal::start_operation(group, CollectiveSpec(), {}, arguments).await();
    if (status.ok() || absl::IsInternal(status)) return status;
  }
}

void expect_all_or_none(const std::vector<std::unique_ptr<MemberCalls>>& members,
                        bool may_be_torn) {
  for (size_t m = 0; m < members.size(); ++m) {
    for (size_t i = 0; i < members[m]->calls.size(); ++i) {
      const std::vector<int64_t>& out = members[m]->calls[i].out;
      const Status status = members[m]->works[i].await();
      ASSERT_TRUE(may_be_torn || (out[0] != 0) == status.ok()) << status;
      if (!status.ok()) continue;
      for (size_t k = 0; k < members.size(); ++k) {
        const int64_t theirs = (out[0] >> 16 * k & 0xffff) - 1;
        ASSERT_GE(theirs, 0);
        ASSERT_TRUE(k != m || theirs == static_cast<int64_t>(i));
        ASSERT_EQ(members[k]->calls[theirs].out, out);
        ASSERT_THAT(members[k]->works[theirs].await(), IsOk());
      }
    }
  }
}

TEST(DeadlinesTest, AllMembersDoAnOperationOrNone) {
  constexpr int kCalls = 300;
  uint32_t seed = 0;
  for (const std::vector<int>& devices : {std::vector<int>{2}, {3}, {1, 1}, {2, 1}}) {
    // Sizes that go by the entries, and a size that does not.
    for (const int size : {1, 300, 1}) {
      seed += 100;
      const testing::TestDeadline deadline(absl::Seconds(60), absl::StrCat("seed ", seed));
      auto job = HostJob::create(devices);
      ASSERT_THAT(job, IsOk());
      std::vector<std::unique_ptr<MemberCalls>> members;
      for (int m = 0; m < (*job)->num_devices(); ++m) {
        members.push_back(std::make_unique<MemberCalls>(m, kCalls, size));
      }
      EXPECT_THAT((*job)->run([&](const Member& m) -> Status {
        std::thread beside([&] { wait_beside(*members[m.position], seed + m.position); });
        make_calls(m.group, *members[m.position], seed + 10 + m.position);
        beside.join();
        return meet_again(m.group);
      }),
                  IsOk());
      // That, among several clients, may fail after all have arrived.
      const bool may_be_torn = size > 1 && devices.size() > 1;
      expect_all_or_none(members, may_be_torn);
    }
  }
}

// Member 0 gives up its first operation, and all those queued behind its second one. Member 1
// arrives only now, and still takes part in the second operation.
TEST(DeadlinesTest, WhatIsGivenUpBehindAnotherDoesNotKeepAMemberFromThat) {
  constexpr int kCalls = 9;  // so that the last has the record of the first
  constexpr int kGoesOn = 1;
  const testing::TestDeadline deadline(absl::Seconds(60), "deadlines_test");
  for (const std::vector<int>& devices : {std::vector<int>{2}, {1, 1}}) {
    auto job = HostJob::create(devices);
    ASSERT_THAT(job, IsOk());
    MemberCalls calls[] = {{0, kCalls, 1}, {1, kCalls, 1}};
    std::promise<void> given_up;
    EXPECT_THAT((*job)->run([&](const Member& m) -> Status {
      if (m.position == 1) given_up.get_future().wait();
      for (int k = 0; k < kCalls; ++k) {
        const Work work = calls[m.position].start(m.group);
        if (m.position == 1) work.await().IgnoreError();
        if (m.position == 0 && k != kGoesOn) work.wait(absl::Milliseconds(5)).IgnoreError();
      }
      if (m.position == 0) given_up.set_value();
      return calls[m.position].works[kGoesOn].await();
    }),
                IsOk());
    for (const MemberCalls& own : calls) {
      for (int k = 0; k < kCalls; ++k) {
        if (k == kGoesOn) continue;
        EXPECT_THAT(own.works[k].await(), StatusIs(absl::StatusCode::kDeadlineExceeded)) << k;
      }
    }
  }
}

// An operation that is given up in the queue says what its device waits for, and for which client.
TEST(DeadlinesTest, WhatIsGivenUpInTheQueueNamesWhomTheDeviceWaitsFor) {
  const testing::TestDeadline deadline(absl::Seconds(60), "deadlines_test");
  auto job = HostJob::create(std::vector<int>{1, 1}, absl::Seconds(40));
  ASSERT_THAT(job, IsOk());
  StatusOr<Group> groups[] = {(*job)->group(0, {0, 1}), (*job)->group(1, {0, 1})};
  ASSERT_THAT(groups[0], IsOk());
  ASSERT_THAT(groups[1], IsOk());
  MemberCalls calls[] = {{0, 2, 1}, {1, 2, 1}};
  const Work first = calls[0].start(*groups[0]);
  const shm::DeviceActivity& device = (*job)->client(0).link->own_control().activity(0);
  while (shm::read_kind(device) != shm::DeviceActivity::kWaiting) std::this_thread::yield();
  const Status second = calls[0].start(*groups[0]).wait(absl::Milliseconds(1));
  EXPECT_THAT(second,
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("on devices 0, 1: not done in "),
                             HasSubstr("ms; device 0 is busy with earlier work: all_reduce sum "
                                       "i64 of 1 elements on devices 0, 1: 1 of 2 clients arrived"),
                             HasSubstr("; missing client 1 "))));
  EXPECT_THAT(calls[1].start(*groups[1]).await(), IsOk());
  EXPECT_THAT(first.await(), IsOk());
  EXPECT_EQ(calls[1].start(*groups[1]).await(), second);
}

// Both members give up an operation that is queued behind another one and that their devices have
// not begun. They get one text, also if they have waited for different times.
TEST(DeadlinesTest, WhatSeveralGiveUpInTheQueueHasOneVerdict) {
  const testing::TestDeadline deadline(absl::Seconds(60), "deadlines_test");
  for (const std::vector<int>& devices : {std::vector<int>{2}, {1, 1}}) {
    auto job = HostJob::create(devices, absl::Seconds(40));
    ASSERT_THAT(job, IsOk());
    std::promise<void> resume;
    const std::shared_future<void> resumed = resume.get_future().share();
    std::vector<Group> groups;
    std::vector<std::unique_ptr<MemberCalls>> calls;
    for (int m = 0; m < 2; ++m) {
      const int client = devices.size() == 1 ? 0 : m;
      const int ordinal = devices.size() == 1 ? m : 0;
      (*job)->client(client).streams[ordinal]->enqueue("a task", [resumed] {
        resumed.wait();
        return absl::OkStatus();
      });
      // An idle device is not said to be busy.
      const shm::DeviceActivity& device =
          (*job)->client(client).link->own_control().activity(ordinal);
      while (shm::read_kind(device) != shm::DeviceActivity::kRunning) std::this_thread::yield();
      StatusOr<Group> group = (*job)->group(m, {0, 1});
      ASSERT_THAT(group, IsOk());
      groups.push_back(*std::move(group));
      calls.push_back(std::make_unique<MemberCalls>(m, 3, 1));
      for (int k = 0; k < 3; ++k) calls[m]->start(groups[m]);
    }
    const Status told = calls[0]->works[1].wait(absl::Milliseconds(1));
    EXPECT_THAT(told, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               AllOf(HasSubstr(": not done in "),
                                     HasSubstr(" ms; device 0 is busy with earlier work"))));
    EXPECT_EQ(calls[1]->works[1].wait(absl::Milliseconds(3)), told);
    resume.set_value();
    for (int m = 0; m < 2; ++m) {
      EXPECT_THAT(calls[m]->works[0].await(), IsOk());
      EXPECT_EQ(calls[m]->works[1].await(), told);
      EXPECT_THAT(calls[m]->works[2].await(), IsOk());
    }
  }
}

// Client 1 is stopped while it settles the operation that member 0 waits in. A wait with a deadline
// returns soon after that and names client 1, although the device would wait for it up to 20 s.
TEST(DeadlinesTest, AWaitDoesNotOutlastASettlerThatIsStopped) {
  const testing::TestDeadline deadline(absl::Seconds(15), "less than the time limit of a settler");
  auto job = HostJob::create(std::vector<int>{1, 1}, absl::Seconds(40));
  ASSERT_THAT(job, IsOk());
  StatusOr<Group> group = (*job)->group(0, {0, 1});
  ASSERT_THAT(group, IsOk());
  MemberCalls calls(0, 1, 1);
  const Work work = calls.start(*group);
  constexpr uint32_t kRecords = 8;  // as HostBackend has them
  StatusOr<Rendezvous> records =
      Rendezvous::open(*(*job)->client(0).link, {{0, 0, 0}, {1, 1, 0}}, kRecords, /*salt=*/0);
  ASSERT_THAT(records, IsOk());
  OpRecord& record = reinterpret_cast<OpRecord*>(&records->records().entry(1, 0))[-1];
  while (State::unpack(record.state).arrived == 0) std::this_thread::yield();
  record.state = State{.seq = 1, .phase = Phase::kSettling, .settler = 1 + 1}.pack();
  EXPECT_THAT(work.wait(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("all_reduce sum i64 of 1 elements on devices 0, 1 "
                                       "(operation 1 of the group) failed, and client 1 "),
                             HasSubstr(" has not said why in 1"))));
}

// The deadline of a wait may pass before an idle device begins the operation.
TEST(DeadlinesTest, AnIdleDeviceIsNotSaidToBeBusy) {
  const testing::TestDeadline deadline(absl::Seconds(60), "deadlines_test");
  auto job = HostJob::create(std::vector<int>{1}, absl::Seconds(40));
  ASSERT_THAT(job, IsOk());
  StatusOr<Group> group = (*job)->group(0, {0});
  ASSERT_THAT(group, IsOk());
  Stream& stream = *(*job)->client(0).streams[0];
  for (int i = 0; i < 2; ++i) {
    while (!stream.try_take()) std::this_thread::yield();  // holds the operation back
    const Status status = group->barrier().wait(absl::ZeroDuration());
    stream.release();
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr(": the timeout is 0 or had already passed: not done; device 0 "
                                   "had not begun it")));
    // Before the next one the device runs this.
    ASSERT_THAT(group->barrier().await(), IsOk());
  }
}

// Member 1 makes none of the calls that member 0 gives up, more than there are records. Its first
// call is not taken for another one, whose bytes it would change: it is told so, and then goes on
// with what member 0 does. A barrier has no bytes.
TEST(DeadlinesTest, AMemberThatIsLeftBehindIsToldSo) {
  constexpr int kCalls = 20;
  const testing::TestDeadline deadline(absl::Seconds(60), "deadlines_test");
  for (const int size : {1, 300}) {
    for (const bool is_barrier : {false, true}) {
      auto job = HostJob::create(std::vector<int>{1, 1}, absl::Seconds(40));
      ASSERT_THAT(job, IsOk());
      StatusOr<Group> groups[] = {(*job)->group(0, {0, 1}), (*job)->group(1, {0, 1})};
      StatusOr<Group> alone = (*job)->group(0, {0});
      ASSERT_THAT(groups[0], IsOk());
      ASSERT_THAT(groups[1], IsOk());
      ASSERT_THAT(alone, IsOk());
      MemberCalls calls[] = {{0, kCalls + 1, size}, {1, 2, size}};
      for (int i = 0; i < kCalls; ++i) {
        EXPECT_THAT(calls[0].start(*groups[0]).wait(absl::ZeroDuration()),
                    StatusIs(absl::StatusCode::kDeadlineExceeded));
      }
      // Device 0 has passed all of them before this.
      ASSERT_THAT(alone->barrier().await(), IsOk());
      if (is_barrier) {
        const Work barrier = groups[0]->barrier();
        EXPECT_THAT(groups[1]->barrier().await(), IsOk());
        EXPECT_THAT(barrier.await(), IsOk());
        continue;
      }
      const Work last = calls[0].start(*groups[0]);
      EXPECT_THAT(calls[1].start(*groups[1]).await(),
                  StatusIs(absl::StatusCode::kUnavailable, HasSubstr("given up without this")));
      EXPECT_THAT(calls[1].start(*groups[1]).await(), IsOk());
      EXPECT_THAT(last.await(), IsOk());
      EXPECT_EQ(calls[0].calls.back().out, calls[1].calls.back().out);
      EXPECT_EQ(calls[1].calls.back().out[0], kCalls + 1 + (2 << 16));
    }
  }
}

}  // namespace
}  // namespace tessera::host
