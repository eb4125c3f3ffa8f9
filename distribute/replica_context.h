// SPDX-License-Identifier: Apache-2.0
//
// ReplicaContext: what a replica function knows of its replica, and its calls of all replicas.
//
//   strategy.run([](ReplicaContext& replica, const DTensor& x) {
//     return replica.all_reduce(ReduceOp::kSum, x);
//   }, batch);
//
// TF: tf.distribute.ReplicaContext.
#ifndef TESSERA_DISTRIBUTE_REPLICA_CONTEXT_H_
#define TESSERA_DISTRIBUTE_REPLICA_CONTEXT_H_

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/reduce_op.h"
#include "distribute/function_results.h"
#include "distribute/options.h"
#include "distribute/values.h"
#include "dtensor/dtensor.h"
#include "mesh/mesh.h"
#include "ops/tape.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute {

class DistributedVariable;
class Strategy;

namespace internal {
class ReplicaRun;
}  // namespace internal

// Argument of a replica function; lives as long as its call. All replicas make its calls, in the
// same order; else all get InvalidArgument naming two that differ. Results are on the mesh of the
// replica.
class ReplicaContext {
 public:
  ReplicaContext(const ReplicaContext&) = delete;
  ReplicaContext& operator=(const ReplicaContext&) = delete;

  int replica_id_in_sync_group() const { return id_; }
  int num_replicas_in_sync() const;
  // The mesh of this replica: the axes of the strategy's mesh that are no replica axes, or
  // {device=1}.
  const Mesh& mesh() const { return mesh_; }
  const Strategy& strategy() const { return strategy_; }

  // The reduction of x over the replicas, element by element, to each. Equal shapes and dtypes.
  // Differentiable: the cotangents of kSum and kAvg are reduced in the same way.
  DTensor all_reduce(ReduceOp op, const DTensor& x, const CommunicationOptions& options = {});
  std::vector<DTensor> all_reduce(ReduceOp op, absl::Span<const DTensor> xs,
                                  const CommunicationOptions& options = {});
  // The values of the replicas along dim, by replica id; sizes along dim may differ. dim < 0 counts
  // from the end. Differentiable.
  DTensor all_gather(const DTensor& x, int dim, const CommunicationOptions& options = {});

  // The gradients of the target by the sources, reduced over the replicas: Tape::gradient() and
  // all_reduce(), of packs that are made in the order in which the backward pass finishes them,
  // from the last layer to the first. Where the strategy reduces on devices of their own
  // (all_reduce_on()), packs travel while the backward pass goes on.
  std::vector<DTensor> gradient(Tape& tape, const DTensor& target,
                                absl::Span<const DTensor> sources, ReduceOp op = ReduceOp::kSum,
                                const CommunicationOptions& options = {});

  // Waits until every local replica calls it; then fn(const Strategy&, const PerReplica&...) runs
  // once on each client. Each replica gets its part of fn's result: a DTensor over the strategy's
  // mesh, a PerReplica, a vector of either, a StatusOr of these, or a Status. Returns a DTensor, a
  // std::vector<DTensor> or a Status.
  template <class Fn, class... Args>
  auto merge_call(Fn fn, const Args&... args) {
    const auto call = [&](absl::Span<const PerReplica> merged) {
      return internal::call_with(fn, strategy_, merged, std::index_sequence_for<Args...>());
    };
    using Result = std::invoke_result_t<decltype(call), absl::Span<const PerReplica>>;
    return internal::as_returned<Result>(merge_raw(
        [&call](absl::Span<const PerReplica> merged) {
          return internal::to_result<DistributedValues>(call(merged));
        },
        {args...}));
  }

 private:
  friend class DistributedVariable;
  friend class Strategy;
  using MergeFunction = absl::FunctionRef<internal::MergeResult(absl::Span<const PerReplica> args)>;
  // `index`: of the replica, among the local replicas.
  ReplicaContext(const Strategy& strategy, std::shared_ptr<internal::ReplicaRun> run, int index);

  // On an error all tensors carry it; there are as many as arguments, at least one.
  internal::ReplicaResult merge_raw(MergeFunction fn, std::vector<DTensor> args);

  const Strategy& strategy_;
  const int id_;
  const Mesh mesh_;
  const std::shared_ptr<internal::ReplicaRun> run_;
  const int index_;
};

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_DISTRIBUTE_REPLICA_CONTEXT_H_
