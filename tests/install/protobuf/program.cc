// SPDX-License-Identifier: Apache-2.0
//
// Two clients; client 0 sends a message of the program's own protobuf to client 1 as a tensor.
#include <tessera/tessera.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "messages.h"

namespace {

using namespace tessera;

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"x", 2}}));
  const std::string sent = encode("client 0", 42);
  const int64_t size = static_cast<int64_t>(sent.size());
  // Row 0 is on client 0.
  const DTensor rows = from_function<int32_t>({2, size}, Layout::parse(mesh, "[x, -]"),
                                              [&](const Box& box, auto out) {
                                                if (box.offsets[0] == 0)
                                                  std::copy(sent.begin(), sent.end(), out.begin());
                                              });
  TESSERA_ASSIGN_OR_RETURN(HostTensor<int32_t> host,
                           relayout(rows, Layout::replicated(mesh, 2)).to_host<int32_t>());
  TESSERA_RETURN_IF_ERROR(mesh.barrier("before_print"));
  if (client.client_id() == 1) {
    const std::string received(host.data.begin(), host.data.begin() + size);
    std::printf("%s\n", describe(received).c_str());
  }
  return absl::OkStatus();
}

}  // namespace

int main() {
  const Status status = spawn(2, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
