// SPDX-License-Identifier: Apache-2.0
//
// Reduce: the root, member 0, gets the sum, and then the maximum, of the values of all members.
// torch: reduce.
//
//   bazel run //examples/groups:reduce
//
// Output, in any order of the lines:
//   client 0: the sum is 10
//   client 0: the maximum is 4
#include <cstdio>

#include "tessera/tessera.h"

using namespace tessera;

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(Group group, client.group());
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> x, client.allocate<float>(0, 1));
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> result, client.allocate<float>(0, 1));
  x[0] = static_cast<float>(group.position() + 1);

  TESSERA_RETURN_IF_ERROR(group.reduce(x, result, ReduceOp::kSum, /*root=*/0).await());
  if (group.position() == 0) std::printf("client 0: the sum is %g\n", result[0]);
  TESSERA_RETURN_IF_ERROR(group.reduce(x, result, ReduceOp::kMax, /*root=*/0).await());
  if (group.position() == 0) std::printf("client 0: the maximum is %g\n", result[0]);
  return absl::OkStatus();
}

int main() {
  const Status status = spawn(4, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
