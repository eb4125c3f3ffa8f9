// SPDX-License-Identifier: Apache-2.0
//
// All-reduce: every member gets the sum of the values of all members, here in place. The memory is
// a vector of the program. torch: all_reduce.
//
//   bazel run //examples/groups:all_reduce
//
// Output, in any order of the lines:
//   client 0: 6 60
//   client 1: 6 60
//   client 2: 6 60
//   client 3: 6 60
#include <cstdio>
#include <vector>

#include "tessera/tessera.h"

using namespace tessera;

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(Group group, client.group());
  const float value = static_cast<float>(group.position());
  std::vector<float> x = {value, 10 * value};
  const Work work = group.all_reduce(x, ReduceOp::kSum);
  TESSERA_RETURN_IF_ERROR(work.await());
  std::printf("client %d: %g %g\n", client.client_id(), x[0], x[1]);
  return absl::OkStatus();
}

int main() {
  const Status status = spawn(4, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
