// SPDX-License-Identifier: Apache-2.0
//
// The end of communicators beside other work of the same GPUs, and of messages whose GPU is behind,
// on the fakes of CUDA and NCCL: which work an end waits for, which memory it frees, and when.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/cuda/testing/cuda_job.h"
#include "collectives/nccl/fake/fake_nccl.h"
#include "collectives/nccl/testing/three_clients.h"
#include "device/buffer.h"
#include "device/cuda/fake/fake_cuda.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"

namespace tessera::nccl {
namespace {

using absl::StatusCode;
using cuda::CudaJob;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

class EndsTest : public ThreeClientsTest {
 protected:
  static constexpr int64_t kCount = 1000;

  struct Sum {
    std::vector<float> in = std::vector<float>(kCount, 1.5f);
    std::vector<float> out = std::vector<float>(kCount);
    std::optional<Work> work;
  };
  using Sums = std::vector<std::unique_ptr<Sum>>;
  // An all-reduce of these devices, under way.
  Sums begin_sum(const std::vector<int>& devices) {
    Sums sums;
    for (const int device : devices) {
      sums.push_back(std::make_unique<Sum>());
      StatusOr<Group> group = job_->group(device, devices);
      EXPECT_THAT(group, IsOk());
      sums.back()->work = group->all_reduce<float>(
          sums.back()->in, absl::MakeSpan(sums.back()->out), ReduceOp::kSum);
    }
    return sums;
  }
  std::vector<Status> sum(const std::vector<int>& devices) {
    std::vector<Status> statuses;
    for (const auto& sum : begin_sum(devices)) statuses.push_back(sum->work->await());
    return statuses;
  }
  void expect_works(const std::vector<int>& devices) {
    for (const Status& status : sum(devices)) EXPECT_THAT(status, IsOk());
  }
  void wait_for_calls(absl::string_view function, int number) {
    while (calls(function) < number) std::this_thread::yield();
  }
  void lose(int client) {
    const Status reason = absl::UnavailableError(absl::StrCat("client ", client, " is gone"));
    for (int c = 0; c < kMembers; ++c) {
      if (c != client) job_->client(c).link->liveness().report_lost(client, reason);
    }
  }
  Status lost(int device) { return job_->client(device).watch->lane(&job_->device(device)).lost(); }
};

// The abort of a communicator that has given no work yet frees memory, which waits for the GPU: so
// what runs there is revoked first.
TEST_F(EndsTest, AnAbortComesAfterTheRevokesBesideIt) {
  ASSERT_NO_FATAL_FAILURE(
      start({.collective_timeout = absl::Seconds(5), .watch = {.abort_limit = absl::Seconds(2)}}));
  expect_works({0, 1, 2});
  close_gate(2);
  const int groups = calls("group_end");
  const Sums in_flight = begin_sum({0, 1, 2});
  wait_for_calls("group_end", groups + 6);
  // Two more members that device 0 waits for when client 2 is lost.
  nccl_->stall("comm_init_rank", 2, 1 << 30);
  const int made = calls("comm_init_rank");
  const Sums in_making = begin_sum({0, 2});
  wait_for_calls("comm_init_rank", made + 2);
  lose(2);
  EXPECT_THAT(in_flight[0]->work->await(), StatusIs(StatusCode::kUnavailable));
  EXPECT_THAT(in_making[0]->work->await(), StatusIs(StatusCode::kUnavailable));
  wait_for_calls("comm_abort", 3);
  expect_works({0, 1});
  EXPECT_THAT(lost(0), IsOk());
  open_gate();
}

// An abort waits for work of the GPU for other groups, however long that takes: the GPU does not
// count as lost because of that.
TEST_F(EndsTest, AnAbortBesideALongOperationLosesNoGpu) {
  ASSERT_NO_FATAL_FAILURE(start({.collective_timeout = absl::Seconds(30),
                                 .watch = {.abort_limit = absl::Milliseconds(100)}}));
  expect_works({0, 2});
  close_gate(2);
  const int groups = calls("group_end");
  const Sums in_flight = begin_sum({0, 2});
  wait_for_calls("group_end", groups + 4);
  nccl_->stall("comm_init_rank", 2, 1 << 30);
  const Sums in_making = begin_sum({0, 1});
  // The abort of device 0 ends when its stream has done the work in flight.
  EXPECT_THAT(in_making[1]->work->wait(absl::Milliseconds(50)),
              StatusIs(StatusCode::kDeadlineExceeded));
  wait_for_calls("comm_abort", 2);
  // sleep: longer than the abort's limit, which must not count
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_THAT(lost(0), IsOk());
  open_gate();
  for (const auto& sum : in_flight) EXPECT_THAT(sum->work->await(), IsOk());
  expect_works({0, 1});
}

// A call of NCCL that does not return in time loses the device. The objects that it has made are
// freed when it returns after all.
TEST_F(EndsTest, WhatACallMakesThatReturnsLateIsFreed) {
  ASSERT_NO_FATAL_FAILURE(start({.collective_timeout = absl::Seconds(2),
                                 .watch = {.revoke_limit = absl::Milliseconds(100)}}));
  nccl_->hang_inits();
  const Sums sums = begin_sum({0, 1});
  wait_for_calls("comm_init_rank", 2);
  job_->client(0).link->liveness().report_lost(1, absl::UnavailableError("client 1 is gone"));
  while (lost(0).ok()) std::this_thread::yield();
  EXPECT_THAT(lost(0), StatusIs(StatusCode::kUnavailable, HasSubstr("NCCL did not end")));
  nccl_->release_inits();
  for (const auto& sum : sums) EXPECT_FALSE(sum->work->await().ok());
  while (nccl_->num_communicators() > 0) std::this_thread::yield();
}

int num_mappings() {
  std::ifstream maps("/proc/self/maps");
  int number = 0;
  for (std::string line; std::getline(maps, line);) ++number;
  return number;
}

// Threads that end what failed leave nothing: an ended thread that is not joined keeps its stack.
TEST_F(EndsTest, FailuresLeaveNoThreads) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers keep what they know of threads";
  ASSERT_NO_FATAL_FAILURE(start());
  const auto fail_once = [&] {
    nccl_->break_link(1, absl::UnavailableError("ncclRemoteError: a peer is gone"));
    for (const Status& status : sum({0, 1, 2})) EXPECT_FALSE(status.ok());
  };
  for (int i = 0; i < 5; ++i) fail_once();
  const int before = num_mappings();
  for (int i = 0; i < 40; ++i) fail_once();
  // Each of the three watches made 40 threads, whose stacks are a mapping each and a guard.
  EXPECT_LT(num_mappings() - before, 100);
}

// ---- Messages.

class MessageEndsTest : public EndsTest {
 protected:
  static constexpr int64_t kMessage = 1 << 16;

