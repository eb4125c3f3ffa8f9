// SPDX-License-Identifier: Apache-2.0
//
// CoordinatorServer: the coordinator's service. Any process may host it: a launcher, a program of
// its own, or client 0 of the job. The rest of job/ sees no gRPC.
//
// Invariant: the service knows clients by their registrations alone. The end of the process that
// hosts it is the end of the service, and is the loss of a client only where that client hosts it.
#ifndef TESSERA_JOB_COORDINATOR_SERVER_H_
#define TESSERA_JOB_COORDINATOR_SERVER_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/status.h"

namespace tessera {

struct CoordinatorServerOptions {
  std::string address;  // "host:port" to listen on, as clients are given it
  std::string token;    // job token, which every call must carry
  int num_clients = 1;
  absl::Duration heartbeat_interval = absl::Seconds(1);  // a client is lost after three missed ones
};

class CoordinatorServer {
 public:
  // Serves one job at the address until stop() or destruction. Unavailable where the address cannot
  // be listened on.
  static StatusOr<std::unique_ptr<CoordinatorServer>> start(
      const CoordinatorServerOptions& options);
  virtual ~CoordinatorServer() = default;
  // Cancels what waits, lets answers that are under way arrive, and closes. Idempotent.
  virtual void stop() = 0;
};

// What clients attach to each call.
inline constexpr char kTokenMetadata[] = "tessera-token";

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_SERVER_H_
