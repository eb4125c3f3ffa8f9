// SPDX-License-Identifier: Apache-2.0
//
// The text of a Progress: counts, rate and time left, without values that are not known.
#include "input/progress.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace tessera::input {
namespace {

absl::Duration after(double seconds) { return absl::Seconds(seconds); }

TEST(ProgressTest, StepsExamplesRateAndTimeLeft) {
  Progress progress({.steps = 235, .examples = 30000});
  EXPECT_EQ(progress.to_string(), "step 0 of 235, 0 of 30,000 examples");
  for (int step = 1; step <= 12; ++step) progress.add(128, after(step * 128 / 12000.0));
  EXPECT_EQ(progress.steps(), 12);
  EXPECT_EQ(progress.examples(), 1536);
  EXPECT_NEAR(progress.rate(), 12000, 0.01);
  EXPECT_EQ(progress.to_string(), "step 12 of 235, 1,536 of 30,000 examples, 12,000/s, 2.4 s left");
  // The last batch is smaller. After more steps than the total no time is left.
  progress.add(28464, after(2.5));
  EXPECT_EQ(progress.to_string(),
            "step 13 of 235, 30,000 of 30,000 examples, 12,000/s, 0.0 s left");
  progress.add(1, after(3));
  EXPECT_EQ(progress.to_string(),
            "step 14 of 235, 30,001 of 30,000 examples, 10,000/s, 0.0 s left");
}

TEST(ProgressTest, WhatIsNotKnownIsLeftOut) {
  Progress none;
  EXPECT_EQ(none.rate(), 0);
  none.add(1000, after(0));
  EXPECT_EQ(none.to_string(), "step 1, 1,000 examples");
  none.add(234567, after(1));
  EXPECT_EQ(none.to_string(), "step 2, 235,567 examples, 235,567/s");

  Progress steps({.steps = 40});
  steps.add(0, after(1));
  EXPECT_EQ(steps.to_string(), "step 1 of 40, 0 examples");
  steps.add(10, after(2));
  EXPECT_EQ(steps.to_string(), "step 2 of 40, 10 examples, 5/s, 38 s left");
}

// Times from the clock.
TEST(ProgressTest, CountsByTheClock) {
  Progress progress;
  for (int i = 0; i < 1000; ++i) progress.add(1);
  EXPECT_EQ(progress.steps(), 1000);
  EXPECT_GE(progress.rate(), 0);
}

}  // namespace
}  // namespace tessera::input
