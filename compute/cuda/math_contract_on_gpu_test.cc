// SPDX-License-Identifier: Apache-2.0
//
// The toolkit's functions under the contract of MathApi, where there is a GPU.

#include "absl/time/time.h"
#include "compute/cuda/open_libraries.h"
#include "compute/cuda/testing/math_contract.h"
#include "device/cuda/open_api.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::cuda {
namespace {

using testing::IsOk;

TEST(OpenLibrariesTest, HasTheErrorOfOpenApi) {
  const auto libraries = open_libraries();
  EXPECT_EQ(libraries.status(), open_api().status());
  if (!libraries.ok()) return;
  EXPECT_NE((*libraries)->math, nullptr);
}

class MathContractOnGpuTest : public ::testing::TestWithParam<MathContractCase> {};

TEST_P(MathContractOnGpuTest, Holds) {
  const auto libraries = open_libraries();
  if (!libraries.ok()) GTEST_SKIP() << libraries.status().message();
  const testing::TestDeadline deadline(absl::Seconds(120), GetParam().name);
  const Libraries& on_gpu = **libraries;
  ASSERT_THAT(on_gpu.cuda->set_device(0), IsOk());
  ASSERT_THAT(on_gpu.math->load_kernels(), IsOk());
  EXPECT_THAT(GetParam().body(on_gpu), IsOk());
}

INSTANTIATE_TEST_SUITE_P(MathApi, MathContractOnGpuTest, ::testing::ValuesIn(math_contract_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::cuda
