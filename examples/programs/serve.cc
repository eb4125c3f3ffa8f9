// SPDX-License-Identifier: Apache-2.0
//
// A server: several threads of one client move tensors at the same time, and each gets its own
// values. With several clients one thread of each makes the calls
// (examples/groups/request_threads).
//
//   bazel run //examples/programs:serve
//
// Output:
//   request 0: [0. 0. 0. 0.]
//   request 1: [1. 1. 1. 1.]
//   request 2: [2. 2. 2. 2.]
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "tessera/tessera.h"

using namespace tessera;

Status serve(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
  const DTensor weights = ones<float>({4}, Layout::parse(mesh, "[x]"));

  // The core.
  std::vector<DTensor> replies(3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&, i] { replies[i] = relayout(i * weights, "[-]"); });
  for (std::thread& thread : threads) thread.join();
  // The end of the core.

  for (int i = 0; i < 3; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const std::string text, to_string(replies[i]));
    std::cout << "request " << i << ": " << text << "\n";
  }
  return absl::OkStatus();
}

int main() {
  const Status status = run_client(serve, {.num_local_devices = 2});
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
