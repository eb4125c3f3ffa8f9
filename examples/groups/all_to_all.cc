// SPDX-License-Identifier: Apache-2.0
//
// All-to-all: member k gets part k of the memory of every member, in group order. torch:
// all_to_all_single.
//
//   bazel run //examples/groups:all_to_all
//
// Output, in any order of the lines:
//   client 0: 0 10 20 30
//   client 1: 1 11 21 31
//   client 2: 2 12 22 32
//   client 3: 3 13 23 33
#include <cstdio>
#include <numeric>

#include "tessera/tessera.h"

using namespace tessera;

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(Group group, client.group());
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> in, client.allocate<float>(0, 4));
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> out, client.allocate<float>(0, 4));
  std::iota(in.begin(), in.end(), static_cast<float>(10 * group.position()));
  TESSERA_RETURN_IF_ERROR(group.all_to_all(in, out).await());
  std::printf("client %d: %g %g %g %g\n", client.client_id(), out[0], out[1], out[2], out[3]);
  return absl::OkStatus();
}

int main() {
  const Status status = spawn(4, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
