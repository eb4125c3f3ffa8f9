// SPDX-License-Identifier: Apache-2.0
//
// StrategyState: what a strategy does: its replicas exchange their calls, and reduce and gather
// their values. Internal to distribute/.
#ifndef TESSERA_DISTRIBUTE_STRATEGY_STATE_H_
#define TESSERA_DISTRIBUTE_STRATEGY_STATE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "distribute/call.h"
#include "distribute/options.h"
#include "distribute/replicas.h"
#include "distribute/values.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace tessera::distribute::internal {

// A tensor on the mesh that has nothing but the error.
DTensor failed_on(const Mesh& mesh, Status error);
// Tensors of the same dtypes, shapes and layouts, which carry the error.
std::vector<DTensor> all_failed(absl::Span<const DTensor> tensors, const Status& error);
// The tensor that a user's function returns; an exception becomes the error of the tensor.
DTensor tensor_of(const Mesh& mesh, absl::FunctionRef<DTensor()> fn);

// The functions of a run, as the strategy asks for them.
class RunningFunctions {
 public:
  // Whether the calling thread runs a replica function, and no merge_call().
  virtual bool is_replica_thread() const = 0;

 protected:
  ~RunningFunctions() = default;
};

class StrategyState : public Replicas, public std::enable_shared_from_this<StrategyState> {
 public:
  static StatusOr<std::shared_ptr<StrategyState>> create(const Client& client, Mesh mesh,
                                                         std::vector<std::string> replica_axes,
                                                         StrategyOptions options,
                                                         std::optional<Mesh> parameter_mesh);

  const Mesh& parameter_mesh() const { return parameter_mesh_; }
  const StrategyOptions& options() const { return options_; }

  // The options of a call: its own, else the strategy's. InvalidArgument for values out of their
  // range, FailedPrecondition for kNccl on CPU devices.
  StatusOr<CommunicationOptions> options_of(const CommunicationOptions& call) const {
    return options_over(options_.communication, call);
  }
  // As options_of(), over `base`, such as the options of a run.
  StatusOr<CommunicationOptions> options_over(const CommunicationOptions& base,
                                              const CommunicationOptions& call) const;
  static Status check_options(const CommunicationOptions& options);

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
  // Called by a run as it begins and ends; runs are nested.
  void push_run(const RunningFunctions* run);
  void pop_run();

 private:
  StrategyState(const Client& client, Mesh mesh, Mesh parameter_mesh)
      : Replicas(client, std::move(mesh)), parameter_mesh_(std::move(parameter_mesh)) {}

  // Part of create(): the layout of an exchange.
  Status set_call_rows();

  const Mesh parameter_mesh_;
  StrategyOptions options_;
  // The layout that an exchange sends: a row on each client, in order, with a record for each of
  // its replicas.
  StatusOr<Layout> call_rows_ = absl::UnknownError("not set");

  // The size of an exchange's records; equal on all clients.
  mutable int64_t record_bytes_ = 256;

  mutable std::mutex runs_mutex_;
  std::vector<const RunningFunctions*> runs_;  // the innermost last
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_DISTRIBUTE_STRATEGY_STATE_H_
