// SPDX-License-Identifier: Apache-2.0
#include "distribute/strategy.h"

#include <cstdint>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "distribute/call.h"
#include "distribute/reductions.h"
#include "distribute/replica_run.h"
#include "distribute/replicas.h"
#include "distribute/strategy_state.h"
#include "distribute/value_access.h"
#include "dtensor/device_op.h"
#include "dtensor/relayout.h"

namespace tessera::distribute {
namespace {

using internal::Call;
using internal::call_text;
using internal::ReplicaRun;
using internal::Rows;
using internal::RunResult;
using internal::StrategyState;
using internal::tensor_of;
using internal::ValueAccess;

// A tensor on the strategy's mesh that has nothing but the error.
DTensor failed(const StrategyState& state, Status error) {
  return internal::failed_on(state.mesh(), std::move(error));
}
DTensor value_or_failed(const StrategyState& state, StatusOr<DTensor> result) {
  return result.ok() ? *std::move(result) : failed(state, result.status());
}

// A value for all replicas has no terms to add.
Status check_one_value(const StrategyState& state, ReduceOp op, const char* call) {
  if (op != ReduceOp::kSum && op != ReduceOp::kProd) return absl::OkStatus();
  if (state.num_replicas() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      call_text(call, op), ": the tensor is one value for all ", state.num_replicas(),
      " replicas, and not one for each; multiply it, or make it with values_from_function()"));
}

}  // namespace

// Values

int PerReplica::num_replicas() const { return rep_->replicas->num_replicas(); }
absl::Span<const int> PerReplica::local_replicas() const {
  return rep_->replicas->local_replicas();
}

const DTensor& PerReplica::local(int index) const {
  if (index >= 0 && index < static_cast<int>(rep_->tensors.size())) return rep_->tensors[index];
  const size_t num_local = rep_->tensors.size();
  std::lock_guard<std::mutex> lock(rep_->mutex);
  return rep_->out_of_range
      .try_emplace(index, tessera::internal::failed_tensor(
                              DType::kFloat32, {}, Layout::create(*Mesh::create({{"none", 1}}), {}),
                              absl::InvalidArgumentError(absl::StrCat(
                                  "local(", index, ") is out of range; this client has ", num_local,
                                  " local values",
                                  num_local == 0 ? "" : absl::StrCat(", 0 to ", num_local - 1)))))
      .first->second;
}

Status PerReplica::await() const {
  TESSERA_RETURN_IF_ERROR(rep_->error);
  for (const DTensor& tensor : rep_->tensors) TESSERA_RETURN_IF_ERROR(tensor.await());
  return absl::OkStatus();
}

Status PerReplica::status() const {
  TESSERA_RETURN_IF_ERROR(rep_->error);
  for (const DTensor& tensor : rep_->tensors) TESSERA_RETURN_IF_ERROR(tensor.status());
  return absl::OkStatus();
}

// Strategy

StatusOr<Strategy> Strategy::create(const Client& client, Mesh mesh,
                                    std::vector<std::string> replica_axes,
                                    StrategyOptions options) {
  TESSERA_ASSIGN_OR_RETURN(
      std::shared_ptr<StrategyState> state,
      StrategyState::create(client, std::move(mesh), replica_axes, std::move(options),
                            /*parameter_mesh=*/std::nullopt));
  return Strategy(std::move(state));
}

const Mesh& Strategy::mesh() const { return state_->mesh(); }
const Mesh& Strategy::parameter_mesh() const { return state_->parameter_mesh(); }
int Strategy::num_replicas_in_sync() const { return state_->num_replicas(); }
absl::Span<const int> Strategy::local_replicas() const { return state_->local_replicas(); }

RunResult Strategy::run_raw(const RunOptions& options, RawFunction fn,
                            std::vector<DistributedValues> args) const {
  const auto failed_run = [&](const Status& error) {
    return RunResult{error, {ValueAccess::failed(state_, error)}};
  };
  Status status = state_->check_not_in_replica("run()", "merge_call(), in which it may be called");
  if (!status.ok()) return failed_run(status);
  const StatusOr<CommunicationOptions> communication = state_->options_of(options.communication);
  if (!communication.ok()) return failed_run(communication.status());
  const StatusOr<Rows> rows = state_->rows_of(args);
  if (!rows.ok()) return failed_run(rows.status());
  const auto run = std::make_shared<ReplicaRun>(state_, *communication);
  const Strategy strategy = *this;  // of the contexts, whatever the functions do with this one
  return run->run([&](int index) {
    ReplicaContext context(strategy, run, index);
    return fn(context, (*rows)[index]);
  });
}

