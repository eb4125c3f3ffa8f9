// SPDX-License-Identifier: Apache-2.0
//
// Collectives on memory of the program: in a group of some devices, and in the group of all devices
// where a client has several.
//
//   bazel run //examples/programs:collective
//
// Output, in any order of the lines:
//   client 0: 3 3 3, and 10 10
//   client 1: 3 3 3, and 10 10
#include <cstdio>
#include <iostream>
#include <vector>

#include "absl/time/time.h"
#include "tessera/tessera.h"

using namespace tessera;

// Client 0 has devices 0 and 1, client 1 has devices 2 and 3.
Status reduce(const Client& client) {
  const float id = static_cast<float>(client.client_id());

  // The core.
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 2}));
  std::vector<float> x(3, 1 + id);
  TESSERA_RETURN_IF_ERROR(group.all_reduce(x, ReduceOp::kSum).wait(absl::Seconds(30)));
  // The end of the core.

  // One value for each local device: 1, 2, 3 and 4 in all.
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Group> all, client.groups());
  std::vector<std::vector<float>> values = {{2 * id + 1}, {2 * id + 2}};
  std::vector<Work> works;
  for (size_t i = 0; i < all.size(); ++i) {
    works.push_back(all[i].all_reduce(values[i], ReduceOp::kSum));
  }
  TESSERA_RETURN_IF_ERROR(await_all(works));
  std::printf("client %g: %g %g %g, and %g %g\n", id, x[0], x[1], x[2], values[0][0], values[1][0]);
  return absl::OkStatus();
}

int main() {
  const Status status = spawn(2, reduce, {.num_local_devices = 2});
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
