// SPDX-License-Identifier: Apache-2.0
//
// The state after operations that fail once all members had arrived: their records are free again,
// and memory that was kept for a delayed member is released. Groups that keep nothing any more are
// unused.
//
//   client 0   waits for the others .......... gives up: DeadlineExceeded
//   client 1   at its first read of the input of client 0 [held up      ] the same
//   client 2   its part is done
#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/group.h"
#include "collectives/host/testing/held_up_reads.h"
#include "collectives/host/testing/host_job.h"
#include "collectives/testing/start_operation.h"
#include "device/buffer.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "shm/activity.h"
#include "shm/control.h"
#include "tests/support/deadline.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"

namespace tessera::host {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using testing::Gate;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr int kClients = 3;
constexpr int kRecords = 8;  // as HostBackend has them
constexpr int64_t kPage = 4096;
constexpr int64_t kBytes = 12 * kPage;

class FailedOperationsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(job_,
                                 HostJob::create(std::vector<int>(kClients, 1), absl::Seconds(20)));
    for (int device = 0; device < kClients; ++device) {
      TESSERA_ASSERT_OK_AND_ASSIGN(Group group, job_->group(device, {0, 1, 2}));
      groups_.push_back(std::make_unique<Group>(std::move(group)));
    }
  }

  std::shared_ptr<Buffer> new_buffer(int client) {
    StatusOr<std::shared_ptr<Buffer>> buffer = Buffer::allocate(job_->client(client).pool, kBytes);
    EXPECT_THAT(buffer.status(), IsOk());
    std::memset((*buffer)->mutable_data(), 1, kBytes);
    (*buffer)->mutable_ready().set(absl::OkStatus());
    return *buffer;
  }
  Work start(OpKind kind, int device, std::shared_ptr<const Buffer> in,
             std::shared_ptr<Buffer> out) {
    const int64_t in_count = in == nullptr ? 0 : kBytes;
    return internal::start_operation(*groups_[device],
                                     {.kind = kind, .op = ReduceOp::kMax, .count = kBytes},
                                     {.in_count = in_count, .out_count = kBytes},
                                     {.in_buffer = std::move(in), .out_buffer = std::move(out)});
  }
  // The address at which client 1 sees the whole pages of a buffer of client 0.
  std::byte* pages_seen_by_1(const Buffer& buffer, int64_t* num_bytes) {
    const auto first = reinterpret_cast<uintptr_t>(buffer.data());
    const auto skipped = static_cast<int64_t>((first + kPage - 1) / kPage * kPage - first);
    *num_bytes = (kBytes - skipped) / kPage * kPage;
    const auto address = job_->client(0).link->memory().locate(buffer.data() + skipped, *num_bytes);
    EXPECT_TRUE(address.has_value());
    return *job_->client(1).link->memory().resolve(*address, *num_bytes);
  }
  // Every member calls; what they return.
  std::vector<Status> all_reduce(absl::Span<const int64_t> counts) {
    std::vector<std::vector<int64_t>> in;
    std::vector<std::vector<int64_t>> out;
    for (const int64_t count : counts) {
      in.emplace_back(count, 1);
      out.emplace_back(count, 0);
    }
    std::vector<Work> works;
    for (int c = 0; c < kClients; ++c) {
      works.push_back(
          groups_[c]->all_reduce<int64_t>(in[c], absl::MakeSpan(out[c]), ReduceOp::kSum));
    }
    std::vector<Status> results;
    for (int c = 0; c < kClients; ++c) {
      results.push_back(works[c].await());
      const std::vector<int64_t> sums(counts[c], kClients);
      EXPECT_TRUE(!results[c].ok() || out[c] == sums);
    }
    return results;
  }

  testing::TestDeadline deadline_{absl::Seconds(120), "failed_operations_test"};
  std::unique_ptr<HostJob> job_;
  std::vector<std::unique_ptr<Group>> groups_;
};

// Issue 15: client 2, which lends nothing, had left before the failure, and never acknowledged it:
// its record was never free again, where no operation at which all arrive came in between.
TEST_F(FailedOperationsTest, RecordsAreFreeAfterMoreFailuresThanThereAreRecords) {
  for (int round = 0; round < 4; ++round) {
    // In no other hands, so that client 0 waits until all have read it.
    std::shared_ptr<Buffer> input = new_buffer(0);
    int64_t num_bytes = 0;
    std::byte* const seen = pages_seen_by_1(*input, &num_bytes);
    Gate reached, resume;
    const HeldUpReads held_up(seen, num_bytes, reached, resume);
    std::vector<Work> works;
    for (int c = 0; c < kClients; ++c) {
      works.push_back(
          start(OpKind::kBroadcast, c, c == 0 ? std::move(input) : nullptr, new_buffer(c)));
    }
    ASSERT_THAT(works[2].await(), IsOk()) << round;
    ASSERT_THAT(reached.wait(), IsOk()) << round;
    const Status verdict = works[0].wait(absl::Milliseconds(1));
    EXPECT_THAT(verdict, StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("had not finished")));
    resume.open();
    EXPECT_EQ(works[1].await(), verdict) << round;
    for (int i = 1; i < kRecords; ++i) {
      const Work early = groups_[0]->barrier();
      const Status missing = early.wait(absl::ZeroDuration());
      EXPECT_THAT(missing, StatusIs(StatusCode::kDeadlineExceeded));
      for (int c = 1; c < kClients; ++c) ASSERT_EQ(groups_[c]->barrier().await(), missing) << round;
    }
  }
  for (const Status& status : all_reduce({1000, 1000, 1000})) EXPECT_THAT(status, IsOk());
  const std::vector<Status> told = all_reduce({1000, 1000, 999});
  EXPECT_THAT(told[0], StatusIs(StatusCode::kInvalidArgument, HasSubstr("count differs")));
  EXPECT_EQ(told[1], told[0]);
  EXPECT_EQ(told[2], told[0]);
}

