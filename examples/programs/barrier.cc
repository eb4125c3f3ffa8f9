// SPDX-License-Identifier: Apache-2.0
//
// A barrier before exit that does not wait for ever. run_client() connects, and leaves the job in
// order where the function has no error.
//
//   bazel-bin/job/tessera_run --clients 3 bazel-bin/examples/programs/barrier
//
// Output, in any order of the lines:
//   [client 0] barrier "exit" on {x=3}: 2 of 3 clients arrived in 1 s; missing client 2 ...
//   [client 1] barrier "exit" on {x=3}: 2 of 3 clients arrived in 1 s; missing client 2 ...
#include <cstdint>
#include <iostream>

#include "absl/time/time.h"
#include "tessera/tessera.h"

using namespace tessera;

Status work(const Client& client) {
  const auto num_devices = static_cast<int64_t>(client.devices().size());
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", num_devices}}));
  if (client.client_id() == 2) return absl::OkStatus();  // it does not arrive

  // The core.
  const Status arrived = mesh.barrier("exit", absl::Seconds(1));
  if (absl::IsDeadlineExceeded(arrived)) std::cout << arrived.message() << std::endl;
  // The end of the core.
  return absl::OkStatus();
}

int main() {
  const Status status = run_client(work);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
