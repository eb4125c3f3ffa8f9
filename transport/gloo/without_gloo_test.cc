// SPDX-License-Identifier: Apache-2.0
//
// The error of a build that found no Gloo.
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/matchers.h"
#include "transport/gloo/gloo_engine.h"

namespace tessera::gloo {
namespace {

TEST(WithoutGlooTest, SaysWhatToInstall) {
  testing::FakeJob job({1, 1});
  EXPECT_THAT(
      make_gloo_engine(job.coordinator(0), {}),
      testing::StatusIs(absl::StatusCode::kUnimplemented,
                        ::testing::HasSubstr("this build has no Gloo; install libgloo-dev")));
}

}  // namespace
}  // namespace tessera::gloo
