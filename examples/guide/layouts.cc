// SPDX-License-Identifier: Apache-2.0
//
// The pictures of docs/layouts.md. Layouts need no devices to be drawn.
//
//   bazel run //examples/guide:layouts
#include <iostream>
#include <string>

#include "tessera/tessera.h"

namespace {

using namespace tessera;

Status draw(const Mesh& mesh, const char* layout, const Shape& shape) {
  TESSERA_ASSIGN_OR_RETURN(const std::string picture,
                           visualize(Layout::parse(mesh, layout), shape));
  std::cout << picture << "\n";
  return absl::OkStatus();
}

Status page() {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::create({{"batch", 4}, {"model", 2}}));
  TESSERA_RETURN_IF_ERROR(draw(mesh, "[batch, -]", {8, 6}));
  TESSERA_RETURN_IF_ERROR(draw(mesh, "[batch, model]", {8, 6}));
  TESSERA_RETURN_IF_ERROR(draw(mesh, "[batch, -] sum{model}", {8, 6}));
  TESSERA_ASSIGN_OR_RETURN(const Mesh square, Mesh::create({{"x", 2}, {"y", 2}}));
  TESSERA_RETURN_IF_ERROR(draw(square, "[(y,x)]", {8}));
  TESSERA_ASSIGN_OR_RETURN(const Mesh line, Mesh::create({{"x", 8}}));
  return draw(line, "[x:(1)2, x:(2)4]", {4, 8});
}

}  // namespace

int main() {
  const Status status = page();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
