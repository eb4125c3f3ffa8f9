// SPDX-License-Identifier: Apache-2.0
//
// CoordinatorServer: the coordinator's service, as client 0 hosts it. The rest of job/ sees no
// gRPC.
#ifndef TESSERA_JOB_COORDINATOR_SERVER_H_
#define TESSERA_JOB_COORDINATOR_SERVER_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/status.h"

namespace tessera {

class CoordinatorServer {
 public:
  // Serves at "host:port" until stop(). Unavailable where the address cannot be listened on.
  static StatusOr<std::unique_ptr<CoordinatorServer>> start(const std::string& address,
                                                            const std::string& token,
                                                            int num_clients,
                                                            absl::Duration heartbeat_interval);
  virtual ~CoordinatorServer() = default;
  // Cancels what waits, lets answers that are under way arrive, and closes. Idempotent.
  virtual void stop() = 0;
};

// What clients attach to each call.
inline constexpr char kTokenMetadata[] = "tessera-token";

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_SERVER_H_
