// SPDX-License-Identifier: Apache-2.0
//
// A metric as a number, and a tensor as text. All clients make the calls, and one of them prints.
//
//   bazel run //examples/programs:print
//
// Output:
//   loss 42.1667
//   [[ 0.  1.  2.]
//    [ 3.  4.  5.]
//    [ 6.  7.  8.]
//    [ 9. 10. 11.]]
//   12 numbers
//   f32 [4, 3] under [batch, -] on {batch=2}, ready
//   device 0 [0:2, 0:3]
//   [[0. 1. 2.]
//    [3. 4. 5.]]
#include <iostream>
#include <string>

#include "tessera/tessera.h"

using namespace tessera;

Status print(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"batch", 2}}));
  const DTensor x = iota<float>({4, 3}, Layout::parse(mesh, "[batch, -]"));
  const DTensor loss = ops::mean(ops::square(x));

  // The core.
  TESSERA_ASSIGN_OR_RETURN(const float value, loss.item<float>());
  if (client.client_id() == 0) std::cout << "loss " << value << std::endl;
  // The end of the core.

  // The whole value, on all clients; on one client; and the shards that this client has.
  TESSERA_ASSIGN_OR_RETURN(const std::string text, to_string(x));
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> host, x.gather_to<float>(0));
  TESSERA_RETURN_IF_ERROR(x.await());
  if (client.client_id() != 0) return absl::OkStatus();
  std::cout << text << "\n" << host.data.size() << " numbers\n" << x << std::endl;
  return absl::OkStatus();
}

int main() {
  const Status status = spawn(2, print);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