namespace {

// Reduces a value over the replicas; `dims` and `destination` as the public calls have them.
StatusOr<DTensor> reduced(const StrategyState& state, const char* name, ReduceOp op,
                          const DistributedValues& value, const std::vector<int>& dims,
                          const std::optional<Layout>& destination,
                          const CommunicationOptions& asked) {
  TESSERA_RETURN_IF_ERROR(state.check_not_in_replica(
      call_text(name, op), "ReplicaContext::all_reduce() or merge_call()"));
  TESSERA_RETURN_IF_ERROR(validate_reduce_op(op));
  TESSERA_ASSIGN_OR_RETURN(const CommunicationOptions options, state.options_of(asked));
  const std::vector<int64_t> along(dims.begin(), dims.end());
  if (const DTensor* const tensor = value.tensor();
      tensor != nullptr && state.is_mirrored(tensor->layout())) {
    TESSERA_RETURN_IF_ERROR(tensor->status());
    TESSERA_RETURN_IF_ERROR(validate_reduction(op, tensor->dtype()));
    TESSERA_RETURN_IF_ERROR(check_one_value(state, op, name));
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<int64_t> normal,
        internal::normal_dims(along, static_cast<int64_t>(tensor->shape().size())));
    DTensor result = dims.empty() ? *tensor : internal::reduced_along(op, *tensor, normal);
    if (!destination.has_value()) return result;
    return internal::broadcast(state, result, *destination, options);
  }
  TESSERA_ASSIGN_OR_RETURN(const Rows rows, state.rows_of({value}));
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<Call> calls,
      state.exchange().agree(call_text(name, op), rows, {.dims = along}, options));
  return dims.empty() ? internal::reduce_value(state, op, rows, calls, destination, options)
                      : internal::reduce_dims(state, op, rows, calls, along, options);
}

}  // namespace

DTensor Strategy::reduce(ReduceOp op, const DistributedValues& value, std::vector<int> dims) const {
  return value_or_failed(*state_, reduced(*state_, "reduce", op, value, dims, {}, {}));
}

DTensor Strategy::reduce_to(ReduceOp op, const DistributedValues& value,
                            const LayoutArg& destination_arg,
                            const CommunicationOptions& options) const {
  const StatusOr<Layout> destination = destination_arg.resolve(state_->mesh());
  if (!destination.ok()) return failed(*state_, destination.status());
  return value_or_failed(*state_,
                         reduced(*state_, "reduce_to", op, value, {}, *destination, options));
}

std::vector<DTensor> Strategy::batch_reduce_to(ReduceOp op,
                                               absl::Span<const DistributedValues> values,
                                               const LayoutArgs& destination_args,
                                               const CommunicationOptions& options) const {
  const auto all_failed = [&](const Status& error) {
    return std::vector<DTensor>(values.size(), failed(*state_, error));
  };
  const StatusOr<std::vector<Layout>> resolved = destination_args.resolve(state_->mesh());
  if (!resolved.ok()) return all_failed(resolved.status());
  const std::vector<Layout>& destinations = *resolved;
  if (values.size() != destinations.size()) {
    return all_failed(absl::InvalidArgumentError(
        absl::StrCat("batch_reduce_to: ", values.size(), " values and ", destinations.size(),
                     " destinations; give one for each value")));
  }
  if (values.empty()) return {};
  const auto reduce_all = [&]() -> StatusOr<std::vector<DTensor>> {
    TESSERA_RETURN_IF_ERROR(state_->check_not_in_replica("batch_reduce_to()",
                                                         "ReplicaContext::all_reduce() of a list"));
    TESSERA_ASSIGN_OR_RETURN(const CommunicationOptions merged, state_->options_of(options));
    for (const DistributedValues& value : values) {
      if (value.tensor() == nullptr || !state_->is_mirrored(value.tensor()->layout())) continue;
      TESSERA_RETURN_IF_ERROR(check_one_value(*state_, op, "batch_reduce_to"));
    }
    TESSERA_ASSIGN_OR_RETURN(const Rows rows, state_->rows_of(values));
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<Call> calls,
        state_->exchange().agree(call_text("batch_reduce_to", op), rows, {}, merged));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<PerReplica> terms,
                             internal::terms_of(*state_, op, rows, calls));
    return internal::batch_reduce(*state_, op, terms, destinations, merged);
  };
  StatusOr<std::vector<DTensor>> results = reduce_all();
  return results.ok() ? *std::move(results) : all_failed(results.status());
}

