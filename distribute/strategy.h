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
// time. TF: tf.distribute.Strategy, StrategyExtended, ReplicaContext.
#ifndef TESSERA_DISTRIBUTE_STRATEGY_H_
#define TESSERA_DISTRIBUTE_STRATEGY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "distribute/values.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/tape.h"

namespace tessera::input {
class Dataset;
}  // namespace tessera::input

namespace tessera::distribute {

enum class CommunicationImplementation : uint8_t { kAuto, kRing, kNccl };

// Options of one call; fields that are set win over the strategy's.
struct CommunicationOptions {
  // Small tensors of one call travel together, up to so many bytes; 0: by the cost of a message.
  std::optional<int64_t> bytes_per_pack = {};
  // DeadlineExceeded when the other clients do not make the call for so long.
  std::optional<absl::Duration> timeout = {};
  // kRing: the host and UCX back ends. kNccl: FailedPrecondition on CPU devices.
  CommunicationImplementation implementation = CommunicationImplementation::kAuto;
  // Calls of different names never meet.
  std::string name = {};
};
struct RunOptions {
  // Also for the calls of its replica functions: the options of a call win, then these, then the
  // strategy's.
  CommunicationOptions communication = {};
};

class CrossDeviceOps;
class DistributedDataset;
class DistributedVariable;
struct InputContext;
struct InputOptions;
class Strategy;

struct StrategyOptions {
  CommunicationOptions communication = {};
  // How values of replicas are reduced; unset: collective_all_reduce().
  std::shared_ptr<CrossDeviceOps> cross_device_ops = {};
};

enum class VariableSynchronization : uint8_t {
  kAuto,     // kOnWrite
  kNone,     // InvalidArgument
  kOnWrite,  // all replicas have one value
  kOnRead,   // each replica has a component; reading aggregates them
};
enum class VariableAggregation : uint8_t { kNone, kSum, kMean, kOnlyFirstReplica };
enum class Trainable : uint8_t { kAuto, kYes, kNo };  // kAuto: no for kOnRead, else yes
// kAgree: clients compare 128 bits of their initial values.
enum class InitialValue : uint8_t { kAgree, kFromFirstReplica };
struct VariableOptions {
  VariableSynchronization synchronization = VariableSynchronization::kAuto;
  VariableAggregation aggregation = VariableAggregation::kNone;
  Trainable trainable = Trainable::kAuto;
  InitialValue initial = InitialValue::kAgree;
};

namespace internal {
class ReplicaRun;

// The result of a replica's function.
struct ReplicaResult {
  Status status = {};
  std::vector<DTensor> tensors = {};
};
// The result of the function of merge_call(): a value for all replicas, or an error.
struct MergeResult {
  Status status = {};
  std::vector<DistributedValues> values = {};
};
using MergeFunction =
    std::function<MergeResult(const Strategy& strategy, absl::Span<const PerReplica> args)>;

// The kinds of results that functions may have.
template <class T>
struct IsStatusOr : std::false_type {};
template <class T>
struct IsStatusOr<StatusOr<T>> : std::true_type {
  using Value = T;
};
template <class Result>
ReplicaResult to_replica_result(Result result) {
  if constexpr (IsStatusOr<Result>::value) {
    if (!result.ok()) return {result.status(), {}};
    return to_replica_result(*std::move(result));
  } else if constexpr (std::is_same_v<Result, Status>) {
    return {std::move(result), {}};
  } else if constexpr (std::is_same_v<Result, DTensor>) {
    return {absl::OkStatus(), {std::move(result)}};
  } else {
    static_assert(std::is_same_v<Result, std::vector<DTensor>>,
                  "a replica function returns a DTensor, a std::vector<DTensor>, a StatusOr of "
                  "either, or a Status");
    return {absl::OkStatus(), std::move(result)};
  }
}
template <class Result>
MergeResult to_merge_result(Result result) {
  if constexpr (IsStatusOr<Result>::value) {
    if (!result.ok()) return {result.status(), {}};
    return to_merge_result(*std::move(result));
  } else if constexpr (std::is_same_v<Result, Status>) {
    return {std::move(result), {}};
  } else if constexpr (std::is_same_v<Result, DTensor> || std::is_same_v<Result, PerReplica>) {
    return {absl::OkStatus(), {DistributedValues(std::move(result))}};
  } else {
    MergeResult merged;
    for (auto& each : result) merged.values.push_back(DistributedValues(std::move(each)));
    return merged;
  }
}
// The kind of a result without StatusOr: DTensor, a list, or Status.
template <class Result, class = void>
struct Kind {
  static constexpr bool kIsStatus = std::is_same_v<Result, Status>;
  static constexpr bool kIsOne =
      std::is_same_v<Result, DTensor> || std::is_same_v<Result, PerReplica>;
};
template <class Result>
struct Kind<Result, std::enable_if_t<IsStatusOr<Result>::value>>
    : Kind<typename IsStatusOr<Result>::Value> {};
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
    using Result = std::invoke_result_t<Fn&, const Strategy&, decltype((void)args, as_merged())...>;
    const internal::MergeFunction merge = [&fn](const Strategy& strategy,
                                                absl::Span<const PerReplica> merged) {
      return internal::to_merge_result(
          call_merged(fn, strategy, merged, std::index_sequence_for<Args...>()));
    };
    internal::ReplicaResult result = merge_raw(merge, {args...});
    using Kind = internal::Kind<Result>;
    if constexpr (Kind::kIsStatus) {
      return result.status;
    } else if constexpr (Kind::kIsOne) {
      return result.tensors[0];
    } else {
      return std::move(result.tensors);
    }
  }

