// SPDX-License-Identifier: Apache-2.0
//
// CoordinatorServer: the coordinator's service. Any process may host it: a launcher, a program of
// its own, or client 0 of the job. The rest of job/ sees no gRPC.
//
//   server = CoordinatorServer::start(
//       {.address = "127.0.0.1:0", .token = token, .num_clients = 4});
//   ... start clients with the address "127.0.0.1:<server->port()>" ...
//   server->stop();                      an orderly end; without it clients see a crash
//
// Invariants:
//   1. The service knows clients only by their registrations. The end of the process that hosts it
//      is the end of the service, and is the loss of a client only where that client hosts it.
//   2. The port belongs to this service alone: a second service at the same address is refused.
//   3. A relay serves the clients of its host as the service would, over one stream to it
//      (upstream.h). Its end is the loss of these clients, so it must run in a process that does
//      not end before them, such as the launcher of their host.
//   4. A connection that does not show the token costs a bounded share of the process for a bounded
//      time (listener.h). The token is never written anywhere.
#ifndef TESSERA_JOB_COORDINATOR_COORDINATOR_SERVER_H_
#define TESSERA_JOB_COORDINATOR_COORDINATOR_SERVER_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/status.h"

namespace tessera {

struct CoordinatorServerOptions {
  std::string address;  // "host:port" to listen on; port 0: a free one
  std::string token;    // job token, which every call must carry; any bytes
  int num_clients = 1;
  // Identity of the job: clients of another job are refused. Empty: the identity of the first
  // client that has one.
  std::string job = {};
  // The upper limit. The job uses the shortest interval that a client asks for. A client is lost
  // when it has missed more than three heartbeats in a row.
  absl::Duration heartbeat_interval = absl::Hours(1);
  // The address of the service to which this one forwards its calls: this one is then a relay,
  // which keeps no state of the job. Empty: this is the service itself.
  std::string upstream = {};
  // Connections that have not shown the token: the most at a time, and their longest time.
  int max_unproven_connections = 64;
  absl::Duration unproven_timeout = absl::Seconds(30);
};

class CoordinatorServer {
 public:
  // Serves one job at the address until stop() or destruction. InvalidArgument for a malformed
  // address, Unavailable where it cannot be listened on.
  static StatusOr<std::unique_ptr<CoordinatorServer>> start(
      const CoordinatorServerOptions& options);
  // Without stop() clients see a service that has crashed.
  virtual ~CoordinatorServer() = default;

  virtual int port() const = 0;
  // Cancels all waiting calls, tells all clients that the service has ended in order, and closes.
  // Clients report no loss. Idempotent.
  virtual void stop() = 0;
};

// Must be called before each use of gRPC: quiets its log, and notes the use for
// coordinator_service_was_used(). ResourceExhausted where this process cannot have the threads that
// gRPC starts at its first use: gRPC would wait for a missing thread for ever, without a message.
Status prepare_grpc();

// Whether a service or a connection of this process has started gRPC: forking is unsafe from then
// on.
bool coordinator_service_was_used();

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_COORDINATOR_SERVER_H_
