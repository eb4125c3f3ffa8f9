// SPDX-License-Identifier: Apache-2.0
//
// Scatter: the root, member 0, gives each member one part of its memory. torch: scatter.
//
//   bazel run //examples/groups:scatter
//
// Output, in any order of the lines:
//   client 0: 10 11
//   client 1: 12 13
//   client 2: 14 15
//   client 3: 16 17
#include <cstdio>
#include <numeric>

#include "tessera/tessera.h"

using namespace tessera;

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(Group group, client.group());
  DeviceSpan<float> parts;  // empty on the other members
  if (group.position() == 0) {
    TESSERA_ASSIGN_OR_RETURN(parts, client.allocate<float>(0, 8));
    std::iota(parts.begin(), parts.end(), 10.0f);
  }
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> mine, client.allocate<float>(0, 2));
  TESSERA_RETURN_IF_ERROR(group.scatter(parts, mine, /*root=*/0).await());
  std::printf("client %d: %g %g\n", client.client_id(), mine[0], mine[1]);
  return absl::OkStatus();
}

int main() {
  const Status status = spawn(4, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
