// SPDX-License-Identifier: Apache-2.0
//
// Part 8 of the guide: errors, and the end of a program.
//
//   bazel run //examples/guide:8_errors
#include <iostream>

#include "absl/time/time.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

Status part() {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 4}));
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"batch", 2}, {"model", 2}}));

  // 1. A wrong argument is an error with a message. The program can go on.
  const StatusOr<Layout> typo = Layout::parse(mesh, "[bach, -]");
  std::cout << typo.status().message() << "\n";

  // 2. A tensor carries its error. Every tensor that is made from it has the same error, so a
  //    program checks the last of several calls.
  const DTensor x = ones<float>({8, 6}, Layout::parse(mesh, "[batch, -]"));
  const DTensor wrong = ops::matmul(x, x);
  const DTensor loss = ops::mean(ops::relu(wrong));
  std::cout << loss.await().message() << "\n";

  // 3. A function of local_map() cannot return an error to its caller. The error is in the tensor.
  const DTensor failed = local_map(Layout::parse(mesh, "[batch, -]"), {8, 6}, DType::kFloat32, {x},
                                   [](LocalContext& local) -> Status {
                                     if (local.device_id() != 3) return absl::OkStatus();
                                     return absl::DataLossError("the file is cut off");
                                   });
  std::cout << failed.await().message() << "\n";

  // 4. A barrier returns when all earlier work of every client is complete. shutdown() leaves the
  //    job in order; a process that ends without it counts as lost.
  TESSERA_RETURN_IF_ERROR(mesh.barrier("before_exit", absl::Seconds(30)));
  std::cout << "all work is done\n";
  return client.shutdown();
}

}  // namespace

int main() {
  const Status status = part();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
