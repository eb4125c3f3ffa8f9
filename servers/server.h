// SPDX-License-Identifier: Apache-2.0
//
// Server: serves one task of a cluster. A worker runs functions; a parameter server (ps) holds
// variables. The program of such a task is start and join:
//
//   FunctionRegistry functions = ...;                    the same in all workers
//   StatusOr<Server> server = Server::start(*cluster, functions);
//   Status end = server->join();
//
// The chief's program makes a ClusterCoordinator (cluster_coordinator.h), which connects to all
// servers. A server serves one ClusterCoordinator in its life, and ends when it ends, in order or
// not. A worker that is started again rejoins the cluster. The variables of a parameter server are
// lost when it ends.
//
// Every call carries a token: $TESSERA_TOKEN. If it is not set and all tasks are on one host, the
// server makes a token and leaves it in a file that only this user can read.
//
// Invariants:
//   1. join() returns OK when the coordinator or stop() has ended the server in order. It returns
//      Unavailable a second after the chief's process has ended, and when the chief was silent for
//      more than three intervals of heartbeats (CoordinatorOptions::heartbeat_interval). Intervals
//      are counted, not timed, so a pause of this process alone ends nothing.
//   2. The port belongs to this server alone. A connection without the token costs a bounded share
//      of the process for a bounded time, and the requests of its calls are not received.
//
// Thread-safe. A worker has its own Client, a job of one client; it ignores the environment
// variables of launchers.
// TF: tf.distribute.Server.
#ifndef TESSERA_SERVERS_SERVER_H_
#define TESSERA_SERVERS_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/public.h"
#include "base/status.h"
#include "base/wait_report.h"
#include "job/cluster/cluster.h"
#include "servers/function_registry.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute {

namespace internal {
struct ReportTimes;  // of tests
}  // namespace internal

struct ServerOptions {
  // Receives the reports of join() instead of stderr. A thread of the server calls it until the
  // Server is destroyed. Must not block, throw, or call the server.
  std::function<void(const WaitReport& report)> on_wait = {};
};

class Server {
 public:
  // Serves this process's task of `cluster`, a worker or a ps, at its address.
  //   InvalidArgument    another task, a cluster without addresses, or tasks on several hosts and
  //                      no $TESSERA_TOKEN
  //   Unavailable        the address cannot be listened on
  static StatusOr<Server> start(const cluster::Cluster& cluster, FunctionRegistry functions = {},
                                const ServerOptions& options = {});
  Server(Server&& other) noexcept;
  Server& operator=(Server&& other) noexcept;
  // Calls stop().
  ~Server();

  // "host:port". If the cluster says port 0, the port that the server got.
  const std::string& address() const;
  // Blocks until the server has ended. While no chief has connected, reports this in a line on
  // stderr after 10 s, 30 s, 1, 2 and 5 minutes, and then every 5 minutes.
  Status join();
  // Ends the server: join() returns OK. Waits up to `grace` for a running function; the message of
  // DeadlineExceeded names it. Idempotent. Unless the coordinator has ended before, the chief
  // counts the task as lost.
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

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_SERVERS_SERVER_H_
