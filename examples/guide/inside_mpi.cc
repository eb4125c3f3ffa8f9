// SPDX-License-Identifier: Apache-2.0
//
// Tessera inside an MPI program: the ranks of MPI_COMM_WORLD are the clients of a job.
//
//   mpirun -n 2 bazel-bin/examples/guide/inside_mpi
#include <cstdint>
#include <cstdio>
#include <iostream>

#include "tessera/mpi.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

Status inside() {
  // 1. The ranks of the communicator become the clients of a job. All of them make this call.
  TESSERA_ASSIGN_OR_RETURN(const ClientOptions options, tessera::mpi::adopt(MPI_COMM_WORLD));
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
  const auto num_devices = static_cast<int64_t>(client.devices().size());
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", num_devices}}));
  const DTensor sum = ops::sum(iota<float>({100}, Layout::parse(mesh, "[x]")));
  TESSERA_ASSIGN_OR_RETURN(const float value, sum.item<float>());
  if (client.client_id() == 0) std::printf("%d clients, sum %g\n", client.num_clients(), value);
  return client.shutdown();
}

}  // namespace

// 2. The program initializes and finalizes MPI. A client has a thread that calls MPI.
int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  const Status status = inside();
  if (!status.ok()) std::cerr << status << "\n";
  MPI_Finalize();
  return status.ok() ? 0 : 1;
}
