// SPDX-License-Identifier: Apache-2.0
//
// MeshRuntime: the functions that a live mesh needs from the layers above it. Internal: dtensor/
// implements it; programs use only mesh.h.
#ifndef TESSERA_MESH_MESH_RUNTIME_H_
#define TESSERA_MESH_MESH_RUNTIME_H_

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/public.h"
#include "base/status.h"
#include "mesh/mesh.h"

namespace tessera {

// Thread-safe.
class TESSERA_INTERNAL MeshRuntime {
 public:
  virtual ~MeshRuntime() = default;
  virtual Status barrier(const Mesh& mesh, absl::string_view name,
                         std::optional<absl::Duration> timeout) = 0;
};

namespace internal {

struct MeshAccess {
  static const std::shared_ptr<MeshRuntime>& runtime_of(const Mesh& mesh) { return mesh.runtime_; }
  static Mesh with_runtime(Mesh mesh, std::shared_ptr<MeshRuntime> runtime) {
    mesh.runtime_ = std::move(runtime);
    return mesh;
  }
};

// The runtime that the mesh is bound to; null: abstract.
inline const std::shared_ptr<MeshRuntime>& runtime_of(const Mesh& mesh) {
  return MeshAccess::runtime_of(mesh);
}
// `mesh` bound to `runtime`.
inline Mesh with_runtime(Mesh mesh, std::shared_ptr<MeshRuntime> runtime) {
  return MeshAccess::with_runtime(std::move(mesh), std::move(runtime));
}

}  // namespace internal
}  // namespace tessera

#endif  // TESSERA_MESH_MESH_RUNTIME_H_
