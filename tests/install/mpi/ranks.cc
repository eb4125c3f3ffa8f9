// SPDX-License-Identifier: Apache-2.0
//
// The ranks of an MPI program as clients: `mpirun -n 2 ./consumer`. Rank 0 prints a sum over ranks.
#include <tessera/mpi.h>
#include <tessera/tessera.h>

#include <cstdio>

namespace {

using namespace tessera;

Status run() {
  TESSERA_ASSIGN_OR_RETURN(const ClientOptions options, mpi::adopt(MPI_COMM_WORLD));
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"x", client.num_clients()}}));
  const DTensor ones = full({8}, 1.0f, Layout::parse(mesh, "[x]"));
  const DTensor sum = relayout(ops::sum(ones), Layout::replicated(mesh, 0));
  TESSERA_ASSIGN_OR_RETURN(HostTensor<float> host, sum.to_host<float>());
  TESSERA_RETURN_IF_ERROR(mesh.barrier("before_print"));
  if (client.client_id() == 0)
    std::printf("%d ranks, sum %g\n", client.num_clients(), host.data[0]);
  return client.shutdown();
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  const Status status = run();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  MPI_Finalize();
  return status.ok() ? 0 : 1;
}
