// SPDX-License-Identifier: Apache-2.0
//
// Process start from outside: tessera_run starts the program four times and sets the environment
// that connect() reads. torch: torchrun and init_process_group. mpirun and srun work as well
// (docs/launching.md).
//
//   bazel-bin/job/tessera_run --clients 4 bazel-bin/examples/groups/start_with_run
//
// Output, in any order of the lines:
//   [client 0] client 0 of 4, device 0
//   [client 1] client 1 of 4, device 1
//   [client 2] client 2 of 4, device 2
//   [client 3] client 3 of 4, device 3
#include <cstdio>

#include "tessera/tessera.h"

using namespace tessera;

Status run() {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect());
  std::printf("client %d of %d, device %d\n", client.client_id(), client.num_clients(),
              client.local_devices()[0].id);
  return client.shutdown();  // leaves the job in order; waits for the other clients
}

int main() {
  const Status status = run();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
