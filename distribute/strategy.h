// SPDX-License-Identifier: Apache-2.0
//
// Strategy: replicas on the devices of a mesh, for code that thinks in replicas.
//
//   StatusOr<Strategy> strategy = distribute::mirrored_strategy(client);
//   const PerReplica losses = strategy->run(
//       [&](ReplicaContext& replica, const DTensor& images) {
//         const DTensor loss = loss_of(images, weights.value(replica));
//         return replica.all_reduce(ReduceOp::kAvg, loss);
//       },
//       batch);
//   const DTensor mean = strategy->reduce(ReduceOp::kAvg, losses);
//
// A replica is one index along the replica axes of the mesh, row-major in the order of the mesh;
// the other axes belong to it, so it has one device or many. Nothing is hidden state: a strategy is
// a value that is passed, and a replica learns its id from the argument of its function.
//
// Every client of the mesh makes the same calls in the same order. Where replicas disagree, all
// clients get one error, and the strategy works afterwards. A strategy is used by one thread at a
// time. TF: tf.distribute.Strategy, StrategyExtended.
#ifndef TESSERA_DISTRIBUTE_STRATEGY_H_
#define TESSERA_DISTRIBUTE_STRATEGY_H_

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "distribute/function_results.h"
#include "distribute/options.h"
#include "distribute/replica_context.h"
#include "distribute/values.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace TESSERA_PUBLIC tessera {
namespace input {
class Dataset;
}  // namespace input
}  // namespace tessera

namespace TESSERA_PUBLIC tessera {
namespace distribute {

class DistributedDataset;
class DistributedVariable;
struct InputContext;
struct InputOptions;

namespace internal {
class StrategyState;
}  // namespace internal

class Strategy {
 public:
  // A move copies: the moved-from strategy stays valid.
  Strategy(const Strategy&) = default;
  Strategy& operator=(const Strategy&) = default;

  // Replicas along these axes of a live mesh. InvalidArgument for an axis that the mesh does not
  // have, naming its axes, for no axes, and for options out of their range.
  static StatusOr<Strategy> create(const Client& client, Mesh mesh,
                                   std::vector<std::string> replica_axes,
                                   StrategyOptions options = {});

  const Mesh& mesh() const;
  // The mesh of kOnWrite variables: mesh(), or the one device of a central storage.
  const Mesh& parameter_mesh() const;
  int num_replicas_in_sync() const;
  // The ids of the replicas that this client has, ascending.
  absl::Span<const int> local_replicas() const;

  // Runs fn(ReplicaContext&, const DTensor&...) once for each local replica, each on a thread of
  // its own but one at a time, in the order of their ids; a thread hands over where it waits for
  // the others. Arguments are DistributedValues; each replica gets its part. fn returns a DTensor,
  // a std::vector<DTensor>, a StatusOr of either, or a Status; run returns a PerReplica, a
  // std::vector<PerReplica>, or a Status. Where all replicas fail the vector has one, with the
  // error: look at its status() before the others.
  //
  // A tape records the operations of the replica function that made it. No gradient passes between
  // tensors of replicas and tensors outside: gradient() is then InvalidArgument.
  //
  // Errors, which the results carry: the error of the first replica whose function fails, with the
  // replica; InvalidArgument where replicas disagree on a collective, or one of them has returned,
  // naming both; FailedPrecondition inside a replica function. There sync_devices() is
  // FailedPrecondition, too: it would wait for work that other replicas have yet to enqueue.
  template <class Fn, class... Args>
  auto run(Fn fn, const Args&... args) const {
    return run_with(RunOptions(), std::move(fn), args...);
  }
  template <class Fn, class... Args>
  auto run_with(const RunOptions& options, Fn fn, const Args&... args) const {
    const auto call = [&fn](ReplicaContext& replica, absl::Span<const DTensor> parts) {
      return internal::call_with(fn, replica, parts, std::index_sequence_for<Args...>());
    };
    using Result = std::invoke_result_t<decltype(call), ReplicaContext&, absl::Span<const DTensor>>;
    return internal::as_returned<Result>(
        run_raw(options,
                [&call](ReplicaContext& replica, absl::Span<const DTensor> parts) {
                  return internal::to_result<DTensor>(call(replica, parts));
                },
                {DistributedValues(args)...}));
  }

  // Mirrored results, on every device of the mesh. With no dims: element by element over the
  // replicas, of equal shapes. Else along dims of each value too, in which sizes may differ; kAvg
  // is then the sum of all by the count of all. A dim < 0 counts from the end. InvalidArgument
  // where values disagree, for a replicated tensor with kSum or kProd, and for kAvg of integers.
  DTensor reduce(ReduceOp op, const DistributedValues& value, std::vector<int> dims = {}) const;
  // The values along dim, by replica id; sizes along dim may differ. Mirrored.
  DTensor gather(const DistributedValues& value, int dim) const;

