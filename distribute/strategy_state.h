// SPDX-License-Identifier: Apache-2.0
//
// StrategyState: the implementation of a Strategy. Internal to distribute/.
//
// Values of replicas come in two forms, between which this class moves without a copy: parts, a
// tensor for each local replica on the mesh of that replica; and one tensor over the whole mesh.
//
//   PerReplica                    parts
//   parts -> whole                the same memory, partial or split along the replica axes; then a
//                                 relayout is what the call computes
//   whole, any layout -> parts    the same memory, where each replica has a box of it
#ifndef TESSERA_DISTRIBUTE_STRATEGY_STATE_H_
#define TESSERA_DISTRIBUTE_STRATEGY_STATE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "distribute/call.h"
#include "distribute/cross_device_ops.h"
#include "distribute/strategy.h"
#include "distribute/values.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace tessera::distribute::internal {

class StrategyState : public std::enable_shared_from_this<StrategyState> {
 public:
  static StatusOr<std::shared_ptr<StrategyState>> create(const Client& client, Mesh mesh,
                                                         std::vector<std::string> replica_axes,
                                                         StrategyOptions options,
                                                         std::optional<Mesh> parameter_mesh);

  const Client& client() const { return client_; }
  const Mesh& mesh() const { return mesh_; }
  const Mesh& parameter_mesh() const { return parameter_mesh_; }
  const StrategyOptions& options() const { return options_; }
  int num_replicas() const { return static_cast<int>(names_.size()); }
  absl::Span<const int> local_replicas() const { return local_; }
  absl::Span<const std::string> replica_axes() const { return replica_axes_; }
  // "replica 1 (device 3)", or "replica 1 (client 1, device 3)" where there are several clients.
  absl::Span<const std::string> names() const { return names_; }
  const Mesh& mesh_of(int replica) const { return meshes_[replica]; }
  bool is_of_one_client() const { return is_of_one_client_; }

  // The options of a call: its own, else the strategy's. InvalidArgument for values out of their
  // range, FailedPrecondition for kNccl on CPU devices.
  StatusOr<CommunicationOptions> options_of(const CommunicationOptions& call) const {
    return options_over(options_.communication, call);
  }
  // As options_of(), over `base`, such as the options of a run.
  StatusOr<CommunicationOptions> options_over(const CommunicationOptions& base,
                                              const CommunicationOptions& call) const;
  static Status check_options(const CommunicationOptions& options);

  // The parts of a value; InvalidArgument for a tensor on another mesh.
  StatusOr<std::vector<DTensor>> parts_of(const DistributedValues& value) const;
  // The part of a replica of a tensor that its function made: on the replica's mesh, on the
  // strategy's mesh, or on any other of this client.
  DTensor on_replica(const DTensor& tensor, int replica) const;
  // Whether all replicas hold equal parts of a tensor of this layout.
  bool is_replicated(const Layout& layout) const;

  // Completes the calls of the local replicas by the calls of other clients. Collective where there
  // are several clients; the result is equal on all of them.
  StatusOr<std::vector<Call>> exchange(std::vector<Call> local,
                                       const CommunicationOptions& options) const;
  // The calls of all replicas, once they agree.
  StatusOr<std::vector<Call>> agree(const std::string& text, absl::Span<const DTensor> parts,
                                    const Freedom& freedom,
                                    const CommunicationOptions& options) const;
  static Call call_of(const std::string& text, absl::Span<const DTensor> tensors);

