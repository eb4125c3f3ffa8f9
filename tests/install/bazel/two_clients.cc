// SPDX-License-Identifier: Apache-2.0
//
// A program in another Bazel workspace. Two clients print a layout on their mesh, relayout a
// tensor, add its rows, and meet at a barrier.
#include <cstddef>
#include <iostream>

#include "tessera/tessera.h"

namespace {

using namespace tessera;

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"x", 2}}));
  TESSERA_ASSIGN_OR_RETURN(Layout by_rows, Layout::batch_sharded(mesh, "x", 2));
  const DTensor rows = from_function<float>({4, 3}, by_rows, [](const Box& box, auto out) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = box.offsets[0] * 3 + i;
  });
  const DTensor columns = relayout(rows, Layout::parse(mesh, "[-, x]"));
  const DTensor sums = relayout(ops::sum(columns, {0}), Layout::replicated(mesh, 1));
  TESSERA_ASSIGN_OR_RETURN(HostTensor<float> host, sums.to_host<float>());
  TESSERA_RETURN_IF_ERROR(mesh.barrier("before_print"));
  if (client.client_id() == 0) {
    std::cout << by_rows.to_string() << " on " << mesh.to_string() << ", sums " << host.data[0]
              << " " << host.data[1] << " " << host.data[2] << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

int main() {
  const Status status = spawn(2, run);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