DTensor Strategy::broadcast_to(const DTensor& value, const LayoutArg& destination) const {
  const Status outside = state_->check_not_in_replica("broadcast_to()", "merge_call()");
  if (!outside.ok()) return failed(*state_, outside);
  return value_or_failed(
      *state_, internal::broadcast(*state_, value, destination.resolve(state_->mesh()), {}));
}

namespace {

// The parts of a value whose sizes may differ along dim, of replicas that agree.
struct Pieces {
  Rows rows;
  std::vector<Call> calls;
};
StatusOr<Pieces> pieces_of(const StrategyState& state, const char* name,
                           const DistributedValues& value, int dim) {
  TESSERA_ASSIGN_OR_RETURN(Rows rows, state.rows_of({value}));
  TESSERA_ASSIGN_OR_RETURN(std::vector<Call> calls,
                           state.exchange().agree(absl::StrCat(name, "(dim ", dim, ")"), rows,
                                                  {.dims = {dim}}, state.options().communication));
  return Pieces{std::move(rows), std::move(calls)};
}

}  // namespace

DTensor Strategy::gather(const DistributedValues& value, int dim) const {
  const auto gather_value = [&]() -> StatusOr<DTensor> {
    TESSERA_RETURN_IF_ERROR(
        state_->check_not_in_replica("gather()", "ReplicaContext::all_gather()"));
    if (const DTensor* const tensor = value.tensor();
        tensor != nullptr && tensor->layout().mesh() == mesh()) {
      TESSERA_RETURN_IF_ERROR(tensor->status());
      const auto rank = static_cast<int64_t>(tensor->shape().size());
      TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, internal::normal_dims({dim}, rank));
      if (state_->is_mirrored(tensor->layout())) return *tensor;
    }
    TESSERA_ASSIGN_OR_RETURN(const Pieces pieces, pieces_of(*state_, "gather", value, dim));
    return internal::gather_value(*state_, pieces.rows, pieces.calls, dim);
  };
  return value_or_failed(*state_, gather_value());
}

std::vector<DTensor> Strategy::local_results(const DistributedValues& value) const {
  StatusOr<std::vector<DTensor>> parts = state_->parts_of(value);
  if (parts.ok()) return *std::move(parts);
  return std::vector<DTensor>(local_replicas().size(), failed(*state_, parts.status()));
}

PerReplica Strategy::values_from_function(
    absl::FunctionRef<DTensor(const ValueContext&)> fn) const {
  std::vector<DTensor> tensors;
  for (const int replica : local_replicas()) {
    const DTensor value = tensor_of(state_->mesh_of(replica), [&] {
      return fn({replica, num_replicas_in_sync()});
    });
    tensors.push_back(state_->on_replica(value, replica));
  }
  return ValueAccess::make(state_, std::move(tensors));
}

DTensor Strategy::to_sharded(const PerReplica& value, int dim) const {
  const auto shard_value = [&]() -> StatusOr<DTensor> {
    TESSERA_RETURN_IF_ERROR(state_->check_not_in_replica("to_sharded()", "merge_call()"));
    TESSERA_ASSIGN_OR_RETURN(const Pieces pieces, pieces_of(*state_, "to_sharded", value, dim));
    const auto& [rows, calls] = pieces;
    const auto rank = static_cast<int64_t>(calls[0].tensors[0].shape.size());
    const int64_t along = dim < 0 ? dim + rank : dim;
    int64_t total = 0;
    for (const Call& call : calls) total += call.tensors[0].shape[along];
    bool is_split_rule = true;
    for (int replica = 0; replica < num_replicas_in_sync(); ++replica) {
      const auto [first, end] = shard_interval(total, num_replicas_in_sync(), replica);
      is_split_rule &= end - first == calls[replica].tensors[0].shape[along];
    }
    if (is_split_rule) {
      TESSERA_ASSIGN_OR_RETURN(const std::vector<PerReplica> values,
                               internal::alike(*state_, rows, calls));
      return state_->whole_of_pieces(ValueAccess::rep(values[0]).tensors, along, total);
    }
    TESSERA_ASSIGN_OR_RETURN(const DTensor whole,
                             internal::gather_value(*state_, rows, calls, dim));
    std::vector<DimSharding> split(rank);
    split[along].assign(state_->replica_axes().begin(), state_->replica_axes().end());
    return relayout(whole, Layout::create(mesh(), std::move(split)));
  };
  return value_or_failed(*state_, shard_value());
}