// Client 0 runs ahead: its second operation was refused, and keeps its record until the others have
// read why. The operation that is to have this record next waits for them, but no caller waits for
// it beyond its deadline; the others get its verdict when they reach it.
TEST_F(FailedOperationsTest, AWaitEndsAtItsDeadlineWhereNoRecordIsFree) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<HostJob> job,
      HostJob::create(std::vector<int>(2, 1), /*collective_timeout=*/absl::InfiniteDuration()));
  std::vector<Group> groups;
  for (const int device : {0, 1}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(Group group, job->group(device, {0, 1}));
    groups.push_back(std::move(group));
  }
  const std::vector<int64_t> in(2);
  std::vector<int64_t> out(3);
  const auto refused = [&](int c) {
    return groups[c].all_reduce<int64_t>(in, absl::MakeSpan(out), ReduceOp::kSum);
  };
  std::vector<Status> told = {refused(0).await()};
  EXPECT_THAT(told[0], StatusIs(StatusCode::kInvalidArgument));
  for (int i = 1; i < kRecords; ++i) {
    told.push_back(groups[0].barrier().wait(absl::Milliseconds(1)));
    EXPECT_THAT(told.back(), StatusIs(StatusCode::kDeadlineExceeded));
  }
  const Work waits = groups[0].barrier();
  // Its device has begun it: it waits for the record.
  const shm::DeviceActivity& activity = job->client(0).link->own_control().activity(0);
  while (shm::read_activity(activity).seq != kRecords + 1) std::this_thread::yield();
  told.push_back(waits.wait(absl::Milliseconds(1)));
  EXPECT_THAT(told.back(),
              StatusIs(StatusCode::kDeadlineExceeded, AllOf(HasSubstr("1 of 2 clients arrived in "),
                                                            HasSubstr("missing client 1 "))));
  EXPECT_EQ(refused(1).await(), told[0]);
  for (int i = 1; i <= kRecords; ++i) EXPECT_EQ(groups[1].barrier().await(), told[i]) << i;
  const Work last = groups[0].barrier();
  EXPECT_THAT(groups[1].barrier().await(), IsOk());
  EXPECT_THAT(last.await(), IsOk());
}

// The memory of an operation that timed out is kept while client 1 may still read and write it, and
// given back once all have acknowledged the verdict.
TEST_F(FailedOperationsTest, MemoryIsGivenBackWhenAllHaveAcknowledged) {
  std::shared_ptr<Buffer> input = new_buffer(0);
  std::shared_ptr<Buffer> output = new_buffer(0);
  const std::weak_ptr<Buffer> kept_input = input;
  const std::weak_ptr<Buffer> kept_output = output;
  int64_t num_bytes = 0;
  std::byte* const seen = pages_seen_by_1(*input, &num_bytes);
  Gate reached, resume;
  const HeldUpReads held_up(seen, num_bytes, reached, resume);
  std::optional<Work> works[kClients];
  works[0] = start(OpKind::kAllReduce, 0, std::move(input), std::move(output));
  for (int c = 1; c < kClients; ++c) {
    works[c] = start(OpKind::kAllReduce, c, new_buffer(c), new_buffer(c));
  }
  ASSERT_THAT(reached.wait(), IsOk());
  const Status verdict = works[0]->wait(absl::Milliseconds(1));
  EXPECT_THAT(verdict, StatusIs(StatusCode::kDeadlineExceeded));
  EXPECT_EQ(works[2]->await(), verdict);
  works[0].reset();
  // The next call releases all memory that it may.
  const Work next = start(OpKind::kAllReduce, 0, new_buffer(0), new_buffer(0));
  EXPECT_FALSE(kept_input.expired());
  EXPECT_FALSE(kept_output.expired());
  resume.open();
  EXPECT_EQ(works[1]->await(), verdict);
  for (int c = 1; c < kClients; ++c) {
    works[c] = start(OpKind::kAllReduce, c, new_buffer(c), new_buffer(c));
  }
  // A member is done with the failed operation before it starts this one.
  EXPECT_THAT(next.await(), IsOk());
  for (int c = 1; c < kClients; ++c) EXPECT_THAT(works[c]->await(), IsOk());
  for (const Status& status : all_reduce({1000, 1000, 1000})) EXPECT_THAT(status, IsOk());
  EXPECT_TRUE(kept_input.expired());
  EXPECT_TRUE(kept_output.expired());
}

