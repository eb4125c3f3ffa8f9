// SPDX-License-Identifier: Apache-2.0
//
// Failures while GPUs of several clients are working, on the fakes of CUDA and NCCL: which member
// gets which error, and that the group works afterwards.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/cuda/testing/cuda_job.h"
#include "collectives/nccl/fake/fake_nccl.h"
#include "collectives/nccl/testing/three_clients.h"
#include "device/cuda/fake/fake_cuda.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::nccl {
namespace {

using cuda::CudaJob;
using cuda::FakeCuda;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

class FailuresTest : public ThreeClientsTest {
 protected:
  static constexpr int64_t kCount = 5000;

  void start(const CudaJob::Options& options = {.collective_timeout = absl::Seconds(30)}) {
    ASSERT_NO_FATAL_FAILURE(ThreeClientsTest::start(options));
    // The first operation makes the communicator.
    for (const Status& status : sum({0, 1, 2})) ASSERT_THAT(status, IsOk());
  }

  struct Sum {
    std::vector<float> in = std::vector<float>(kCount, 1.5f);
    std::vector<float> out = std::vector<float>(kCount);
    std::optional<Work> work;
  };
  // An all-reduce of these devices, under way.
  std::vector<std::unique_ptr<Sum>> begin_sum(const std::vector<int>& devices) {
    std::vector<std::unique_ptr<Sum>> sums;
    for (const int device : devices) {
      auto sum = std::make_unique<Sum>();
      StatusOr<Group> group = job_->group(device, devices);
      EXPECT_THAT(group, IsOk());
      sum->work = group->all_reduce<float>(sum->in, absl::MakeSpan(sum->out), ReduceOp::kSum);
      sums.push_back(std::move(sum));
    }
    return sums;
  }
  std::vector<Status> sum(const std::vector<int>& devices) {
    const auto sums = begin_sum(devices);
    std::vector<Status> statuses;
    for (const auto& sum : sums) {
      statuses.push_back(sum->work->await());
      const float want = 1.5f * static_cast<float>(devices.size());
      if (!statuses.back().ok()) continue;
      EXPECT_EQ(sum->out, std::vector<float>(kCount, want));
    }
    return statuses;
  }
  void expect_works(const std::vector<int>& devices) {
    for (const Status& status : sum(devices)) EXPECT_THAT(status, IsOk());
  }

