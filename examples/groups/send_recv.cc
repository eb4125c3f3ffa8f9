// SPDX-License-Identifier: Apache-2.0
//
// Blocking send and receive: member 0 sends to member 1, and each waits until the message has been
// received. torch: send, recv.
//
//   bazel run //examples/groups:send_recv
//
// Output, in any order of the lines:
//   client 0 has 1
//   client 1 has 1
#include <cstdio>

#include "tessera/tessera.h"

using namespace tessera;

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(Group group, client.group({0, 1}));
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> x, client.allocate<float>(0, 1));
  x[0] = 0;
  if (group.position() == 0) {
    x[0] += 1;
    TESSERA_RETURN_IF_ERROR(group.send(x, 1).await());
  } else {
    TESSERA_RETURN_IF_ERROR(group.recv(x, 0).await());
  }
  std::printf("client %d has %g\n", client.client_id(), x[0]);
  return absl::OkStatus();
}

int main() {
  const Status status = spawn(2, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