// A group is unused once the others have read the inputs that it keeps for them, although no later
// call of the group releases these.
TEST_F(FailedOperationsTest, GroupsWhoseOperationsAreOverAreUnused) {
  const std::shared_ptr<Buffer> input = new_buffer(0);  // a tensor's: the operation lends it
  {
    std::vector<Work> works;
    for (int c = 0; c < kClients; ++c) {
      works.push_back(start(OpKind::kBroadcast, c, c == 0 ? input : nullptr, new_buffer(c)));
    }
    for (const Work& work : works) ASSERT_THAT(work.await(), IsOk());
    const std::vector<int64_t> sent(1, 7);
    std::vector<int64_t> received(1);
    const Work send = groups_[0]->send<int64_t>(sent, 1);
    ASSERT_THAT(groups_[1]->recv<int64_t>(absl::MakeSpan(received), 0).await(), IsOk());
  }
  groups_.clear();
  for (int c = 0; c < kClients; ++c) {
    HostJob::Client& client = job_->client(c);
    EXPECT_EQ(client.backend->num_groups(), c == 2 ? 1 : 2);
    // Its threads may hold the operations a little longer.
    while (client.backend->num_groups() > 0) {
      client.backend->forget_unused_groups();
      std::this_thread::yield();
    }
  }
}

// Client 1 is stopped while it has the lock of client 0's table, for which a thread of client 0
// waits. Operations end with a loss all the same, and the thread waits no longer than until then.
TEST_F(FailedOperationsTest, ALossEndsOperationsWhileAGroupTableIsLocked) {
  const testing::TestDeadline deadline(absl::Seconds(9), "less than the time limit of the lock");
  const auto begin = [&](int client) {
    return start(OpKind::kBroadcast, client, client == 0 ? new_buffer(0) : nullptr,
                 new_buffer(client));
  };
  const Work waiting = begin(0);
  shm::HostLink& link = *job_->client(0).link;
  auto& lock = reinterpret_cast<shm::ControlHeader*>(link.memory().control(0))->table_lock;
  ASSERT_EQ(pthread_mutex_lock(&lock), 0);
  Status made;
  std::thread maker([&] { made = job_->group(0, {0, 1}).status(); });
  absl::SleepFor(absl::Milliseconds(100));  // sleep: nothing tells that it waits for the lock
  link.liveness().report_lost(1, absl::UnavailableError("client 1 missed its heartbeats"));
  EXPECT_THAT(waiting.await(), StatusIs(StatusCode::kUnavailable, HasSubstr("client 1 missed")));
  maker.join();
  EXPECT_THAT(made, StatusIs(StatusCode::kUnavailable,
                             HasSubstr("does not run: client 1 missed its heartbeats")));
  pthread_mutex_unlock(&lock);
}

// Issue 15: names were cut at 191 bytes, and the same text was printed twice.
TEST_F(FailedOperationsTest, LongNamesThatDifferAtTheEndAreShownToDiffer) {
  std::vector<Work> works;
  for (int c = 0; c < kClients; ++c) {
    const SharedText name = absl::StrCat("\"", std::string(300, 'a'), c == 2 ? "2" : "1", "\"");
    works.push_back(internal::start_operation(*groups_[c], CollectiveSpec(), {},
                                              {.detail = name, .detail_field = "name"}));
  }
  const Status told = works[0].await();
  EXPECT_THAT(told, StatusIs(StatusCode::kInvalidArgument,
                             AllOf(HasSubstr("name differs"), HasSubstr("a...a"),
                                   HasSubstr("aaa1\", client 2 "), HasSubstr("aaa2\"; it is"))));
  EXPECT_EQ(works[1].await(), told);
  EXPECT_EQ(works[2].await(), told);
}

// A member that has left frees no record any more. The calls of the others do not wait for that,
// and a deadline that passes at once blames no device.
TEST_F(FailedOperationsTest, CallsAfterAMemberHasLeftSayThat) {
  const Status left = absl::UnavailableError("client 1 (host-a, pid 7) has left the job");
  job_->client(0).link->liveness().report_lost(1, left);
  const std::vector<int64_t> in(2000, 1);
  std::vector<int64_t> out(2000);
  for (int i = 0; i < 8 * kRecords; ++i) {
    const Work work = groups_[0]->all_reduce<int64_t>(in, absl::MakeSpan(out), ReduceOp::kSum);
    ASSERT_THAT(work.wait(absl::ZeroDuration()),
                StatusIs(StatusCode::kUnavailable,
                         AllOf(HasSubstr("all_reduce"), HasSubstr(left.message()))))
        << i;
  }
}

}  // namespace
}  // namespace tessera::host
