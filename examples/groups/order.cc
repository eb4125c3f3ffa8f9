// SPDX-License-Identifier: Apache-2.0
//
// Order: two clients that make their calls in different orders. Where the calls differ both get an
// error that names them. Where only the values of the calls differ, nothing tells the calls apart:
// both succeed, and the values are mixed.
//
//   bazel run //examples/groups:order
//
// Output, in any order of the lines:
//   client 0: barriers in another order: INVALID_ARGUMENT
//   client 1: barriers in another order: INVALID_ARGUMENT
//   client 0: relayout of ones is [1, 2]
//   client 1: relayout of ones is [2, 1]
//   client 0: relayout of ones is [1, 1]
//   client 1: relayout of ones is [1, 1]
#include <cstdio>
#include <string>

#include "tessera/tessera.h"

using namespace tessera;

void print(const Client& client, const std::string& what) {
  std::printf("client %d: %s\n", client.client_id(), what.c_str());
}

Status print_value(const Client& client, const DTensor& of_ones) {
  TESSERA_ASSIGN_OR_RETURN(const ShardView<float> shard, of_ones.shard<float>(0));
  print(client, "relayout of ones is [" + std::to_string(static_cast<int>(shard.data[0])) + ", " +
                    std::to_string(static_cast<int>(shard.data[1])) + "]");
  return absl::OkStatus();
}

Status run(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
  const bool is_first = client.client_id() == 0;

  // Wrong: the first call of client 0 is another call than the first call of client 1.
  const Status status = mesh.barrier(is_first ? "loaded" : "saved");
  print(client, "barriers in another order: " + absl::StatusCodeToString(status.code()));

  // Wrong: the calls are equal in layout, shape and dtype, and swapped on client 1.
  const DTensor ones = full<float>({2}, 1, Layout::parse(mesh, "[x]"));
  const DTensor twos = full<float>({2}, 2, Layout::parse(mesh, "[x]"));
  const DTensor first = relayout(is_first ? ones : twos, "[-]");
  const DTensor second = relayout(is_first ? twos : ones, "[-]");
  TESSERA_RETURN_IF_ERROR(print_value(client, is_first ? first : second));

  // Right: one order on both clients.
  const DTensor whole_ones = relayout(ones, "[-]");
  const DTensor whole_twos = relayout(twos, "[-]");
  TESSERA_RETURN_IF_ERROR(print_value(client, whole_ones));
  return whole_twos.await();
}

int main() {
  const Status status = spawn(2, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
