// SPDX-License-Identifier: Apache-2.0
//
// spawn: a whole job on this host, from one call.
//
//   Status s = spawn(4, [](const Client& client) -> Status { ... });
//
// torch: torch.multiprocessing.spawn.
#ifndef TESSERA_DTENSOR_SPAWN_H_
#define TESSERA_DTENSOR_SPAWN_H_

#include "absl/functional/function_ref.h"
#include "base/status.h"
#include "dtensor/client.h"

namespace tessera {

// Runs `fn` in that many child processes, each a connected client; each shuts its client down when
// `fn` has returned. Returns when all have ended. The first failure, which names the client, stops
// the others and is the result. An exception that leaves `fn` is Unknown.
// - All clients get `options`, except the fields that spawn itself sets: coordinator,
//   coordinator_is_hosted, client_id, num_clients, token.
// - The coordinator runs in a child process too, so that it survives the loss of any client, 0
//   included.
//
// The children are forks: call it before this process connects a client or starts threads that
// hold locks. FailedPrecondition if gRPC already runs in this process.
Status spawn(int num_clients, absl::FunctionRef<Status(const Client& client)> fn,
             const ClientOptions& options = {});

}  // namespace tessera

#endif  // TESSERA_DTENSOR_SPAWN_H_
