// SPDX-License-Identifier: Apache-2.0
//
// The result of opening the CUDA runtime, and the toolkit's functions under the contract of Api
// where there is a GPU.
#include <memory>

#include "absl/time/time.h"
#include "device/cuda/open_api.h"
#include "device/cuda/testing/contract.h"
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
    EXPECT_THAT(api.status(), StatusIs(absl::StatusCode::kUnimplemented,
                                       HasSubstr("install CUDA 12.1 or later")));
  }
}

class ContractOnGpuTest : public ::testing::TestWithParam<ContractCase> {};

TEST_P(ContractOnGpuTest, Holds) {
  const StatusOr<std::shared_ptr<Api>> api = open_api();
  if (!api.ok()) GTEST_SKIP() << api.status().message();
  const testing::TestDeadline deadline(absl::Seconds(120), GetParam().name);
  EXPECT_THAT(GetParam().body(**api), IsOk());
}

INSTANTIATE_TEST_SUITE_P(Api, ContractOnGpuTest, ::testing::ValuesIn(contract_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::cuda