  // One message goes first: a pool that grows later waits for the GPU.
  void start(const CudaJob::Options& options = {.collective_timeout = absl::Seconds(30)}) {
    ASSERT_NO_FATAL_FAILURE(EndsTest::start(options));
    std::vector<uint8_t> out(kMessage);
    const Work send = job_->group(0, {0, 1})->send<uint8_t>(in_, 1);
    const Work recv = job_->group(1, {0, 1})->recv<uint8_t>(absl::MakeSpan(out), 0);
    ASSERT_THAT(recv.await(), IsOk());
    ASSERT_THAT(send.await(), IsOk());
    ASSERT_EQ(out, in_);
  }

  const std::vector<uint8_t> in_ = std::vector<uint8_t>(kMessage, 1);
};

// Work::wait() returns at its deadline, also where the bytes of a message wait for a GPU.
TEST_F(MessageEndsTest, ASendWhoseGpuIsBehindEndsAtItsDeadline) {
  ASSERT_NO_FATAL_FAILURE(start());
  close_gate(0);
  const Work send = job_->group(0, {0, 1})->send<uint8_t>(in_, 1);
  EXPECT_THAT(send.wait(absl::Milliseconds(100)), StatusIs(StatusCode::kDeadlineExceeded));
  open_gate();
}

TEST_F(MessageEndsTest, AReceiveWhoseGpuIsBehindEndsAtItsDeadline) {
  ASSERT_NO_FATAL_FAILURE(start());
  close_gate(1);
  std::vector<uint8_t> out(kMessage);
  const Work send = job_->group(0, {0, 1})->send<uint8_t>(in_, 1);
  const Work recv = job_->group(1, {0, 1})->recv<uint8_t>(absl::MakeSpan(out), 0);
  EXPECT_THAT(recv.wait(absl::Milliseconds(500)), StatusIs(StatusCode::kDeadlineExceeded));
  open_gate();
  EXPECT_FALSE(send.await().ok());
}

// The end of a client does not wait for a GPU that stands still either.
TEST_F(MessageEndsTest, AClientThatClosesEndsItsMessages) {
  ASSERT_NO_FATAL_FAILURE(start());
  close_gate(0);
  const int before = cuda_->num_calls("query_event");
  const Work send = job_->group(0, {0, 1})->send<uint8_t>(in_, 1);
  // The message asks again and again whether its turn has come.
  while (cuda_->num_calls("query_event") < before + 10) std::this_thread::yield();
  job_->client(0).backend->stop();
  EXPECT_THAT(send.await(), StatusIs(StatusCode::kCancelled));
  open_gate();
}

// Pinned memory that a message was given up in is not written any more.
TEST_F(MessageEndsTest, AMessageThatWasGivenUpWritesNothingLater) {
  ASSERT_NO_FATAL_FAILURE(start({.collective_timeout = absl::Milliseconds(300)}));
  const std::shared_ptr<MemoryPool> pinned = job_->device(0).pinned();
  close_gate(0);
  const Work send = job_->group(0, {0, 1})->send<uint8_t>(in_, 1);
  EXPECT_THAT(send.await(), StatusIs(StatusCode::kDeadlineExceeded));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Buffer> next,
                               Buffer::allocate(pinned, kMessage));
  std::memset(next->mutable_data(), 7, kMessage);
  open_gate();
  cuda_->wait_for_gpu(0);
  EXPECT_EQ(next->data()[0], std::byte{7});
}

// Messages without bytes keep no place in their stream.
TEST_F(MessageEndsTest, EmptyMessagesKeepNoEvents) {
  ASSERT_NO_FATAL_FAILURE(start());
  const auto exchange = [&](int times) {
    for (int i = 0; i < times; ++i) {
      const Work send = job_->raw_group(0, {0, 1})->send<float>(absl::Span<const float>(), 1);
      const Work recv = job_->raw_group(1, {0, 1})->recv<float>(absl::Span<float>(), 0);
      EXPECT_THAT(send.await(), IsOk());
      EXPECT_THAT(recv.await(), IsOk());
    }
  };
  exchange(20);
  const int before = cuda_->num_calls("create_event");
  exchange(200);
  EXPECT_LT(cuda_->num_calls("create_event") - before, 20);
}

}  // namespace
}  // namespace tessera::nccl
