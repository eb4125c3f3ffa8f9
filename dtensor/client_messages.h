// SPDX-License-Identifier: Apache-2.0
//
// Messages between the clients of a job through its coordinator, for layers above whose threads
// cannot take a place in the order of the devices: a save in the background, between operations of
// the program. Internal.
//
//   client 1   post(client, "checkpoint 1", 7, "text")
//   client 0   await_post(client, "checkpoint 1", 7, 1)  ->  "text"
//
// A message is a proposal of the coordinator (job/coordinator/proposals.h): a series keeps its last
// 64 messages, all series together 16 MiB, and a series lasts as long as the job. So there are few
// series, their numbers ascend, and the sender learns from the receiver's messages how far that is.
//
// Thread-safe.
#ifndef TESSERA_DTENSOR_CLIENT_MESSAGES_H_
#define TESSERA_DTENSOR_CLIENT_MESSAGES_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/wait_reports.h"
#include "dtensor/client.h"
#include "mesh/mesh.h"

namespace tessera::internal {

// Sends message `number` of the series; the series and the value have at most 64 KiB together.
// FailedPrecondition for a client that is empty or is used in a forked child.
Status post(const Client& client, absl::string_view series, uint32_t number,
            absl::string_view value);
// Waits for a message of `sender`. Unavailable where that client is lost or has left before;
// DeadlineExceeded after the timeout, where zero does not wait.
StatusOr<std::string> await_post(const Client& client, absl::string_view series, uint32_t number,
                                 int sender, absl::Duration timeout);
// The loss of the first client that was lost; OK where none was. Does not communicate.
Status first_loss(const Client& client);
// "client 2 (host-b, pid 4711)".
std::string describe_client(const Client& client, int client_id);
// The cause of a wait for one client, for reports of long waits.
WaitReports::Missing missing_client(const Client& client, int client_id);
// FailedPrecondition: `call` was made with an empty client.
Status empty_client_error(absl::string_view call);
// FailedPrecondition after shutdown() has begun, for an empty client, and in a forked child. `call`
// names the caller.
Status check_open(const Client& client, absl::string_view call);
// FailedPrecondition in a forked child. Requires a client that is not empty, as the next one.
Status check_process(const Client& client);
// Also FailedPrecondition inside a device task, which `call` would wait for.
Status check_may_wait(const Client& client, absl::string_view call);
// InvalidArgument, with `subject` first, unless the mesh is a live one of this client.
Status check_mesh_of(const Client& client, const Mesh& mesh, absl::string_view subject);

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_CLIENT_MESSAGES_H_
