// SPDX-License-Identifier: Apache-2.0
//
// Broadcast: every member gets the value of the root, member 1. torch: broadcast.
//
//   bazel run //examples/groups:broadcast
//
// Output, in any order of the lines:
//   client 0: 3 4
//   client 1: 3 4
//   client 2: 3 4
//   client 3: 3 4
#include <cstdio>

#include "tessera/tessera.h"

using namespace tessera;

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(Group group, client.group());
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> x, client.allocate<float>(0, 2));
  x[0] = x[1] = 0;
  if (group.position() == 1) {
    x[0] = 3;
    x[1] = 4;
  }
  TESSERA_RETURN_IF_ERROR(group.broadcast(x, /*root=*/1).await());
  std::printf("client %d: %g %g\n", client.client_id(), x[0], x[1]);
  return absl::OkStatus();
}

int main() {
  const Status status = spawn(4, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
