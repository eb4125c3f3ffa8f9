// SPDX-License-Identifier: Apache-2.0
//
// A program outside the tree of Tessera. Two clients relayout a tensor, add its rows, and meet at a
// barrier; client 0 prints the sums.
//
//   ./consumer                                        starts its two clients by spawn()
//   tessera_run --clients 2 ./consumer connect        is one of two clients
#include <tessera/tessera.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

namespace {

using namespace tessera;

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"x", 2}}));
  const DTensor rows =
      from_function<float>({4, 3}, Layout::parse(mesh, "[x, -]"), [](const Box& box, auto out) {
        for (size_t i = 0; i < out.size(); ++i) out[i] = box.offsets[0] * 3 + i;
      });
  const DTensor columns = relayout(rows, Layout::parse(mesh, "[-, x]"));
  const DTensor sums = relayout(ops::sum(columns, {0}), Layout::replicated(mesh, 1));
  TESSERA_ASSIGN_OR_RETURN(HostTensor<float> host, sums.to_host<float>());
  TESSERA_RETURN_IF_ERROR(mesh.barrier("before_print"));
  if (client.client_id() == 0) {
    std::printf("%d clients, sums %g %g %g\n", client.num_clients(), host.data[0], host.data[1],
                host.data[2]);
  }
  return absl::OkStatus();
}

Status connect_and_run() {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect());
  TESSERA_RETURN_IF_ERROR(run(client));
  return client.shutdown();
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_client = argc > 1 && std::strcmp(argv[1], "connect") == 0;
  const Status status = is_client ? connect_and_run() : spawn(2, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
