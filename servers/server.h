// SPDX-License-Identifier: Apache-2.0
//
// Server: a task of a cluster that serves: a worker, which runs functions, or a parameter server
// (ps), which holds variables. The program of such a task is start and join:
//
//   FunctionRegistry functions = ...;                    the same in all workers
//   StatusOr<Server> server = Server::start(*cluster, functions);
//   Status end = server->join();
//
// The chief's program makes a ClusterCoordinator (cluster_coordinator.h), which connects to all
// servers. A server serves one ClusterCoordinator in its life: it ends with it, in order or not. A
// worker that is started again takes part again; a parameter server that ends takes its variables
// with it.
//
// Every call carries a token: $TESSERA_TOKEN, or without it, where all tasks are on one host, a
// token that the server leaves in a file that only this user can read.
//
// Invariants:
//   1. join() returns: OK when the coordinator or stop() has ended the server in order; Unavailable
//      a second after the chief's process has ended, or when the chief was silent for more
//      than three intervals of heartbeats (CoordinatorOptions::heartbeat_interval), counted and not
//      timed, so that a pause of this process alone ends nothing.
//   2. The port is of this server alone. A connection without the token costs a bounded share of
//      the process for a bounded time, and the requests of its calls are not received.
//
// Thread-safe. A worker holds a Client of its own, a job of one client; it does not read the
// variables of launchers.
// TF: tf.distribute.Server.
#ifndef TESSERA_SERVERS_SERVER_H_
#define TESSERA_SERVERS_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/status.h"
#include "base/wait_report.h"
#include "job/cluster/cluster.h"
#include "servers/function_registry.h"

namespace tessera::distribute {

namespace internal {
struct ReportTimes;  // of tests
}  // namespace internal

struct ServerOptions {
  // Gets the reports of join() instead of stderr. Called by a thread of the server's own, until the
  // end of the Server. Must not block, throw, nor call the server.
  std::function<void(const WaitReport& report)> on_wait = {};
};

class Server {
 public:
  // Serves the task of `cluster` that this process is, a worker or a ps, at its address.
  //   InvalidArgument    another task, a cluster without addresses, or tasks on several hosts and
  //                      no $TESSERA_TOKEN
  //   Unavailable        the address cannot be listened on
  static StatusOr<Server> start(const cluster::Cluster& cluster, FunctionRegistry functions = {},
                                const ServerOptions& options = {});
  Server(Server&& other) noexcept;
  Server& operator=(Server&& other) noexcept;
  // As stop().
  ~Server();

  // "host:port", with the port that it got where the cluster says 0.
  const std::string& address() const;
  // Blocks until the server has ended. While no chief has connected, a line on stderr says so after
  // 10 s, 30 s, 1, 2 and 5 minutes, and every 5 minutes.
  Status join();
  // Ends the server: join() returns OK. Waits for a function that runs; DeadlineExceeded names one
  // that has not returned by then. Idempotent. To the chief the task is lost, unless the
  // coordinator has ended before.
  Status stop(absl::Duration grace = absl::Seconds(5));

 private:
  class Impl;
  friend struct internal::ReportTimes;
  // `wait_report_unit` replaces 10 s in the times of reports.
  static StatusOr<Server> start(const cluster::Cluster& cluster, FunctionRegistry functions,
                                const ServerOptions& options, absl::Duration wait_report_unit);
  explicit Server(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::distribute

#endif  // TESSERA_SERVERS_SERVER_H_
