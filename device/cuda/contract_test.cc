// SPDX-License-Identifier: Apache-2.0
//
// The fake keeps the contract of Api, and nothing in the contract is a misuse of CUDA.
#include "device/cuda/testing/contract.h"

#include <memory>

#include "absl/time/time.h"
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

class ContractTest : public ::testing::TestWithParam<ContractCase> {};

TEST_P(ContractTest, HoldsOnTheFake) {
  const testing::TestDeadline deadline(absl::Seconds(60), GetParam().name);
  const std::shared_ptr<FakeCuda> api = FakeCuda::create({.most_yields = 3});
  EXPECT_THAT(GetParam().body(*api), IsOk());
  EXPECT_THAT(api->misuses(), IsEmpty());
  EXPECT_EQ(api->allocated_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Api, ContractTest, ::testing::ValuesIn(contract_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::cuda
