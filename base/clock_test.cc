// SPDX-License-Identifier: Apache-2.0
//
// The clock inside Tessera is the kernel's monotonic one, also where other libraries want a time.
#include "base/clock.h"

#include <time.h>

#include <chrono>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ClockTest, CountsFromTheBootOfTheMachine) {
  timespec before;
  clock_gettime(CLOCK_MONOTONIC, &before);
  const absl::Time now = steady_now();
  timespec after;
  clock_gettime(CLOCK_MONOTONIC, &after);
  EXPECT_GE(now, absl::TimeFromTimespec(before));
  EXPECT_LE(now, absl::TimeFromTimespec(after));
}

TEST(ClockTest, TheCoarseClockIsNeverAheadAndNeverGoesBack) {
  absl::Time last = coarse_steady_now();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time coarse = coarse_steady_now();
    EXPECT_GE(coarse, last);
    EXPECT_LE(coarse, steady_now());
    last = coarse;
  }
  EXPECT_GT(coarse_tick(), absl::ZeroDuration());
  EXPECT_LE(coarse_tick(), absl::Milliseconds(10));
}

TEST(ClockTest, ADeadlineIsAsFarAwayOnEveryClock) {
  const absl::Time deadline = steady_now() + absl::Hours(1);
  const auto steady = to_chrono_steady(deadline) - std::chrono::steady_clock::now();
  const auto wall = to_chrono_wall(deadline) - std::chrono::system_clock::now();
  EXPECT_LE(steady, std::chrono::hours(1));
  EXPECT_GT(steady, std::chrono::minutes(50));
  EXPECT_LE(wall, std::chrono::hours(1) + std::chrono::minutes(1));
  EXPECT_GT(wall, std::chrono::minutes(50));
}

TEST(ClockTest, TimesWithoutEndAreFarAway) {
  const auto year = std::chrono::hours(24 * 365);
  EXPECT_GT(to_chrono_steady(absl::InfiniteFuture()), std::chrono::steady_clock::now() + year);
  EXPECT_LT(to_chrono_steady(absl::InfinitePast()), std::chrono::steady_clock::now() - year);
  EXPECT_GT(to_chrono_wall(absl::InfiniteFuture()), std::chrono::system_clock::now() + year);
  EXPECT_LT(to_chrono_wall(absl::InfinitePast()), std::chrono::system_clock::now() - year);
}

TEST(ClockTest, TimeoutOfPollIsRoundedUpAndAtMostAnHour) {
  EXPECT_EQ(poll_timeout_ms(absl::InfiniteDuration()), 3'600'000);
  EXPECT_EQ(poll_timeout_ms(absl::Microseconds(1001)), 2);
  EXPECT_EQ(poll_timeout_ms(absl::Milliseconds(1)), 1);
  EXPECT_EQ(poll_timeout_ms(absl::ZeroDuration()), 0);
  EXPECT_EQ(poll_timeout_ms(-absl::Seconds(1)), 0);
}

}  // namespace
}  // namespace tessera
