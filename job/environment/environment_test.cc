// SPDX-License-Identifier: Apache-2.0
//
// The times of a job, from an injected lookup. A row's first field is its name.
#include "job/environment/environment.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/testing/variables.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using absl::StatusCode;
using ::testing::Eq;
using testing::lookup_of;
using testing::StatusIs;
using ::testing::ValuesIn;
using testing::Variables;

StatusOr<JobTimes> read_times(const Variables& variables, const JobTimeOverrides& overrides = {}) {
  return read_job_times(overrides, lookup_of(variables));
}

struct TimesCase {
  const char* name;
  Variables variables;
  absl::Duration heartbeat_interval;
  absl::Duration collective_timeout;
  JobTimeOverrides overrides = {};
};

const TimesCase kTimes[] = {
    {"defaults", {}, absl::Seconds(1), absl::InfiniteDuration()},
    {"of_the_environment",
     {{"TESSERA_HEARTBEAT_INTERVAL", "10m"}, {"TESSERA_COLLECTIVE_TIMEOUT", "1.5s"}},
     absl::Minutes(10),
     absl::Milliseconds(1500)},
    {"limits",
     {{"TESSERA_HEARTBEAT_INTERVAL", "1ms"}, {"TESSERA_COLLECTIVE_TIMEOUT", "0"}},
     absl::Milliseconds(1),
     absl::ZeroDuration()},
    {"other_limits",
     {{"TESSERA_HEARTBEAT_INTERVAL", "1h"}, {"TESSERA_COLLECTIVE_TIMEOUT", "inf"}},
     absl::Hours(1),
     absl::InfiniteDuration()},
    {"the_program_wins",
     {{"TESSERA_HEARTBEAT_INTERVAL", "10m"}, {"TESSERA_COLLECTIVE_TIMEOUT", "1.5s"}},
     absl::Seconds(1),
     absl::InfiniteDuration(),
     {.heartbeat_interval = absl::Seconds(1), .collective_timeout = absl::InfiniteDuration()}},
};

class TimesTest : public ::testing::TestWithParam<TimesCase> {};

TEST_P(TimesTest, AreRead) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const JobTimes times,
                               read_times(GetParam().variables, GetParam().overrides));
  EXPECT_EQ(times.heartbeat_interval, GetParam().heartbeat_interval);
  EXPECT_EQ(times.collective_timeout, GetParam().collective_timeout);
}

template <class Case>
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Times, TimesTest, ValuesIn(kTimes), name_of<TimesCase>);

struct BadTimesCase {
  const char* name;
  const char* variable;
  const char* text;
  const char* range;
};

const BadTimesCase kBadTimes[] = {
    {"heartbeats_of_a_word", "TESSERA_HEARTBEAT_INTERVAL", "soon", "from 1 ms to 1 h"},
    {"heartbeats_without_a_unit", "TESSERA_HEARTBEAT_INTERVAL", "5", "from 1 ms to 1 h"},
    {"heartbeats_of_nothing", "TESSERA_HEARTBEAT_INTERVAL", "", "from 1 ms to 1 h"},
    {"heartbeats_too_short", "TESSERA_HEARTBEAT_INTERVAL", "999us", "from 1 ms to 1 h"},
    {"heartbeats_too_long", "TESSERA_HEARTBEAT_INTERVAL", "61m", "from 1 ms to 1 h"},
    {"no_heartbeats", "TESSERA_HEARTBEAT_INTERVAL", "inf", "from 1 ms to 1 h"},
    {"timeout_of_a_word", "TESSERA_COLLECTIVE_TIMEOUT", "1 hour", "of 0 or more"},
    {"timeout_below_0", "TESSERA_COLLECTIVE_TIMEOUT", "-1s", "of 0 or more"},
};

class BadTimesTest : public ::testing::TestWithParam<BadTimesCase> {};

TEST_P(BadTimesTest, IsRefused) {
  const BadTimesCase& row = GetParam();
  const std::string message =
      absl::StrCat(row.variable, " is \"", row.text, "\"; it must be a time ", row.range,
                   ", as in 500ms, 30s or 10m");
  // A value from the program does not hide a mistake.
  for (const JobTimeOverrides& overrides :
       {JobTimeOverrides{}, JobTimeOverrides{absl::Seconds(1), absl::Seconds(1)}}) {
    EXPECT_THAT(read_times({{row.variable, row.text}}, overrides),
                StatusIs(StatusCode::kInvalidArgument, Eq(message)));
  }
}

INSTANTIATE_TEST_SUITE_P(Times, BadTimesTest, ValuesIn(kBadTimes), name_of<BadTimesCase>);

}  // namespace
}  // namespace tessera
