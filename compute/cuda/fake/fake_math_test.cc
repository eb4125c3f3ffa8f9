// SPDX-License-Identifier: Apache-2.0
//
// What the fake says of misuse of MathApi, and the faults that are put into its calls.
#include "compute/cuda/fake/fake_math.h"

#include <cstddef>
#include <memory>

#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;

class FakeMathTest : public ::testing::Test {
 protected:
  FakeMathTest() {
    cuda_->set_device(0).IgnoreError();
    stream_ = *cuda_->create_stream();
    memory_ = *cuda_->allocate(4096);
  }

  // Copies 4 elements of f32 by one vector.
  Map map_from(std::byte* in) const {
    Map map;
    map.is_packed = true;
    map.in[0] = {.data = in, .run_stride = 1};
    map.out = memory_ + 1024;
    map.run_elements = 4;
    map.num_items = 1;
    return map;
  }

  const testing::TestDeadline deadline_{absl::Seconds(30), "fake_math_test"};
  std::shared_ptr<FakeCuda> cuda_ = FakeCuda::create({.num_gpus = 2});
  const std::shared_ptr<MathApi> math_ = fake_libraries(cuda_)->math;
  StreamHandle stream_ = nullptr;
  std::byte* memory_ = nullptr;
};

TEST_F(FakeMathTest, RefusesPacksOfAMapThatAreNotAligned) {
  ASSERT_THAT(math_->load_kernels(), IsOk());
  EXPECT_THAT(math_->launch(map_from(memory_ + 4), stream_), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(cuda_->misuses(), ElementsAre("launch: a kernel of memory that is not aligned"));
}

TEST_F(FakeMathTest, RefusesPacksOfAReductionThatAreNotAligned) {
  ASSERT_THAT(math_->load_kernels(), IsOk());
  ReduceDims reduce;
  reduce.pack = 4;
  reduce.in = memory_ + 4;
  reduce.out = memory_ + 1024;
  reduce.num_items = 1;
  EXPECT_THAT(math_->launch(reduce, stream_), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(cuda_->misuses(), ElementsAre("launch: a kernel of memory that is not aligned"));
}

TEST_F(FakeMathTest, KernelsAreLoadedBeforeTheyRun) {
  const Map map = map_from(memory_);
  EXPECT_THAT(math_->launch(map, stream_), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(cuda_->misuses(), ElementsAre("launch: the math kernels of GPU 0 are not loaded"));
  EXPECT_THAT(math_->load_kernels(), IsOk());
  EXPECT_THAT(math_->launch(map, stream_), IsOk());
  EXPECT_EQ(cuda_->num_calls("launch"), 1);
}

TEST_F(FakeMathTest, FaultsAreThoseOfTheFakeOfCuda) {
  ASSERT_THAT(math_->load_kernels(), IsOk());
  cuda_->fail("launch", 1, absl::UnavailableError("cudaErrorECCUncorrectable"));
  EXPECT_THAT(math_->launch(map_from(memory_), stream_), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(cuda_->misuses(), IsEmpty());
}

}  // namespace
}  // namespace tessera::cuda
