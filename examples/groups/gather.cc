// SPDX-License-Identifier: Apache-2.0
//
// Gather: the root, member 0, gets the parts of all members, in group order. torch: gather.
//
//   bazel run //examples/groups:gather
//
// Output, in any order of the lines:
//   client 0: 0 1 4 9
#include <cstdio>

#include "tessera/tessera.h"

using namespace tessera;

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(Group group, client.group());
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> mine, client.allocate<float>(0, 1));
  mine[0] = static_cast<float>(group.position() * group.position());
  DeviceSpan<float> all;  // empty on the other members
  if (group.position() == 0) {
    TESSERA_ASSIGN_OR_RETURN(all, client.allocate<float>(0, 4));
  }
  TESSERA_RETURN_IF_ERROR(group.gather(mine, all, /*root=*/0).await());
  if (group.position() == 0) {
    std::printf("client 0: %g %g %g %g\n", all[0], all[1], all[2], all[3]);
  }
  return absl::OkStatus();
}

int main() {
  const Status status = spawn(4, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
