// SPDX-License-Identifier: Apache-2.0
//
// spawn: a whole job on this host, from one call. run_client: one client, from its first call to
// its last, in a program that a launcher starts.
//
//   Status run(const Client& client);
//   Status s = spawn(4, run);       4 clients, in child processes
//   Status s = run_client(run);     this process is a client: tessera_run --clients 4 program
//
// torch: torch.multiprocessing.spawn.
#ifndef TESSERA_DTENSOR_SPAWN_H_
#define TESSERA_DTENSOR_SPAWN_H_

#include "absl/functional/function_ref.h"
#include "base/public.h"
#include "base/status.h"
#include "dtensor/client.h"

namespace TESSERA_PUBLIC tessera {

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

// Connects, calls `fn`, and shuts the client down where `fn` returned OK. The first error is the
// result; an exception that leaves `fn` is Unknown.
//
// After an error it does not shut down, and a program that returns early by itself should not
// either: shutdown() waits for the other clients, which may wait for this one in a call that it has
// skipped. The client ends instead. Operations of the others that need it fail with Unavailable,
// which names it.
Status run_client(absl::FunctionRef<Status(const Client& client)> fn,
                  const ClientOptions& options = {});

}  // namespace tessera

#endif  // TESSERA_DTENSOR_SPAWN_H_
