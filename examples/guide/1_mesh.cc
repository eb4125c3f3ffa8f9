// SPDX-License-Identifier: Apache-2.0
//
// Part 1 of the guide: a client, a mesh and layouts.
//
//   bazel run //examples/guide:1_mesh
#include <iostream>
#include <string>

#include "tessera/tessera.h"

namespace {

using namespace tessera;

Status part() {
  // 1. A client is one process of a job. Here it is the whole job, and has eight CPU devices.
  ClientOptions options;
  options.num_local_devices = 8;
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
  std::cout << "client " << client.client_id() << " of " << client.num_clients() << ", "
            << client.devices().size() << " devices\n";

  // 2. A mesh names the devices along axes: here 4 groups of 2.
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"batch", 4}, {"model", 2}}));
  std::cout << mesh << ", " << mesh.size() << " devices\n";

  // 3. A layout has an entry for each dim of a tensor: the axis that splits the dim, or "-".
  TESSERA_ASSIGN_OR_RETURN(Layout whole, Layout::replicated(mesh, 2));
  TESSERA_ASSIGN_OR_RETURN(Layout rows, Layout::batch_sharded(mesh, "batch", 2));
  TESSERA_ASSIGN_OR_RETURN(Layout blocks, Layout::parse(mesh, "[batch, model]"));
  std::cout << whole << "\n" << rows << "\n" << blocks << "\n";

  // 4. A picture shows which devices hold which part of a tensor of 10 rows and 6 columns.
  TESSERA_ASSIGN_OR_RETURN(std::string picture, visualize(rows, {10, 6}));
  std::cout << picture;

  // 5. Both axes split the tensor: each device has a block of its own.
  TESSERA_ASSIGN_OR_RETURN(picture, visualize(blocks, {10, 6}));
  std::cout << picture;

  // 6. Both axes split one dim: the rows are cut in eight parts.
  TESSERA_ASSIGN_OR_RETURN(picture, visualize(Layout::parse(mesh, "[(batch,model), -]"), {10, 6}));
  std::cout << picture;

  // 7. A mesh without devices is enough for planning and for pictures.
  TESSERA_ASSIGN_OR_RETURN(Mesh large, Mesh::create({{"node", 512}, {"gpu", 8}}));
  TESSERA_ASSIGN_OR_RETURN(Layout split, Layout::parse(large, "[node, gpu]"));
  std::cout << "device 4095 would hold " << split.box({1024, 1024}, 4095).to_string() << "\n";

  // 8. The job ends in order.
  return client.shutdown();
}

}  // namespace

int main() {
  const Status status = part();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