  // For parts that agree. `calls` are the calls of all replicas, with one tensor each.
  //
  // Element by element, to a destination or, without one, to all replicas.
  StatusOr<DTensor> reduce_parts(ReduceOp op, std::vector<DTensor> parts,
                                 absl::Span<const Call> calls,
                                 const std::optional<Layout>& destination,
                                 const CommunicationOptions& options) const;
  // Along dims of each part too.
  StatusOr<DTensor> reduce_dims(ReduceOp op, std::vector<DTensor> parts,
                                absl::Span<const Call> calls, absl::Span<const int64_t> dims,
                                const CommunicationOptions& options) const;
  StatusOr<DTensor> gather_parts(std::vector<DTensor> parts, absl::Span<const Call> calls,
                                 int64_t dim) const;
  // The parts of the index-th tensors of the calls, moved to one layout for all replicas: the
  // layout of replica 0 without partial axes.
  StatusOr<std::vector<DTensor>> alike(std::vector<DTensor> parts, absl::Span<const Call> calls,
                                       int index) const;
  // For parts of equal shapes and layouts: the tensor of which they are the terms, or the pieces
  // along `dim`.
  StatusOr<DTensor> whole_of_terms(absl::Span<const DTensor> parts, ReduceOp op) const;
  StatusOr<DTensor> whole_of_pieces(absl::Span<const DTensor> parts, int64_t dim,
                                    int64_t size) const;
  // A layout of a replica's mesh on the whole mesh, replicated along the replica axes.
  StatusOr<Layout> on_whole_mesh(const Layout& layout) const;
  // A tensor of the first replica, on all. Clients without the first replica pass any tensor of its
  // dtype and shape.
  StatusOr<DTensor> from_first(const DTensor& part, DType dtype, const Shape& shape) const;

  // By the strategy's CrossDeviceOps. An exception of these is an error, and so is another number
  // of tensors.
  StatusOr<DTensor> reduce_across(ReduceOp op, const PerReplica& value, LayoutArg destination,
                                  const CommunicationOptions& options) const;
  StatusOr<std::vector<DTensor>> batch_reduce_across(ReduceOp op,
                                                     absl::Span<const PerReplica> values,
                                                     absl::Span<const Layout> destinations,
                                                     const CommunicationOptions& options) const;
  StatusOr<DTensor> broadcast_across(const DTensor& value, LayoutArg destination,
                                     const CommunicationOptions& options) const;

  // Whether the calling thread runs a replica function, and no merge_call().
  bool is_in_replica() const;
  // FailedPrecondition where the calling thread runs a replica function; names the function to call
  // there instead.
  Status check_not_in_replica(const char* call, const char* counterpart) const;
  // The run whose functions are called now; null for none. Guarded by the mutex of the run stack.
  void push_run(const ReplicaRun* run);
  void pop_run();

 private:
  StrategyState(const Client& client, Mesh mesh, Mesh parameter_mesh)
      : client_(client), mesh_(std::move(mesh)), parameter_mesh_(std::move(parameter_mesh)) {}

  // Parts of create(): the replica axes, the clients, and the replicas.
  Status set_axes(absl::Span<const std::string> replica_axes);
  Status set_clients();
  Status set_replicas();
  // The coordinates of the first device of each replica, row-major.
  std::vector<std::vector<int64_t>> first_coordinates() const;
  // The mesh of the replica whose devices are at these positions.
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
  const Mesh parameter_mesh_;
  StrategyOptions options_;
  std::vector<std::string> replica_axes_;  // in the order of the mesh
  std::vector<bool> is_replica_axis_;
  std::vector<Mesh> meshes_;                     // by replica
  std::vector<std::vector<int64_t>> positions_;  // in the mesh, by replica
  std::vector<std::string> names_;
  std::vector<int> local_;
  bool is_of_one_client_ = true;
  std::map<int, std::vector<int>> replicas_of_client_;  // replicas with devices of the client
  // The layout that an exchange sends: a row on each client, in order, with a record for each of
  // its replicas.
  StatusOr<Layout> call_rows_ = absl::UnknownError("not set");

  // The size of an exchange's records; equal on all clients.
  mutable int64_t record_bytes_ = 256;

  mutable std::mutex runs_mutex_;
  std::vector<const ReplicaRun*> runs_;  // the innermost last
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_DISTRIBUTE_STRATEGY_STATE_H_
