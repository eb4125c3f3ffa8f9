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
//   1. When launch() returns no client is left, nor any process that a client has started,
//      whichever session that process made for itself (descendants.h). The process group of a
//      client is asked to stop with the client. Processes that have left the group are killed when
//      all clients have ended. When the launcher is killed with SIGKILL the kernel kills the
//      clients, but not the processes that they have started.
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
//   6. With --hosts the processes are ssh processes, one for each host, and each of them runs the
//      launcher of a node (remote_hosts.h). A node is asked to stop, and reports, before its ssh is
//      ended. When this launcher is killed, the nodes stop their clients.
//
// torch: torchrun. Open MPI: mpirun.
#ifndef TESSERA_JOB_LAUNCHER_LAUNCHER_H_
#define TESSERA_JOB_LAUNCHER_LAUNCHER_H_

#include "base/status.h"
#include "job/launcher/launch_options.h"

namespace tessera {

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
