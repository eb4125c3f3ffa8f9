// SPDX-License-Identifier: Apache-2.0
//
// The facts that a client knows of its job before it connects: JobEnvironment, which
// read_job_environment() fills in (job/cluster/job_environment.h), and JobTimes.
#ifndef TESSERA_JOB_ENVIRONMENT_ENVIRONMENT_H_
#define TESSERA_JOB_ENVIRONMENT_ENVIRONMENT_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "base/status.h"
#include "job/environment/environment_lookup.h"

namespace tessera {

struct JobEnvironment {
  std::string coordinator = {};  // "host:port"; empty for a job of one client
  // Another process than client 0 hosts the coordinator.
  bool coordinator_is_hosted = false;
  std::string relay = {};  // "host:port" of the relay of this host; empty: none
  // Tells the job from others that use the same address; empty where the launcher gives no name.
  std::string job = {};
  int client_id = 0;
  int num_clients = 1;
  int num_local_devices = 1;
  std::string token = {};
  // Whether the launcher started all clients on one host; unset where it does not say.
  std::optional<bool> on_one_host = {};
  bool share_gpus = false;
};

// How often the clients of a job send heartbeats, and how long a collective may take.
struct JobTimes {
  absl::Duration heartbeat_interval = absl::Seconds(1);
  absl::Duration collective_timeout = absl::InfiniteDuration();
};
inline constexpr absl::Duration kLeastHeartbeatInterval = absl::Milliseconds(1);
inline constexpr absl::Duration kMostHeartbeatInterval = absl::Hours(1);

// Values from the program, which take precedence. The variables are read even so: a wrong one is
// InvalidArgument, which names it, its text and the range.
struct JobTimeOverrides {
  std::optional<absl::Duration> heartbeat_interval = {};
  std::optional<absl::Duration> collective_timeout = {};
};
StatusOr<JobTimes> read_job_times(const JobTimeOverrides& overrides,
                                  const EnvironmentLookup& lookup);
// From the environment of this process.
StatusOr<JobTimes> read_job_times(const JobTimeOverrides& overrides);

}  // namespace tessera

#endif  // TESSERA_JOB_ENVIRONMENT_ENVIRONMENT_H_
