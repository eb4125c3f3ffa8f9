// SPDX-License-Identifier: Apache-2.0
//
// Numbers as messages write them.
#include "base/format.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(FormatTest, WritesDurations) {
  EXPECT_EQ(format_duration(absl::ZeroDuration()), "0 ms");
  EXPECT_EQ(format_duration(absl::Milliseconds(500)), "500 ms");
  EXPECT_EQ(format_duration(absl::Milliseconds(1500)), "1.5 s");
  EXPECT_EQ(format_duration(absl::Seconds(31)), "31 s");
  EXPECT_EQ(format_duration(absl::Seconds(150)), "2.5 min");
  EXPECT_EQ(format_duration(absl::Microseconds(999'400)), "999 ms");
  EXPECT_EQ(format_duration(absl::Microseconds(999'900)), "1 s");
  EXPECT_EQ(format_duration(absl::Hours(100)), "6000 min");
  EXPECT_EQ(format_duration(absl::InfiniteDuration()), "infinite");
  EXPECT_EQ(format_duration(-absl::InfiniteDuration()), "0 ms");
  EXPECT_EQ(format_duration(absl::Seconds(-1)), "0 ms");
  EXPECT_EQ(format_duration(absl::Nanoseconds(-267)), "0 ms");
  EXPECT_EQ(format_duration(absl::Nanoseconds(999)), "0 ms");
  EXPECT_EQ(format_duration(absl::Microseconds(2)), "0.002 ms");
}

TEST(FormatTest, SaysThatALimitIsZero) {
  EXPECT_EQ(not_in_time("not done", absl::Milliseconds(300)), "not done in 300 ms");
  EXPECT_EQ(not_in_time("not over", absl::Seconds(2), "after"), "not over after 2 s");
  EXPECT_EQ(not_in_time("not done", absl::Nanoseconds(1)), "not done in 0.001 ms");
  for (const absl::Duration limit : {absl::ZeroDuration(), absl::Nanoseconds(-1), absl::Seconds(-1),
                                     -absl::InfiniteDuration()}) {
    EXPECT_EQ(not_in_time("not done", limit), "the timeout is 0 or had already passed: not done");
  }
}

TEST(FormatTest, WritesPredictions) {
  EXPECT_EQ(format_prediction(absl::ZeroDuration()), "0 s");
  EXPECT_EQ(format_prediction(absl::Nanoseconds(12'345)), "12.3 us");
  EXPECT_EQ(format_prediction(absl::Microseconds(5'412)), "5.41 ms");
  EXPECT_EQ(format_prediction(absl::Seconds(2)), "2 s");
}

TEST(FormatTest, WritesBytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(int64_t{64} << 20), "64 MiB");
  EXPECT_EQ(format_bytes(INT64_MAX), "8 EiB");
}

}  // namespace
}  // namespace tessera
