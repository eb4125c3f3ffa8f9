// SPDX-License-Identifier: Apache-2.0
//
// The fake keeps the contract of MathApi, and nothing in the contract is a misuse of CUDA.
#include "compute/cuda/testing/math_contract.h"

#include <memory>

#include "absl/time/time.h"
#include "compute/cuda/fake/fake_math.h"
#include "device/cuda/fake/fake_cuda.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::cuda {
namespace {

using ::testing::IsEmpty;
using testing::IsOk;

class MathContractTest : public ::testing::TestWithParam<MathContractCase> {};

TEST_P(MathContractTest, HoldsOnTheFake) {
  const testing::TestDeadline deadline(absl::Seconds(60), GetParam().name);
  const std::shared_ptr<FakeCuda> cuda = FakeCuda::create({.most_yields = 3});
  EXPECT_THAT(GetParam().body(*fake_libraries(cuda)), IsOk());
  EXPECT_THAT(cuda->misuses(), IsEmpty());
  EXPECT_EQ(cuda->allocated_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(MathApi, MathContractTest, ::testing::ValuesIn(math_contract_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::cuda
