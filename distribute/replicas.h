// SPDX-License-Identifier: Apache-2.0
//
// Replicas: where each replica of a strategy is, and its part of a value. Internal to distribute/.
//
// Values of replicas come in two forms, between which this class moves without a copy: parts, a
// tensor for each local replica on the mesh of that replica; and one tensor over the whole mesh.
//
//   PerReplica                    parts
//   parts -> whole                the same memory, partial or split along the replica axes; then a
//                                 relayout is what the call computes
//   whole, any layout -> parts    the same memory, where each replica has a box of it
#ifndef TESSERA_DISTRIBUTE_REPLICAS_H_
#define TESSERA_DISTRIBUTE_REPLICAS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/public.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "distribute/values.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace tessera::distribute::internal {

// Tensors of the local replicas, in their order: a row for each.
using Rows = std::vector<std::vector<DTensor>>;
// The tensor at this index of each row.
std::vector<DTensor> column(const Rows& rows, size_t index);

class TESSERA_INTERNAL Replicas {
 public:
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  const Client& client() const { return client_; }
  const Mesh& mesh() const { return mesh_; }
  int num_replicas() const { return static_cast<int>(names_.size()); }
  absl::Span<const int> local_replicas() const { return local_; }
  absl::Span<const std::string> replica_axes() const { return replica_axes_; }
  // "replica 1 (device 3)", or "replica 1 (client 1, device 3)" where there are several clients.
  absl::Span<const std::string> names() const { return names_; }
  const Mesh& mesh_of(int replica) const { return meshes_[replica]; }
  // The clients of the mesh, ascending, with the replicas that have devices of them.
  const std::map<int, std::vector<int>>& replicas_of_client() const { return replicas_of_client_; }
  bool is_of_one_client() const { return replicas_of_client_.size() == 1; }

  // The parts of a value; InvalidArgument for a tensor on another mesh.
  StatusOr<std::vector<DTensor>> parts_of(const DistributedValues& value) const;
  // The parts of several values.
  StatusOr<Rows> rows_of(absl::Span<const DistributedValues> values) const;
  // The part of a replica of a tensor that its function made: on the replica's mesh, on the
  // strategy's mesh, or on any other of this client.
  DTensor on_replica(const DTensor& tensor, int replica) const;
  // The parts of tensors on each local replica.
  Rows on_replicas(absl::Span<const DTensor> tensors) const;
  // Whether the layout is one of mesh() of which all replicas hold equal parts.
  bool is_mirrored(const Layout& layout) const;
  // For parts of equal shapes and layouts: the tensor of which they are the terms, or the pieces
  // along `dim`.
  StatusOr<DTensor> whole_of_terms(absl::Span<const DTensor> parts, ReduceOp op) const;
  StatusOr<DTensor> whole_of_pieces(absl::Span<const DTensor> parts, int64_t dim,
                                    int64_t size) const;
  // A layout of a replica's mesh on the whole mesh, replicated along the replica axes.
  StatusOr<Layout> on_whole_mesh(const Layout& layout) const;

 protected:
  Replicas(const Client& client, Mesh mesh) : client_(client), mesh_(std::move(mesh)) {}
  ~Replicas() = default;

  // The rest of construction.
  Status set_replicas(absl::Span<const std::string> replica_axes);

 private:
  // The mesh of the replica that has the device at these coordinates.
  StatusOr<Mesh> replica_mesh(absl::Span<const int64_t> coordinates) const;
  std::string replica_name(int replica) const;

  struct PartForm {
    Layout layout;
    Shape shape;
  };
  // The part of a tensor that a replica has; nothing where that is no box.
  std::optional<PartForm> part_form(const Layout& layout, const Shape& shape, int replica) const;
  // The layout in which a dim split by a replica axis is split by replica axes alone.
  StatusOr<Layout> separated(const Layout& layout) const;
  std::vector<std::string> names_of_axes(absl::Span<const SubAxis> axes, bool of_replicas) const;

  const Client client_;
  const Mesh mesh_;
  std::vector<std::string> replica_axes_;  // in the order of the mesh
  std::vector<bool> is_replica_axis_;
  std::vector<Mesh> meshes_;                     // by replica
  std::vector<std::vector<int64_t>> positions_;  // in the mesh, by replica
  std::vector<std::string> names_;
  std::vector<int> local_;
  std::map<int, std::vector<int>> replicas_of_client_;
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_DISTRIBUTE_REPLICAS_H_