PerReplica Strategy::to_per_replica(const DistributedValues& value) const {
  StatusOr<std::vector<DTensor>> parts = state_->parts_of(value);
  if (!parts.ok()) return ValueAccess::failed(state_, parts.status());
  return ValueAccess::make(state_, *std::move(parts));
}

// Factories

namespace {

// Global ids of local devices, by ordinal. InvalidArgument for a device that does not exist or is
// given twice.
StatusOr<std::vector<int>> ids_of(const Client& client, absl::Span<const int> ordinals) {
  const absl::Span<const Device> local = client.local_devices();
  const auto count = static_cast<int>(local.size());
  std::set<int> seen;
  std::vector<int> ids;
  for (const int ordinal : ordinals) {
    if (ordinal < 0 || ordinal >= count) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no local device ", ordinal, "; this client has 0 to ", count - 1));
    }
    if (!seen.insert(ordinal).second) {
      return absl::InvalidArgumentError(absl::StrCat("local device ", ordinal, " is named twice"));
    }
    ids.push_back(local[ordinal].id);
  }
  return ids;
}

StatusOr<Mesh> replica_mesh(const Client& client, std::vector<int> local_devices) {
  if (local_devices.empty()) {
    local_devices.resize(client.local_devices().size());
    std::iota(local_devices.begin(), local_devices.end(), 0);
  }
  TESSERA_ASSIGN_OR_RETURN(std::vector<int> ids, ids_of(client, local_devices));
  const auto size = static_cast<int64_t>(ids.size());
  return create_mesh(client, {{"replica", size}}, std::move(ids));
}

}  // namespace

StatusOr<Strategy> default_strategy(const Client& client) { return one_device_strategy(client, 0); }

StatusOr<Strategy> one_device_strategy(const Client& client, int local_device) {
  return mirrored_strategy(client, {local_device});
}

StatusOr<Strategy> mirrored_strategy(const Client& client, std::vector<int> local_devices,
                                     StrategyOptions options) {
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, replica_mesh(client, std::move(local_devices)));
  return Strategy::create(client, std::move(mesh), {"replica"}, std::move(options));
}

StatusOr<Strategy> multi_worker_mirrored_strategy(const Client& client, StrategyOptions options) {
  const auto size = static_cast<int64_t>(client.devices().size());
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"replica", size}}));
  return Strategy::create(client, std::move(mesh), {"replica"}, std::move(options));
}

StatusOr<Strategy> central_storage_strategy(const Client& client, std::vector<int> compute_devices,
                                            int parameter_device) {
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, replica_mesh(client, std::move(compute_devices)));
  TESSERA_ASSIGN_OR_RETURN(std::vector<int> ids, ids_of(client, {parameter_device}));
  TESSERA_ASSIGN_OR_RETURN(Mesh central, create_mesh(client, {{"central", 1}}, std::move(ids)));
  TESSERA_ASSIGN_OR_RETURN(
      std::shared_ptr<StrategyState> state,
      StrategyState::create(client, std::move(mesh), {"replica"}, {}, std::move(central)));
  return Strategy(std::move(state));
}

StatusOr<Strategy> tpu_strategy(const Client&) {
  return absl::UnimplementedError(
      "there are no TPU devices in this build; the device types are CPU (DeviceType::kCpu) and "
      "CUDA (DeviceType::kCuda). An accelerator needs a LocalDevice and a Platform of its own");
}

}  // namespace tessera::distribute
