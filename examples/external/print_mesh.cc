// SPDX-License-Identifier: Apache-2.0
//
// A program outside the tree of Tessera. One client with four devices makes a mesh, prints it with
// a layout on it, and passes its barrier.
#include <iostream>

#include "tessera.h"

namespace {

tessera::Status run() {
  TESSERA_ASSIGN_OR_RETURN(tessera::Client client,
                           tessera::Client::connect({.num_local_devices = 4}));
  TESSERA_ASSIGN_OR_RETURN(tessera::Mesh mesh,
                           tessera::create_mesh(client, {{"batch", 2}, {"model", 2}}));
  TESSERA_ASSIGN_OR_RETURN(tessera::Layout layout,
                           tessera::Layout::batch_sharded(mesh, "batch", 2));
  std::cout << layout.to_string() << " on " << mesh.to_string() << "\n";
  TESSERA_RETURN_IF_ERROR(mesh.barrier("printed"));
  return client.shutdown();
}

}  // namespace

int main() {
  const tessera::Status status = run();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
