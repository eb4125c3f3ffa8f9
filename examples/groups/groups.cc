// SPDX-License-Identifier: Apache-2.0
//
// Groups: an ordered list of devices that run collectives together. Two groups of two add
// separately. torch: new_group.
//
//   bazel run //examples/groups:groups
//
// Output, in any order of the lines:
//   device 0 is member 0 of 2; the sum of its group is 1
//   device 1 is member 1 of 2; the sum of its group is 1
//   device 2 is member 0 of 2; the sum of its group is 5
//   device 3 is member 1 of 2; the sum of its group is 5
#include <cstdio>
#include <vector>

#include "tessera/tessera.h"

using namespace tessera;

Status run(const Client& client) {
  // Only the members of a group make it, and nothing is sent. The program of every client lists the
  // ids in the same order.
  const int id = client.local_devices()[0].id;
  const std::vector<int> ids = id < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
  TESSERA_ASSIGN_OR_RETURN(Group group, client.group(ids));

  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> x, client.allocate<float>(0, 1));
  x[0] = static_cast<float>(id);
  TESSERA_RETURN_IF_ERROR(group.all_reduce(x, ReduceOp::kSum).await());
  std::printf("device %d is member %d of %d; the sum of its group is %g\n", id, group.position(),
              group.size(), x[0]);
  return absl::OkStatus();
}

int main() {
  const Status status = spawn(4, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
