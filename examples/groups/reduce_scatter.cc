// SPDX-License-Identifier: Apache-2.0
//
// Reduce-scatter: member k gets part k of the sum of all members. torch: reduce_scatter_tensor.
//
//   bazel run //examples/groups:reduce_scatter
//
// Output, in any order of the lines:
//   client 0: 6
//   client 1: 10
//   client 2: 14
//   client 3: 18
#include <cstdio>
#include <numeric>

#include "tessera/tessera.h"

using namespace tessera;

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(Group group, client.group());
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> all, client.allocate<float>(0, 4));
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> mine, client.allocate<float>(0, 1));
  std::iota(all.begin(), all.end(), static_cast<float>(group.position()));
  TESSERA_RETURN_IF_ERROR(group.reduce_scatter(all, mine, ReduceOp::kSum).await());
  std::printf("client %d: %g\n", client.client_id(), mine[0]);
  return absl::OkStatus();
}

int main() {
  const Status status = spawn(4, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
