// SPDX-License-Identifier: Apache-2.0
//
// ThreeClientsTest: three clients of one device, each on a GPU of its own, on the fakes of CUDA
// and NCCL.
//
//   class FailuresTest : public ThreeClientsTest {};
//   TEST_F(FailuresTest, ...) {
//     start();
//     close_gate(2);     the GPU of device 2 stands still
//     ...
//   }                    TearDown() opens it again if the test has not
#ifndef TESSERA_COLLECTIVES_NCCL_TESTING_THREE_CLIENTS_H_
#define TESSERA_COLLECTIVES_NCCL_TESTING_THREE_CLIENTS_H_

#include <future>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/cuda/testing/cuda_job.h"
#include "collectives/nccl/fake/fake_nccl.h"
#include "device/cuda/fake/fake_cuda.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::nccl {

class ThreeClientsTest : public ::testing::Test {
 protected:
  static constexpr int kMembers = 3;

  void start(const cuda::CudaJob::Options& options = {.collective_timeout = absl::Seconds(30)}) {
    auto job = cuda::CudaJob::create(cuda_, nccl_, kMembers, {1, 1, 1}, options);
    ASSERT_THAT(job, testing::IsOk());
    job_ = *std::move(job);
  }

  // A gate that a failed test has left closed would hang the end of the job.
  void TearDown() override {
    open_gate();
    nccl_->release_inits();
    nccl_->release_aborts();
    nccl_->release_revokes();
    job_ = nullptr;
    EXPECT_THAT(cuda_->misuses(), ::testing::IsEmpty());
    EXPECT_THAT(nccl_->misuses(), ::testing::IsEmpty());
  }

  // Stops the work of the device's GPU until open_gate(). At most once per test.
  void close_gate(int device) {
    ASSERT_THAT(cuda_->set_device(device), testing::IsOk());
    ASSERT_THAT(cuda_->enqueue_work(
                    "gate", {}, [gate = gate_.get_future().share()] { gate.wait(); },
                    job_->device(device).queue().handle()),
                testing::IsOk());
    is_closed_ = true;
  }
  void open_gate() {
    if (std::exchange(is_closed_, false)) gate_.set_value();
  }

  int calls(absl::string_view function) const { return nccl_->num_calls(function); }

  const testing::TestDeadline deadline_{
      absl::Seconds(90), ::testing::UnitTest::GetInstance()->current_test_info()->name()};
  std::shared_ptr<cuda::FakeCuda> cuda_ =
      cuda::FakeCuda::create({.num_gpus = kMembers, .num_queues = 32});
  std::shared_ptr<FakeNccl> nccl_ = FakeNccl::create(cuda_);
  std::unique_ptr<cuda::CudaJob> job_;

 private:
  std::promise<void> gate_;
  bool is_closed_ = false;
};

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_TESTING_THREE_CLIENTS_H_
