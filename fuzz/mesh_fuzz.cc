// SPDX-License-Identifier: Apache-2.0
//
// Any text read as a mesh is either refused with a message or gives a mesh that reads back from its
// own text, with coordinates and positions that are each other's inverse.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "fuzz/fuzz.h"
#include "mesh/mesh.h"

namespace tessera {
namespace {

using fuzz::require;

void check_mesh(const Mesh& mesh) {
  const std::string text = mesh.to_string();
  const StatusOr<Mesh> again = Mesh::parse(text);
  require(again.ok() && *again == mesh, text);
  require(again->to_string() == text, text);
  for (int64_t position : {int64_t{0}, mesh.size() / 2, mesh.size() - 1}) {
    require(*mesh.position(mesh.coordinates(position)) == position, text);
  }
  // The list of ids of a large mesh would be gigabytes; position_of_device() does not need it.
  if (mesh.size() > 1024) return;
  for (int64_t position = 0; position < mesh.size(); ++position) {
    require(mesh.position_of_device(mesh.device_ids()[position]) == position, text);
  }
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const tessera::StatusOr<tessera::Mesh> mesh = tessera::Mesh::parse(text);
  if (mesh.ok()) {
    tessera::check_mesh(*mesh);
  } else {
    tessera::fuzz::require(mesh.status().code() == absl::StatusCode::kInvalidArgument &&
                               !mesh.status().message().empty(),
                           mesh.status().ToString());
  }
  return 0;
}
