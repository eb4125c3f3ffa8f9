// SPDX-License-Identifier: Apache-2.0
//
// Launcher: starts the clients of a job on this host, and ends them together.
//
//   tessera_run --clients 4 program args...     (tessera_run.cc holds the flags)
//
//   running --first failure--> settling --settle--> stopping --grace--> killed
//      |                                               ^
//      +------ a signal, the timeout ------------------+      a second signal: killed at once
//
// Invariants:
//   1. When launch() returns no client is left, nor any process that a client has started, whatever
//      session it made for itself (descendants.h). The process group of a client is told to stop
//      with it; what has left the group is killed when all clients have ended. When the launcher is
//      killed with SIGKILL the kernel kills the clients, and not what they have started.
//   2. A failure is a client that ended by itself, other than with exit(0), before the launcher
//      sent it a signal. Failures are listed in the order in which the kernel ended the processes
//      (an epoll set queues them so), however late the launcher sees them. Clients that reported
//      the loss of a peer (status_channel.h) are listed after the others.
//   3. After the first failure the launcher waits for `settle` before it stops the others, so that
//      two clients that fail at the same time are both reported.
//   4. Each line of output is written whole, with its client before it.
//   5. The coordinator of the job is in a process of its own (coordinator_process.h), a new one for
//      each attempt: the loss of any client, 0 included, leaves it running. With several nodes the
//      launcher of node 0 hosts it. In a job of more than `relay_above` clients the launcher of
//      each other node runs a relay (coordinator_server.h), so that the coordinator has one stream
//      for its clients. The relay ends with the launcher, and so do the clients.
//   6. With --hosts the processes are those of ssh, one for each host, and each of them runs the
//      launcher of a node (remote_hosts.h). A node is told to stop, and reports, before its ssh is
//      ended. When this launcher is killed, the nodes stop their clients.
//
// torch: torchrun. Open MPI: mpirun.
#ifndef TESSERA_JOB_LAUNCHER_LAUNCHER_H_
#define TESSERA_JOB_LAUNCHER_LAUNCHER_H_

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

  // InvalidArgument names the flag of tessera_run, its value and what it should be.
  Status validate() const;
};

// The environment of one client without TESSERA_STATUS_FD: that of this process, with
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

// Refuses, on node 0 of several, a coordinator at a name that other hosts do not reach: its name,
// not a number or "localhost", leads to a loopback address, as `route` (route_to() of it) says.
// InvalidArgument names /etc/hosts.
Status check_coordinator_name(const LauncherOptions& options, absl::string_view route);

// Refuses more clients on this host than the limits of this process allow: before any is started.
// ResourceExhausted names what is needed, the limit, and its ulimit.
Status check_limits(const LauncherOptions& options);

// Runs the job to its end; output and reports go to this process's standard output and error.
// Returns the exit code for the process: 0; the code of the first failure (128 + signal if a
// signal ended it); 124 after the timeout; 128 + signal if a signal told this process to stop.
//
//   NotFound             there is no such program
//   FailedPrecondition   the program cannot be executed
//   InvalidArgument      options.validate()
//   ResourceExhausted    too many clients for the limits of this host
//   Unavailable          the coordinator cannot listen at its address
//   DeadlineExceeded     the coordinator does not listen in time
//
// For a process that does nothing else: it takes the signals SIGINT, SIGTERM, SIGQUIT, SIGHUP and
// SIGPIPE of the whole process, and is called from the main thread.
StatusOr<int> launch(const LauncherOptions& options);

}  // namespace tessera

#endif  // TESSERA_JOB_LAUNCHER_LAUNCHER_H_
