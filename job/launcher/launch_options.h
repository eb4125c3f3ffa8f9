// SPDX-License-Identifier: Apache-2.0
//
// LauncherOptions: the options of tessera_run, their checks, and the environment that it gives to a
// client.
#ifndef TESSERA_JOB_LAUNCHER_LAUNCH_OPTIONS_H_
#define TESSERA_JOB_LAUNCHER_LAUNCH_OPTIONS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace tessera {

struct LauncherOptions {
  int num_clients = 0;                                // on this host
  std::optional<int> devices_per_client;              // unset: TESSERA_LOCAL_DEVICES as it is
  absl::Duration timeout = absl::InfiniteDuration();  // of the whole job, restarts included
  absl::Duration grace = absl::Seconds(5);            // from the request to stop to SIGKILL
  absl::Duration settle = absl::Milliseconds(250);    // from the first failure to the stop
  int max_restarts = 0;
  std::string log_dir;  // empty: no log files
  int num_nodes = 1;
  int node_id = 0;
  std::string coordinator;         // "host:port"; empty: a free port here
  std::vector<std::string> hosts;  // to start num_clients on each, over ssh; empty: here only
  std::string ssh = "ssh -o BatchMode=yes";
  int relay_above = 1000;            // clients of the job: see below
  bool is_from_launcher = false;     // standard input: the environment, then the request to stop
  std::vector<std::string> command;  // the program and its arguments

  // InvalidArgument names the flag of tessera_run, its value and the permitted values.
  Status validate() const;
};

// The environment of one client without TESSERA_STATUS_FD: the environment of this process, with
//   TESSERA_COORDINATOR, TESSERA_HOSTED_COORDINATOR (the same address: no client hosts it; unset
//   for one client, which needs no coordinator), TESSERA_COORDINATOR_RELAY (unset without a relay),
//   TESSERA_CLIENT_ID, TESSERA_NUM_CLIENTS, TESSERA_TOKEN, TESSERA_JOB (empty with several nodes),
//   TESSERA_RESTART, TESSERA_LOCAL_DEVICES (where it is given), and for other libraries RANK,
//   LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
struct ClientEnvironment {
  std::string coordinator;     // "host:port"
  std::string relay = {};      // "host:port" of the relay of this node; empty: none
  std::string master_address;  // "host:port", another port: both libraries may be in one program
  std::string token;
  std::string job;  // tells the attempts of jobs apart
  int local_index = 0;
  int attempt = 0;  // 0, then one more for each restart

  std::vector<std::string> variables(const LauncherOptions& options) const;
};

// Refuses, on node 0 of several, a coordinator at a name that other hosts do not reach: a name, not
// a number or "localhost", that leads to a loopback address, as `route` (route_to() of the address)
// shows. InvalidArgument names /etc/hosts.
Status check_coordinator_name(const LauncherOptions& options, absl::string_view route);

// Refuses more clients on this host than the limits of this process allow, before any is started.
// ResourceExhausted names the need, the limit, and its ulimit.
Status check_limits(const LauncherOptions& options);

}  // namespace tessera

#endif  // TESSERA_JOB_LAUNCHER_LAUNCH_OPTIONS_H_
