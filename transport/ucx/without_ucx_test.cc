// SPDX-License-Identifier: Apache-2.0
//
// The error of a build without UCX.
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/matchers.h"
#include "transport/ucx/ucx_engine.h"

namespace tessera::ucx {
namespace {

TEST(WithoutUcxTest, SaysWhatToInstall) {
  testing::FakeJob job({1, 1});
  EXPECT_THAT(make_ucx_engine(job.coordinator(0), {}),
              testing::StatusIs(absl::StatusCode::kUnimplemented,
                                ::testing::HasSubstr("this build has no UCX; install libucx-dev")));
}

}  // namespace
}  // namespace tessera::ucx
