// SPDX-License-Identifier: Apache-2.0
//
// What opening the CUDA runtime says; and the toolkit's functions under the contract of Api, where
// there is a GPU.
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "device/cuda/contract.h"
#include "device/cuda/open_api.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::cuda {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

TEST(OpenApiTest, SaysWhatIsMissing) {
  const StatusOr<std::shared_ptr<Api>> api = open_api();
  if (api.ok()) {
    EXPECT_GE(*(*api)->device_count(), 1);
  } else if (has_toolkit()) {
    EXPECT_THAT(api.status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no GPU: ")));
  } else {
    EXPECT_THAT(api.status(),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("install CUDA 12 or later")));
  }
}

// Without a GPU there are no cases.
class ContractOnGpuTest : public ::testing::TestWithParam<ContractCase> {};

std::vector<ContractCase> cases_if_there_is_a_gpu() {
  return open_api().ok() ? contract_cases() : std::vector<ContractCase>();
}

TEST_P(ContractOnGpuTest, Holds) {
  const StatusOr<std::shared_ptr<Api>> api = open_api();
  ASSERT_THAT(api, IsOk());
  const testing::TestDeadline deadline(absl::Seconds(120), GetParam().name);
  EXPECT_THAT(GetParam().body(**api), IsOk());
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ContractOnGpuTest);
INSTANTIATE_TEST_SUITE_P(Api, ContractOnGpuTest, ::testing::ValuesIn(cases_if_there_is_a_gpu()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::cuda
