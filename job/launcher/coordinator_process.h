// SPDX-License-Identifier: Apache-2.0
//
// CoordinatorProcess: the service of a job in a child process of its own, for launchers.
//
//   TESSERA_ASSIGN_OR_RETURN(CoordinatorProcess coordinator,
//                            CoordinatorProcess::start({.address = ..., .token = ...}));
//   ... start the clients, and wait for their end ...
//
// A launcher forks clients, and their restarts. gRPC and its threads do not survive a fork, so the
// service runs in a child that is forked before the clients, and the launcher does not use gRPC.
// The service also survives errors in the launcher's other work, unlike a thread of the launcher.
//
// Invariants:
//   1. When start() returns OK the service listens.
//   2. The child ends with the object: in order, so that clients elsewhere that have not read their
//      last answer get it. It also ends with the thread that made it: the kernel kills it then. A
//      copy of the object in a forked process does nothing.
//   3. No signal of a terminal ends it, and it holds no descriptor of the launcher except standard
//      error: the job decides when it ends.
//   4. A terminal stops it exactly when it stops the clients; otherwise it would declare them lost
//      (ProcessGroup).
//
// Not thread-safe.
#ifndef TESSERA_JOB_LAUNCHER_COORDINATOR_PROCESS_H_
#define TESSERA_JOB_LAUNCHER_COORDINATOR_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "base/status.h"
#include "job/coordinator/coordinator_server.h"
#include "job/environment/file_descriptor.h"
#include "job/launcher/exit_status.h"
#include "job/launcher/process.h"

namespace tessera {

// The process group of the child, to which a terminal sends its signals.
enum class ProcessGroup : uint8_t {
  kOwn,       // no signal of a terminal reaches it: clients are in groups of their own too
  kOfCaller,  // Ctrl-Z stops it together with the caller and the clients; other signals are blocked
};

class CoordinatorProcess {
 public:
  // Errors as of CoordinatorServer::start(). ResourceExhausted: no process or descriptor is left.
  // DeadlineExceeded: the service does not listen within `timeout`.
  static StatusOr<CoordinatorProcess> start(const CoordinatorServerOptions& options,
                                            ProcessGroup group = ProcessGroup::kOwn,
                                            absl::Duration timeout = absl::Seconds(60));

  CoordinatorProcess(CoordinatorProcess&&) = default;
  CoordinatorProcess& operator=(CoordinatorProcess&&) = delete;
  // Ends the service as CoordinatorServer::stop() does, and waits for the end of the child; kills
  // it where it does not act.
  ~CoordinatorProcess();

  pid_t pid() const { return process_.pid(); }
  // How the child has ended, if it has or is being ended: before its time.
  std::optional<ExitStatus> poll_exit();

 private:
  CoordinatorProcess(Process process, FileDescriptor channel)
      : process_(std::move(process)), channel_(std::move(channel)) {}

  Process process_;
  FileDescriptor channel_;  // the child writes its start's result, this process the request to end
};

}  // namespace tessera

#endif  // TESSERA_JOB_LAUNCHER_COORDINATOR_PROCESS_H_
