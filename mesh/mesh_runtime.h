// SPDX-License-Identifier: Apache-2.0
//
// MeshRuntime: the functions that a live mesh needs from the layers above it. Internal: dtensor/
// implements it; programs use only mesh.h.
#ifndef TESSERA_MESH_MESH_RUNTIME_H_
#define TESSERA_MESH_MESH_RUNTIME_H_

#include <memory>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace tessera {

class Mesh;  // mesh.h

// Thread-safe.
class MeshRuntime {
 public:
  virtual ~MeshRuntime() = default;
  virtual Status barrier(const Mesh& mesh, absl::string_view name,
                         std::optional<absl::Duration> timeout) = 0;
};

namespace internal {

// The runtime that the mesh is bound to; null: abstract.
const std::shared_ptr<MeshRuntime>& runtime_of(const Mesh& mesh);
// `mesh` bound to `runtime`.
Mesh with_runtime(Mesh mesh, std::shared_ptr<MeshRuntime> runtime);

}  // namespace internal
}  // namespace tessera

#endif  // TESSERA_MESH_MESH_RUNTIME_H_