 private:
  friend class internal::ReplicaRun;
  friend class DistributedVariable;
  ReplicaContext(const Strategy& strategy, int id, Mesh mesh,
                 std::shared_ptr<internal::ReplicaRun> run, int index);

  static const PerReplica& as_merged();  // for decltype
  template <class Fn, size_t... index>
  static auto call_merged(Fn& fn, const Strategy& strategy,
                          [[maybe_unused]] absl::Span<const PerReplica> merged,
                          std::index_sequence<index...>) {
    return fn(strategy, merged[index]...);
  }
  // On an error all tensors carry it; there are as many as arguments, at least one.
  internal::ReplicaResult merge_raw(const internal::MergeFunction& fn, std::vector<DTensor> args);

  const Strategy& strategy_;
  const int id_;
  const Mesh mesh_;
  const std::shared_ptr<internal::ReplicaRun> run_;
  const int index_;  // of the local replicas
};

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
    using Result =
        std::invoke_result_t<Fn&, ReplicaContext&, decltype((void)args, as_argument())...>;
    const auto raw = [&fn](ReplicaContext& replica, absl::Span<const DTensor> parts) {
      return internal::to_replica_result(
          call_with_parts(fn, replica, parts, std::index_sequence_for<Args...>()));
    };
    RunResult result = run_raw(options, raw, {DistributedValues(args)...});
    using Kind = internal::Kind<Result>;
    if constexpr (Kind::kIsStatus) {
      return result.status;
    } else if constexpr (Kind::kIsOne) {
      return result.values[0];
    } else {
      return std::move(result.values);
    }
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

  // As reduce() without dims, to a layout on any mesh whose devices are of this strategy.
  DTensor reduce_to(ReduceOp op, const DistributedValues& value, LayoutArg destination,
                    const CommunicationOptions& options = {}) const;
  // As reduce_to(), for several values; small ones travel together. InvalidArgument for another
  // number of destinations.
  std::vector<DTensor> batch_reduce_to(ReduceOp op, absl::Span<const DistributedValues> values,
                                       absl::Span<const Layout> destinations,
                                       const CommunicationOptions& options = {}) const;
  DTensor broadcast_to(const DTensor& value, LayoutArg destination) const;

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
  friend class internal::ReplicaRun;
  friend class DistributedVariable;
  friend class ReplicaContext;
  friend StatusOr<Strategy> central_storage_strategy(const Client& client,
                                                     std::vector<int> compute_devices,
                                                     int parameter_device);
  using RawFunction = absl::FunctionRef<internal::ReplicaResult(ReplicaContext& replica,
                                                                absl::Span<const DTensor> parts)>;
  struct RunResult {
    Status status = {};
    std::vector<PerReplica> values = {};  // at least one
  };
  explicit Strategy(std::shared_ptr<internal::StrategyState> state) : state_(std::move(state)) {}

  static const DTensor& as_argument();  // for decltype
  template <class Fn, size_t... index>
  static auto call_with_parts(Fn& fn, ReplicaContext& replica,
                              [[maybe_unused]] absl::Span<const DTensor> parts,
                              std::index_sequence<index...>) {
    return fn(replica, parts[index]...);
  }
  // OK if all replicas hold the same bits of a replicated tensor. Collective.
  Status compare_replicas(const std::string& subject, const DTensor& mirrored) const;
  RunResult run_raw(const RunOptions& options, RawFunction fn,
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

}  // namespace tessera::distribute

#endif  // TESSERA_DISTRIBUTE_STRATEGY_H_
