// SPDX-License-Identifier: Apache-2.0
//
// Memory that members pack in, on the fakes of CUDA and NCCL: that it is there before any GPU of
// a client waits for another one, where to allocate waits for both.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "collectives/collective.h"
#include "collectives/cuda/testing/cuda_job.h"
#include "collectives/nccl/fake/fake_nccl.h"
#include "collectives/testing/start_operation.h"
#include "device/buffer.h"
#include "device/cuda/fake/fake_cuda.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::nccl {
namespace {

using conformance::Member;
using cuda::CudaJob;
using cuda::FakeCuda;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;

// Two clients of two GPUs each. Without cuMem NCCL allocates by cudaMalloc(), which waits for both
// GPUs of the client.
class PackingTest : public ::testing::Test {
 protected:
  static constexpr int kMembers = 4;

  void start(uint64_t gpu_bytes = uint64_t{1} << 30) {
    cuda_ = FakeCuda::create({.num_gpus = kMembers, .gpu_bytes = gpu_bytes});
    nccl_ = FakeNccl::create(cuda_, {.uses_cumem = false});
    auto job =
        CudaJob::create(cuda_, nccl_, kMembers, {2, 2}, {.collective_timeout = absl::Seconds(30)});
    ASSERT_THAT(job, IsOk());
    job_ = *std::move(job);
  }
  void TearDown() override {
    job_ = nullptr;
    EXPECT_THAT(cuda_->misuses(), IsEmpty());
    EXPECT_THAT(nccl_->misuses(), IsEmpty());
  }

  // A square matrix of this side from rows to columns: no box is one run on either side.
  static Status transpose_layout(const Member& m, int64_t side) {
    const int64_t part = side / kMembers;
    const Box rows = {{part * m.position, 0}, {part, side}};
    const Box columns = {{0, part * m.position}, {side, part}};
    std::vector<float> in(static_cast<size_t>(part * side));
    std::vector<float> out(in.size());
    for (int64_t i = 0; i < part * side; ++i) {
      in[i] = static_cast<float>(part * side * m.position + i);
    }
    std::vector<BoxPull> pulls;
    for (int source = 0; source < kMembers; ++source) {
      pulls.push_back({source,
                       {{part * source, 0}, {part, side}},
                       {{part * source, part * m.position}, {part, part}}});
    }
    TESSERA_RETURN_IF_ERROR(
        m.group.exchange<float>(in, rows, absl::MakeSpan(out), columns, pulls).await());
    for (int64_t row = 0; row < side; ++row) {
      for (int64_t k = 0; k < part; ++k) {
        const auto want = static_cast<float>(row * side + part * m.position + k);
        if (out[row * part + k] == want) continue;
        return absl::InternalError("an element is wrong");
      }
    }
    return absl::OkStatus();
  }
  static Status sum(const Member& m, int64_t count) {
    const std::vector<float> in(static_cast<size_t>(count), static_cast<float>(m.position + 1));
    std::vector<float> out(in.size());
    TESSERA_RETURN_IF_ERROR(
        m.group.all_reduce<float>(in, absl::MakeSpan(out), ReduceOp::kSum).await());
    return out == std::vector<float>(in.size(), 10) ? absl::OkStatus()
                                                    : absl::InternalError("an element is wrong");
  }

  const testing::TestDeadline deadline_{
      absl::Seconds(90), ::testing::UnitTest::GetInstance()->current_test_info()->name()};
  std::shared_ptr<FakeCuda> cuda_;
  std::shared_ptr<FakeNccl> nccl_;
  std::unique_ptr<CudaJob> job_;
};

// Pools grow with every operation, whether the members know by themselves which memory they need
// (terms) or learn it when they meet (boxes that others want).
TEST_F(PackingTest, PoolsGrowBeforeAnyGpuWaits) {
  start();
  EXPECT_THAT(job_->run([](const Member& m) -> Status {
    for (const int64_t side : {64, 1024, 2048, 16}) {
      TESSERA_RETURN_IF_ERROR(transpose_layout(m, side));
      TESSERA_RETURN_IF_ERROR(sum(m, side * side));
    }
    return absl::OkStatus();
  }),
              IsOk());
}

// An exchange of memory that is on the GPUs already.
struct OnGpus {
  std::shared_ptr<Buffer> in;
  std::shared_ptr<Buffer> out;
  BoxExchange boxes;
};

// A member without memory for what others want of it is found before any GPU was given anything:
// all members get the same error, and the group goes on.
TEST_F(PackingTest, OneWithoutMemoryIsEveryonesError) {
  constexpr int64_t kPart = 128;
  constexpr int64_t kSide = kPart * kMembers;
  constexpr int64_t kBytes = kPart * kSide * 4;
  // The bytes that a member takes for its receives, and for what others want of it.
  constexpr int64_t kOwn = kMembers * kPart * kPart * 4;
  constexpr int64_t kSent = (kMembers - 1) * kPart * kPart * 4;
  start(64 << 20);
  std::vector<OnGpus> members(kMembers);
  for (int d = 0; d < kMembers; ++d) {
    const std::shared_ptr<cuda::SlabPool>& pool = job_->device(d).slabs();
    OnGpus& m = members[d];
    m.in = *Buffer::allocate(pool, kBytes);
    m.out = *Buffer::allocate(pool, kBytes);
    m.boxes.in_box = Box{{kPart * d, 0}, {kPart, kSide}};
    m.boxes.out_box = Box{{0, kPart * d}, {kSide, kPart}};
    std::vector<BoxPull> pulls;
    for (int source = 0; source < kMembers; ++source) {
      pulls.push_back({source,
                       {{kPart * source, 0}, {kPart, kSide}},
                       {{kPart * source, kPart * d}, {kPart, kPart}}});
    }
    m.boxes.pulls = std::move(pulls);
  }
  const auto exchange = [&] {
    std::vector<Work> works;
    std::vector<Status> statuses;
    for (int d = 0; d < kMembers; ++d) {
      const OnGpus& m = members[d];
      works.push_back(internal::start_operation(
          *job_->raw_group(d, {0, 1, 2, 3}),
          {.kind = OpKind::kExchange, .dtype = DType::kFloat32, .boxes = &m.boxes},
          {m.in->data(), kPart * kSide, m.out->mutable_data(), kPart * kSide}));
    }
    for (Work& work : works) statuses.push_back(work.await());
    return statuses;
  };
  // All of GPU 2, and then back the one block that the member takes before it arrives.
  std::shared_ptr<Buffer> sent = *Buffer::allocate(job_->device(2).memory(), kSent);
  std::vector<std::shared_ptr<Buffer>> hoard;
  while (true) {
    StatusOr<std::shared_ptr<Buffer>> block = Buffer::allocate(job_->device(2).memory(), kOwn);
    if (!block.ok()) break;
    hoard.push_back(*std::move(block));
  }
  hoard.pop_back();
  const std::vector<Status> statuses = exchange();
  for (const Status& status : statuses) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("of GPU 2")));
    EXPECT_EQ(status, statuses[0]);
  }
  EXPECT_EQ(nccl_->num_calls("group_end"), 0);
  sent = nullptr;
  for (const Status& status : exchange()) EXPECT_THAT(status, IsOk());
}

}  // namespace
}  // namespace tessera::nccl
