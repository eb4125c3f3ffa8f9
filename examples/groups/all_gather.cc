// SPDX-License-Identifier: Apache-2.0
//
// All-gather: every member gets the parts of all members, in group order. torch:
// all_gather_into_tensor.
//
//   bazel run //examples/groups:all_gather
//
// Output, in any order of the lines:
//   client 0: 0 1 4 9
//   client 1: 0 1 4 9
//   client 2: 0 1 4 9
//   client 3: 0 1 4 9
#include <cstdio>

#include "tessera/tessera.h"

using namespace tessera;

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(Group group, client.group());
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> mine, client.allocate<float>(0, 1));
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> all, client.allocate<float>(0, 4));
  mine[0] = static_cast<float>(group.position() * group.position());
  TESSERA_RETURN_IF_ERROR(group.all_gather(mine, all).await());
  std::printf("client %d: %g %g %g %g\n", client.client_id(), all[0], all[1], all[2], all[3]);
  return absl::OkStatus();
}

int main() {
  const Status status = spawn(4, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