  // The local replicas' tensors, on their devices. No communication.
  std::vector<DTensor> local_results(const DistributedValues& value) const;
  // fn is called for each local replica. Its tensor is on any mesh of this client, or over the
  // strategy's mesh: then the replica gets its part.
  PerReplica values_from_function(absl::FunctionRef<DTensor(const ValueContext&)> fn) const;
  // The values along dim, by replica id, as one tensor split along dim over the replica axes. No
  // communication where the sizes follow the split rule.
  DTensor to_sharded(const PerReplica& value, int dim) const;
  // No copy where each replica has a box of the tensor.
  PerReplica to_per_replica(const DistributedValues& value) const;

  // As reduce() without dims, to a layout on any mesh whose devices are of this strategy. Text of a
  // destination, here and below, is read on the strategy's mesh.
  DTensor reduce_to(ReduceOp op, const DistributedValues& value, const LayoutArg& destination,
                    const CommunicationOptions& options = {}) const;
  // As reduce_to(), for several values; small ones travel together. InvalidArgument for another
  // number of destinations.
  std::vector<DTensor> batch_reduce_to(ReduceOp op, absl::Span<const DistributedValues> values,
                                       const LayoutArgs& destinations,
                                       const CommunicationOptions& options = {}) const;
  DTensor broadcast_to(const DTensor& value, const LayoutArg& destination) const;

  // fn(value, args) -> the new value. kOnWrite: fn runs once, and args must be mirrored; they are
  // moved to the variable's devices. kOnRead: fn runs once for each local replica, with its parts
  // of args; all components change, or none where fn fails.
  Status update(DistributedVariable& variable,
                absl::FunctionRef<DTensor(const DTensor& value, absl::Span<const DTensor> args)> fn,
                absl::Span<const DistributedValues> args = {}) const;
  // The initial value gives dtype and shape; it is moved to where the variable is. InvalidArgument
  // for kNone synchronization, for kMean of integers, and where initial values of clients differ.
  StatusOr<DistributedVariable> variable(std::string name, DTensor initial,
                                         const VariableOptions& options = {}) const;
  // With the policy of another variable.
  StatusOr<DistributedVariable> variable_like(const DistributedVariable& like, std::string name,
                                              DTensor initial) const;
  // Whether all replicas hold the same bits; compares 128 of each device. Internal names the
  // variable and the first replica that differs.
  Status check_replicas(const DistributedVariable& variable) const;

  // Batches for the replicas (dataset.h). InvalidArgument for a data set without batches, for fewer
  // files than clients under kFile, for options of the other call, and where clients give other
  // data sets. TF: experimental_distribute_dataset.
  StatusOr<DistributedDataset> distribute_dataset(const input::Dataset& global_batches,
                                                  const InputOptions& options) const;
  // `fn` is called before this returns, for each pipeline of this client, and makes its data set.
  // An error of fn on one client is returned on all. TF: the same.
  StatusOr<DistributedDataset> distribute_datasets_from_function(
      std::function<StatusOr<input::Dataset>(const InputContext&)> fn,
      const InputOptions& options) const;

 private:
  friend class DistributedVariable;
  friend StatusOr<Strategy> central_storage_strategy(const Client& client,
                                                     std::vector<int> compute_devices,
                                                     int parameter_device);
  using RawFunction = absl::FunctionRef<internal::ReplicaResult(ReplicaContext& replica,
                                                                absl::Span<const DTensor> parts)>;
  explicit Strategy(std::shared_ptr<internal::StrategyState> state) : state_(std::move(state)) {}

  // OK if all replicas hold the same bits of a replicated tensor. Collective.
  Status compare_replicas(const std::string& subject, const DTensor& mirrored) const;
  internal::RunResult run_raw(const RunOptions& options, RawFunction fn,
                              std::vector<DistributedValues> args) const;

  std::shared_ptr<internal::StrategyState> state_;
};

// One replica, the first local device: no communication, the same API.
StatusOr<Strategy> default_strategy(const Client& client);
StatusOr<Strategy> one_device_strategy(const Client& client, int local_device = 0);
// Replicas on these local devices, by ordinal; none: on all of this client. Other clients take no
// part. InvalidArgument for a device that is not there or is named twice.
StatusOr<Strategy> mirrored_strategy(const Client& client, std::vector<int> local_devices = {},
                                     StrategyOptions options = {});
// On all devices of the job.
StatusOr<Strategy> multi_worker_mirrored_strategy(const Client& client,
                                                  StrategyOptions options = {});
// Variables of kOnWrite are on one local device, replicas on others.
StatusOr<Strategy> central_storage_strategy(const Client& client,
                                            std::vector<int> compute_devices = {},
                                            int parameter_device = 0);
// Unimplemented, naming the device types that there are.
StatusOr<Strategy> tpu_strategy(const Client& client);

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_DISTRIBUTE_STRATEGY_H_
