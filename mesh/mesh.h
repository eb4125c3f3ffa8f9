// SPDX-License-Identifier: Apache-2.0
//
// Mesh: named axes over the devices of a job.
//
//   Mesh {batch=2, model=3} on 0..5           position -> coordinates (batch, model)
//
//              model=0  model=1  model=2
//     batch=0     0        1        2         row-major: the last axis is the fastest
//     batch=1     3        4        5
//
// Invariants (checked by create(); true of every Mesh that exists):
//   1. there is at least one axis; names are distinct and match [A-Za-z_][A-Za-z0-9_]*;
//   2. sizes are >= 1 and their product is the number of device ids (at most 2^31 - 1);
//   3. device ids are >= 0 and distinct.
//
// A position is an index into device_ids(), in row-major order; the id at that index says which
// device is there. A Mesh is a value: immutable, cheap to copy, compared by axes and ids, safe to
// read from any thread. An abstract mesh has no devices behind it and serves planning, tests and
// tools; a live one comes from create_mesh(client, ...) and carries a runtime, which == ignores.
//
// Mesh() is empty: valid() is false, it has no axes and no devices, and a function that can fail is
// FailedPrecondition. No accessor aborts.
//
// TF DTensor: Mesh. JAX: Mesh, AbstractMesh. PyTorch: DeviceMesh.
#ifndef TESSERA_MESH_MESH_H_
#define TESSERA_MESH_MESH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"

namespace TESSERA_PUBLIC tessera {

struct MeshAxis {
  std::string name;
  int64_t size;

  friend bool operator==(const MeshAxis& a, const MeshAxis& b) {
    return a.name == b.name && a.size == b.size;
  }
};

// "{batch=4, model=2}", also of axes that are no mesh. Messages name a mesh by this text, without
// its ids, because a large mesh has too many.
std::string axes_to_string(absl::Span<const MeshAxis> axes);

class MeshRuntime;  // Internal.
namespace internal {
struct MeshAccess;
}  // namespace internal

class Mesh;
bool operator==(const Mesh& a, const Mesh& b);

class Mesh {
 public:
  // An empty mesh.
  Mesh() = default;
  // A move is a copy, so that no mesh loses its axes.
  Mesh(const Mesh&) = default;
  Mesh& operator=(const Mesh&) = default;

  // An abstract mesh over devices 0..n-1. InvalidArgument if an invariant does not hold.
  static StatusOr<Mesh> create(std::vector<MeshAxis> axes);
  // An abstract mesh over the given devices, in row-major order of the positions.
  static StatusOr<Mesh> create(std::vector<MeshAxis> axes, std::vector<int> device_ids);
  // Reads what to_string() writes: "{batch=4, model=2}", "{x=2} on 3,1". Blanks are free.
  static StatusOr<Mesh> parse(absl::string_view text);

  // False for Mesh().
  bool valid() const { return rep_ != nullptr; }
  absl::Span<const MeshAxis> axes() const;
  // Number of axes.
  int rank() const;
  // Number of devices.
  int64_t size() const;
  // InvalidArgument for a name that is no axis (suggests the nearest).
  StatusOr<int64_t> axis_size(absl::string_view axis) const;
  // Index of the axis in axes(), under the same error.
  StatusOr<int> axis_index(absl::string_view axis) const;
  // In row-major order of the positions. For a mesh over 0..n-1 the first call makes the list.
  absl::Span<const int> device_ids() const;
  // The id at a position, without making the list of ids; nothing where the mesh has no such
  // position.
  std::optional<int> device_at(int64_t position) const;
  // Whether device_ids() is 0..n-1, without making the list.
  bool ids_are_positions() const;

  // One coordinate per axis, of the position-th device in row-major order. Empty where the mesh has
  // no such position.
  std::vector<int64_t> coordinates(int64_t position) const;
  // The inverse of coordinates(). InvalidArgument unless there is one coordinate per axis, each in
  // range.
  StatusOr<int64_t> position(absl::Span<const int64_t> coordinates) const;
  // The position of a device, if it belongs to the mesh.
  std::optional<int64_t> position_of_device(int device_id) const;

  // The positions that differ from `position` only in the axes named, in row-major order (the
  // order of the axes in the mesh, whatever the order of the names). InvalidArgument for an
  // unknown or repeated axis or a position out of range. NCCL: the members of a communicator split
  // by the other axes.
  StatusOr<std::vector<int64_t>> group(int64_t position, absl::Span<const std::string> axes) const;

  // The sub-mesh at fixed coordinates of some axes: without those axes, the others in their order.
  // InvalidArgument for an unknown or repeated axis, a coordinate out of range, or no axis left.
  // A slice of a live mesh is live.
  StatusOr<Mesh> slice(absl::Span<const std::pair<std::string, int64_t>> fixed) const;

  // Waits until all earlier work of every client on this mesh is complete. Collective: every client
  // calls it. It is an all-reduce over a fully sharded tensor of the mesh's shape.
  // - Without a timeout it waits until all clients arrive or a client is known to be lost.
  // - Errors: FailedPrecondition on an abstract mesh; DeadlineExceeded, Unavailable,
  //   InvalidArgument and Cancelled as in docs/errors.md.
  // - Different meshes that share devices need different barrier names: barriers of one name that
  //   wait on two such meshes fail with InvalidArgument, both of them.
  // TF DTensor: dtensor.barrier(mesh, barrier_name, timeout_in_ms).
  Status barrier(absl::string_view name = "",
                 std::optional<absl::Duration> timeout = std::nullopt) const;

  // "{batch=4, model=2}", followed by " on 3,1,..." where the ids are not 0..n-1; "" if empty.
  std::string to_string() const;

  // By axes and device ids; the runtime does not count.
  friend bool operator==(const Mesh& a, const Mesh& b);
  template <typename H>
  friend H AbslHashValue(H h, const Mesh& mesh) {
    return H::combine(std::move(h), mesh.hash());
  }
  friend std::ostream& operator<<(std::ostream& out, const Mesh& mesh) {
    return out << mesh.to_string();
  }

 private:
  friend struct internal::MeshAccess;

  struct Rep;
  const Rep& rep() const { return rep_ != nullptr ? *rep_ : empty(); }
  // The contents of an empty mesh.
  static const Rep& empty();
  // FailedPrecondition for an empty mesh; `function` is the one called.
  Status check_valid(absl::string_view function) const;
  explicit Mesh(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}
  // Equal meshes have equal hashes; the same in every process.
  uint64_t hash() const;

  std::shared_ptr<const Rep> rep_;        // null: empty
  std::shared_ptr<MeshRuntime> runtime_;  // null: abstract
};

}  // namespace tessera

#endif  // TESSERA_MESH_MESH_H_