  // Until NCCL has been given so many groups more than it had.
  void wait_for_groups(int before, int num_groups) {
    while (calls("group_end") < before + num_groups) std::this_thread::yield();
  }
  // An all-reduce of all devices whose GPUs have been given their work. It cannot end before
  // open_gate().
  std::vector<std::unique_ptr<Sum>> begin_stuck_sum() {
    close_gate(2);
    const int groups = calls("group_end");
    std::vector<std::unique_ptr<Sum>> sums = begin_sum({0, 1, 2});
    wait_for_groups(groups, 6);
    return sums;
  }
  void lose(int client) {
    const Status reason = absl::UnavailableError(absl::StrCat("client ", client, " is gone"));
    for (int c = 0; c < kMembers; ++c) {
      if (c != client) job_->client(c).link->liveness().report_lost(client, reason);
    }
  }
  // Checks a sum of all members when client 2 is lost.
  static void expect_lost(const std::vector<std::unique_ptr<Sum>>& sums,
                          const std::string& reason) {
    for (const int device : {0, 1}) {
      EXPECT_THAT(sums[device]->work->await(),
                  StatusIs(absl::StatusCode::kUnavailable, HasSubstr(reason)));
    }
  }
  // Until a device is given up because NCCL does not return from a call.
  void expect_gpu_lost() {
    Status status;
    do {
      status = sum({0, 1})[0];
    } while (status.ok());
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is lost: NCCL did not end")));
  }
};

// All have arrived and given their GPUs work; then one is lost. The others are told by the loss,
// not by a deadline, which is far off, nor by their work, which is not done; they go on without it.
TEST_F(FailuresTest, AClientIsLostWhileWorkIsInFlight) {
  start({.collective_timeout = absl::Hours(1)});
  const auto sums = begin_stuck_sum();
  EXPECT_FALSE(sums[0]->work->done());
  lose(2);
  expect_lost(sums, "client 2 is gone");
  expect_works({0, 1});
  open_gate();
}

// All get the same text at the deadline, and the same group works afterwards with a new
// communicator.
TEST_F(FailuresTest, TheDeadlinePassesWhileWorkIsInFlight) {
  start({.collective_timeout = absl::Seconds(2)});
  close_gate(2);
  const auto sums = begin_sum({0, 1, 2});
  const Status first = sums[0]->work->await();
  EXPECT_THAT(first, StatusIs(absl::StatusCode::kDeadlineExceeded,
                              HasSubstr(" in time (2 s), though all")));
  open_gate();
  for (const auto& sum : sums) EXPECT_EQ(sum->work->await(), first);
  const int made = calls("comm_init_rank");
  expect_works({0, 1, 2});
  EXPECT_EQ(calls("comm_init_rank"), made + kMembers);
}

// As above, at the deadline of one waiting thread.
TEST_F(FailuresTest, AWaiterGivesUpWhileWorkIsInFlight) {
  start();
  const auto sums = begin_stuck_sum();
  EXPECT_THAT(sums[0]->work->wait(absl::Milliseconds(200)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("though all members had")));
  open_gate();
  for (const auto& sum : sums) {
    EXPECT_THAT(sum->work->await(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  expect_works({0, 1, 2});
}

// Later work in the stream of a failed operation may have used data that never arrived: it fails
// too, and so does what others got of it.
TEST_F(FailuresTest, WhatIsBehindItFailsToo) {
  start();
  expect_works({0, 1});
  close_gate(2);
  const int groups = calls("group_end");
  const auto first = begin_sum({0, 1, 2});
  const auto second = begin_sum({0, 1});
  wait_for_groups(groups, 10);
  lose(2);
  for (const auto& sum : second) {
    EXPECT_THAT(sum->work->await(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("client 2 is gone")));
  }
  open_gate();
  for (const auto& sum : first) EXPECT_FALSE(sum->work->await().ok());
  expect_works({0, 1});
}

// An error of the network is found by one member, and reported to all.
TEST_F(FailuresTest, TheNetworkFails) {
  start();
  nccl_->break_link(2, absl::UnavailableError("ncclRemoteError: a peer is gone"));
  const auto sums = begin_sum({0, 1, 2});
  std::vector<Status> statuses;
  for (const auto& sum : sums) statuses.push_back(sum->work->await());
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ncclRemoteError")));
  for (const Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  expect_works({0, 1, 2});
}

// A GPU that breaks while it works is an error of all; the others go on without it.
TEST_F(FailuresTest, AGpuBreaks) {
  start();
  const auto sums = begin_stuck_sum();
  cuda_->break_gpu(2, absl::InternalError("cudaErrorIllegalAddress"));
  for (const auto& sum : sums) {
    EXPECT_THAT(sum->work->await(),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("cudaErrorIllegalAddress")));
  }
  expect_works({0, 1});
  cuda_->break_gpu(2, absl::OkStatus());
  open_gate();
}

// Calls that go on in the background are waited for.
TEST_F(FailuresTest, CallsAreInProgressForAWhile) {
  nccl_->stall("comm_init_rank", 2, 30);
  start();
  nccl_->stall("group_end", 5, 20);
  expect_works({0, 1, 2});
  expect_works({0, 1, 2});
}

// A member that cannot do its part tells the others, which are doing theirs.
TEST_F(FailuresTest, OneMemberCannotDoItsPart) {
  start();
  cuda_->fail("launch", 2, absl::InternalError("cudaErrorLaunchFailure"));
  const auto sums = begin_sum({0, 1, 2});
  std::vector<Status> statuses;
  for (const auto& sum : sums) statuses.push_back(sum->work->await());
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kInternal, HasSubstr("cudaErrorLaunchFailure")));
  for (const Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  expect_works({0, 1, 2});
}

// A revoke that does not return holds up nothing else: it may join a thread of NCCL that waits.
TEST_F(FailuresTest, ARevokeTakesLong) {
  start();
  expect_works({0, 1});
  nccl_->hang_revokes();
  const auto sums = begin_stuck_sum();
  lose(2);
  while (calls("comm_revoke") < 2) std::this_thread::yield();
  // Work that a client is given before its watch has noticed the loss fails with it.
  for (const int client : {0, 1}) job_->client(client).watch->check().IgnoreError();
  // Other groups of the same devices are given work, and watched.
  const int before = calls("group_end");
  const auto others = begin_sum({0, 1});
  wait_for_groups(before, 4);
  for (const int client : {0, 1}) EXPECT_THAT(job_->client(client).watch->check(), IsOk());
  EXPECT_FALSE(others[0]->work->done());
  nccl_->release_revokes();
  expect_lost(sums, "");
  for (const auto& sum : others) EXPECT_THAT(sum->work->await(), IsOk());
  open_gate();
}

// The GPU of a revoke that never returns is lost.
TEST_F(FailuresTest, ARevokeNeverReturns) {
  start({.collective_timeout = absl::Seconds(30),
         .watch = {.revoke_limit = absl::Milliseconds(200)}});
  nccl_->hang_revokes();
  const auto sums = begin_stuck_sum();
  lose(2);
  expect_lost(sums, "");
  expect_gpu_lost();
}

// While a communicator is being made there is nothing to revoke: it is aborted at once, and the
// next operation makes another one.
TEST_F(FailuresTest, ACommunicatorIsNotMadeInTime) {
  start({.collective_timeout = absl::Seconds(2)});
  expect_works({0, 1});
  const int revokes = calls("comm_revoke");
  nccl_->stall("comm_init_rank", 2, 1 << 30);
  for (const Status& status : sum({1, 2})) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  expect_works({1, 2});
  while (calls("comm_abort") < 2) std::this_thread::yield();
  EXPECT_EQ(calls("comm_revoke"), revokes);
}

// So it is where two ranks connect, at their first operation.
TEST_F(FailuresTest, AFirstOperationIsNotTakenInTime) {
  start({.collective_timeout = absl::Seconds(2)});
  nccl_->stall("group_end", 2, 1 << 30);
  for (const Status& status : sum({1, 2})) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  expect_works({1, 2});
  while (calls("comm_abort") < 2) std::this_thread::yield();
  EXPECT_EQ(calls("comm_revoke"), 0);
}

// An abort that does not return takes its GPU with it, and nothing else: no call hangs.
TEST_F(FailuresTest, AnAbortNeverReturns) {
  start(
      {.collective_timeout = absl::Seconds(30),
       .watch = {.revoke_limit = absl::Milliseconds(100), .abort_limit = absl::Milliseconds(200)}});
  nccl_->hang_aborts();
  const auto sums = begin_stuck_sum();
  lose(2);
  expect_lost(sums, "");
  expect_gpu_lost();
  while (job_->device(0).stream().sync().ok()) std::this_thread::yield();
}

// /dev/shm of a container has room for only one rank of a communicator that uses sockets: all
// members get an error that names /dev/shm.
TEST(SharedGpuTest, SharedMemoryOfTheHostRunsOut) {
  const testing::TestDeadline deadline(absl::Seconds(60), "a full /dev/shm");
  const auto cuda = FakeCuda::create();
  const auto nccl = FakeNccl::create(cuda, {.shares_gpus = true, .shm_bytes = 64 << 20});
  auto job = CudaJob::create(cuda, nccl, 1, {1, 1});
  ASSERT_THAT(job, IsOk());
  EXPECT_THAT((*job)->run([](const conformance::Member& m) -> Status {
    const float in = 1;
    float out = 0;
    const Status status = m.group.all_reduce<float>({&in, 1}, {&out, 1}, ReduceOp::kSum).await();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 HasSubstr("; /dev/shm is too small: each")));
    return absl::OkStatus();
  }),
              IsOk());
  EXPECT_THAT(nccl->misuses(), ::testing::IsEmpty());
}

// NCCL takes one device of a GPU.
TEST(SharedGpuTest, IsRefused) {
  const testing::TestDeadline deadline(absl::Seconds(60), "devices that share a GPU");
  const auto cuda = FakeCuda::create({.num_gpus = 2});
  const auto nccl = FakeNccl::create(cuda);
  auto job = CudaJob::create(cuda, nccl, 2, {1, 3});
  ASSERT_THAT(job, IsOk());
  EXPECT_THAT((*job)->run([](const conformance::Member& m) -> Status {
    float in = 1;
    float out = 0;
    return m.group.all_reduce<float>({&in, 1}, {&out, 1}, ReduceOp::kSum).await();
  }),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("members 1 and 3 share GPU 1")));
}

}  // namespace
}  // namespace tessera::nccl
