// SPDX-License-Identifier: Apache-2.0
#include "job/environment/environment.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"

namespace tessera {
namespace {

// Reads a variable that is a time, if it is set.
Status read_time(const EnvironmentLookup& lookup, const char* name, absl::Duration least,
                 absl::Duration most, absl::string_view range, absl::Duration* time) {
  const char* const text = lookup(name);
  if (text == nullptr) return absl::OkStatus();
  absl::Duration value;
  if (!absl::ParseDuration(text, &value) || value < least || value > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is ", in_quotes(text), "; it must be a time ", range, ", as in 500ms, 30s or 10m"));
  }
  *time = value;
  return absl::OkStatus();
}

}  // namespace

StatusOr<JobTimes> read_job_times(const JobTimeOverrides& overrides,
                                  const EnvironmentLookup& lookup) {
  JobTimes times;
  TESSERA_RETURN_IF_ERROR(read_time(lookup, "TESSERA_HEARTBEAT_INTERVAL", kLeastHeartbeatInterval,
                                    kMostHeartbeatInterval, "from 1 ms to 1 h",
                                    &times.heartbeat_interval));
  TESSERA_RETURN_IF_ERROR(read_time(lookup, "TESSERA_COLLECTIVE_TIMEOUT", absl::ZeroDuration(),
                                    absl::InfiniteDuration(), "of 0 or more",
                                    &times.collective_timeout));
  times.heartbeat_interval = overrides.heartbeat_interval.value_or(times.heartbeat_interval);
  times.collective_timeout = overrides.collective_timeout.value_or(times.collective_timeout);
  return times;
}

StatusOr<JobTimes> read_job_times(const JobTimeOverrides& overrides) {
  return read_job_times(overrides, [](const char* name) { return std::getenv(name); });
}

}  // namespace tessera
