// SPDX-License-Identifier: Apache-2.0
//
// Process start from inside the program: spawn() runs a function in four child processes, each a
// connected client. torch: mp.spawn and init_process_group.
//
//   bazel run //examples/groups:start_with_spawn
//
// Output, in any order of the lines:
//   client 0 of 4, device 0
//   client 1 of 4, device 1
//   client 2 of 4, device 2
//   client 3 of 4, device 3
#include <cstdio>

#include "tessera/tessera.h"

using namespace tessera;

Status run(const Client& client) {
  std::printf("client %d of %d, device %d\n", client.client_id(), client.num_clients(),
              client.local_devices()[0].id);
  return absl::OkStatus();  // spawn() shuts the client down
}

int main() {
  const Status status = spawn(4, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
