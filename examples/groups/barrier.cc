// SPDX-License-Identifier: Apache-2.0
//
// Barrier: it returns when all members have arrived, or with an error for all that names the
// missing ones. torch: barrier, monitored_barrier.
//
//   bazel run //examples/groups:barrier
//
// Output, in any order of the lines:
//   client 0: all 4 have arrived
//   client 1: all 4 have arrived
//   client 2: all 4 have arrived
//   client 3: all 4 have arrived
#include <cstdio>

#include "absl/time/time.h"
#include "tessera/tessera.h"

using namespace tessera;

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(Group group, client.group());
  TESSERA_RETURN_IF_ERROR(group.barrier().wait(absl::Seconds(30)));
  std::printf("client %d: all %d have arrived\n", client.client_id(), group.size());
  return absl::OkStatus();
}

int main() {
  const Status status = spawn(4, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
