// SPDX-License-Identifier: Apache-2.0
#include "distribute/strategy.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/exception_status.h"
#include "base/stable_hash.h"
#include "base/text.h"
#include "distribute/call.h"
#include "distribute/cross_device_ops.h"
#include "distribute/replica_run.h"
#include "distribute/strategy_state.h"
#include "distribute/value_access.h"
#include "distribute/variable.h"
#include "distribute/variable_state.h"
#include "dtensor/device_op.h"
#include "dtensor/parts.h"
#include "dtensor/relayout.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/tape.h"

namespace tessera::distribute {
namespace {

using internal::Call;
using internal::call_text;
using internal::Freedom;
using internal::ReplicaRun;
using internal::StrategyState;
using internal::ValueAccess;

// A tensor on the strategy's mesh that has nothing but the error.
DTensor failed(const StrategyState& state, Status error) {
  return tessera::internal::failed_tensor(DType::kFloat32, {}, Layout::replicated(state.mesh(), 0),
                                          std::move(error));
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

DTensor reduced_along(ReduceOp op, const DTensor& x, const std::vector<int64_t>& dims) {
  switch (op) {
    case ReduceOp::kSum:
      return ops::sum(x, dims);
    case ReduceOp::kProd:
      return ops::prod(x, dims);
    case ReduceOp::kMin:
      return ops::min(x, dims);
    case ReduceOp::kMax:
      return ops::max(x, dims);
    case ReduceOp::kAvg:
      return ops::mean(x, dims);
  }
  return x;
}

// A hash of 128 bits of each local device's shard.
StatusOr<std::string> fingerprint(const DTensor& tensor) {
  std::string text;
  for (int i = 0; i < tensor.num_local_shards(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(const tessera::internal::RawShard shard,
                             tessera::internal::raw_shard(tensor, i));
    const absl::string_view bytes(reinterpret_cast<const char*>(shard.data),
                                  static_cast<size_t>(num_bytes(shard.box.sizes, tensor.dtype())));
    absl::StrAppend(&text, absl::Hex(stable_hash(bytes, 1), absl::kZeroPad16),
                    absl::Hex(stable_hash(bytes, 2), absl::kZeroPad16));
  }
  return text;
}

// The tensor that a user's function returns; an exception becomes the error of the tensor.
DTensor tensor_of(const Mesh& mesh, absl::FunctionRef<DTensor()> fn) {
  const StatusOr<DTensor> tensor = call_guarded<StatusOr<DTensor>>(fn);
  if (tensor.ok()) return *tensor;
  return tessera::internal::failed_tensor(DType::kFloat32, {}, Layout::replicated(mesh, 0),
                                          tensor.status());
}

// InvalidArgument for a number that stands for no enumerator.
Status check_enumerators(const VariableOptions& options) {
  const auto check = [](const char* type, auto value, auto last, const char* names) {
    if (value <= last) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(type, "(", static_cast<int>(value), ") is not an enumerator; use ", names));
  };
  TESSERA_RETURN_IF_ERROR(check("VariableSynchronization", options.synchronization,
                                VariableSynchronization::kOnRead, "kAuto, kOnWrite or kOnRead"));
  TESSERA_RETURN_IF_ERROR(
      check("Trainable", options.trainable, Trainable::kNo, "kAuto, kYes or kNo"));
  TESSERA_RETURN_IF_ERROR(check("InitialValue", options.initial, InitialValue::kFromFirstReplica,
                                "kAgree or kFromFirstReplica"));
  return check("VariableAggregation", options.aggregation, VariableAggregation::kOnlyFirstReplica,
               "kNone, kSum, kMean or kOnlyFirstReplica");
}

}  // namespace

// Values

int PerReplica::num_replicas() const { return rep_->strategy->num_replicas(); }
absl::Span<const int> PerReplica::local_replicas() const {
  return rep_->strategy->local_replicas();
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
      StrategyState::create(client, std::move(mesh), std::move(replica_axes), std::move(options),
                            /*parameter_mesh=*/std::nullopt));
  return Strategy(std::move(state));
}

const Mesh& Strategy::mesh() const { return state_->mesh(); }
const Mesh& Strategy::parameter_mesh() const { return state_->parameter_mesh(); }
int Strategy::num_replicas_in_sync() const { return state_->num_replicas(); }
absl::Span<const int> Strategy::local_replicas() const { return state_->local_replicas(); }

Strategy::RunResult Strategy::run_raw(const RunOptions& options, RawFunction fn,
                                      std::vector<DistributedValues> args) const {
  const auto failed_run = [&](const Status& error) {
    return RunResult{error, {ValueAccess::failed(state_, error)}};
  };
  Status status = state_->check_not_in_replica("run()", "merge_call(), in which it may be called");
  if (!status.ok()) return failed_run(status);
  const StatusOr<CommunicationOptions> communication = state_->options_of(options.communication);
  if (!communication.ok()) return failed_run(communication.status());
  std::vector<std::vector<DTensor>> by_replica(state_->local_replicas().size());
  for (const DistributedValues& arg : args) {
    const StatusOr<std::vector<DTensor>> parts = state_->parts_of(arg);
    if (!parts.ok()) return failed_run(parts.status());
    for (size_t i = 0; i < parts->size(); ++i) by_replica[i].push_back((*parts)[i]);
  }
  const auto run = std::make_shared<ReplicaRun>(*this, *communication);
  return run->run(fn, by_replica);
}

namespace {

// Reduces a value over the replicas; `dims` and `destination` as the public calls have them.
StatusOr<DTensor> reduce_value(StrategyState& state, const char* name, ReduceOp op,
                               const DistributedValues& value, const std::vector<int>& dims,
                               const std::optional<Layout>& destination,
                               const CommunicationOptions& asked) {
  TESSERA_RETURN_IF_ERROR(state.check_not_in_replica(
      call_text(name, op).c_str(), "ReplicaContext::all_reduce() or merge_call()"));
  TESSERA_RETURN_IF_ERROR(validate_reduce_op(op));
  TESSERA_ASSIGN_OR_RETURN(const CommunicationOptions options, state.options_of(asked));
  const std::vector<int64_t> along(dims.begin(), dims.end());
  if (const DTensor* const tensor = value.tensor(); tensor != nullptr &&
                                                    tensor->layout().mesh() == state.mesh() &&
                                                    state.is_replicated(tensor->layout())) {
    TESSERA_RETURN_IF_ERROR(tensor->status());
    TESSERA_RETURN_IF_ERROR(validate_reduction(op, tensor->dtype()));
    TESSERA_RETURN_IF_ERROR(check_one_value(state, op, name));
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<int64_t> normal,
        internal::normal_dims(along, static_cast<int64_t>(tensor->shape().size())));
    DTensor result = dims.empty() ? *tensor : reduced_along(op, *tensor, normal);
    if (!destination.has_value()) return result;
    return state.broadcast_across(result, *destination, options);
  }
  TESSERA_ASSIGN_OR_RETURN(std::vector<DTensor> parts, state.parts_of(value));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Call> calls,
                           state.agree(call_text(name, op), parts, {.dims = along}, options));
  if (dims.empty()) {
    return state.reduce_parts(op, std::move(parts), calls, destination, options);
  }
  return state.reduce_dims(op, std::move(parts), calls, along, options);
}

}  // namespace

DTensor Strategy::reduce(ReduceOp op, const DistributedValues& value, std::vector<int> dims) const {
  return value_or_failed(*state_, reduce_value(*state_, "reduce", op, value, dims, {}, {}));
}

DTensor Strategy::reduce_to(ReduceOp op, const DistributedValues& value, LayoutArg destination,
                            const CommunicationOptions& options) const {
  if (!destination.ok()) return failed(*state_, destination.status());
  return value_or_failed(*state_,
                         reduce_value(*state_, "reduce_to", op, value, {}, *destination, options));
}

std::vector<DTensor> Strategy::batch_reduce_to(ReduceOp op,
                                               absl::Span<const DistributedValues> values,
                                               absl::Span<const Layout> destinations,
                                               const CommunicationOptions& options) const {
  const auto all_failed = [&](const Status& error) {
    return std::vector<DTensor>(values.size(), failed(*state_, error));
  };
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
    std::vector<std::vector<DTensor>> parts_of_value;
    for (const DistributedValues& value : values) {
      if (const DTensor* const tensor = value.tensor(); tensor != nullptr &&
                                                        tensor->layout().mesh() == state_->mesh() &&
                                                        state_->is_replicated(tensor->layout())) {
        TESSERA_RETURN_IF_ERROR(check_one_value(*state_, op, "batch_reduce_to"));
      }
      TESSERA_ASSIGN_OR_RETURN(std::vector<DTensor> parts, state_->parts_of(value));
      parts_of_value.push_back(std::move(parts));
    }
    std::string text = call_text("batch_reduce_to", op);
    if (!merged.name.empty()) absl::StrAppend(&text, " ", quoted(merged.name));
    std::vector<Call> local;
    for (size_t i = 0; i < parts_of_value[0].size(); ++i) {
      std::vector<DTensor> tensors;
      for (const std::vector<DTensor>& parts : parts_of_value) tensors.push_back(parts[i]);
      local.push_back(StrategyState::call_of(text, tensors));
    }
    TESSERA_ASSIGN_OR_RETURN(const std::vector<Call> calls,
                             state_->exchange(std::move(local), merged));
    TESSERA_RETURN_IF_ERROR(internal::check_calls(calls, state_->names(), {}));
    std::vector<PerReplica> per_replica;
    for (size_t k = 0; k < values.size(); ++k) {
      TESSERA_RETURN_IF_ERROR(validate_reduction(op, calls[0].tensors[k].dtype));
      TESSERA_ASSIGN_OR_RETURN(
          std::vector<DTensor> parts,
          state_->alike(std::move(parts_of_value[k]), calls, static_cast<int>(k)));
      per_replica.push_back(ValueAccess::make(state_, std::move(parts)));
    }
    return state_->batch_reduce_across(op, per_replica, destinations, merged);
  };
  StatusOr<std::vector<DTensor>> results = reduce_all();
  return results.ok() ? *std::move(results) : all_failed(results.status());
}

DTensor Strategy::broadcast_to(const DTensor& value, LayoutArg destination) const {
  const Status outside = state_->check_not_in_replica("broadcast_to()", "merge_call()");
  if (!outside.ok()) return failed(*state_, outside);
  return value_or_failed(*state_, state_->broadcast_across(value, destination, {}));
}

DTensor Strategy::gather(const DistributedValues& value, int dim) const {
  const auto gather_value = [&]() -> StatusOr<DTensor> {
    TESSERA_RETURN_IF_ERROR(
        state_->check_not_in_replica("gather()", "ReplicaContext::all_gather()"));
    if (const DTensor* const tensor = value.tensor();
        tensor != nullptr && tensor->layout().mesh() == mesh()) {
      TESSERA_RETURN_IF_ERROR(tensor->status());
      const auto rank = static_cast<int64_t>(tensor->shape().size());
      TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, internal::normal_dims({dim}, rank));
      if (state_->is_replicated(tensor->layout())) return *tensor;
    }
    TESSERA_ASSIGN_OR_RETURN(const CommunicationOptions options, state_->options_of({}));
    TESSERA_ASSIGN_OR_RETURN(std::vector<DTensor> parts, state_->parts_of(value));
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<Call> calls,
        state_->agree(absl::StrCat("gather(dim ", dim, ")"), parts, {.dims = {dim}}, options));
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<int64_t> dims,
        internal::normal_dims({dim}, static_cast<int64_t>(parts[0].shape().size())));
    return state_->gather_parts(std::move(parts), calls, dims[0]);
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
    TESSERA_ASSIGN_OR_RETURN(const CommunicationOptions options, state_->options_of({}));
    TESSERA_ASSIGN_OR_RETURN(std::vector<DTensor> parts, state_->parts_of(value));
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<Call> calls,
        state_->agree(absl::StrCat("to_sharded(dim ", dim, ")"), parts, {.dims = {dim}}, options));
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<int64_t> dims,
        internal::normal_dims({dim}, static_cast<int64_t>(parts[0].shape().size())));
    const int64_t along = dims[0];
    int64_t total = 0;
    for (const Call& call : calls) total += call.tensors[0].shape[along];
    bool is_split_rule = true;
    for (int replica = 0; replica < num_replicas_in_sync(); ++replica) {
      const auto [first, end] = shard_interval(total, num_replicas_in_sync(), replica);
      is_split_rule &= end - first == calls[replica].tensors[0].shape[along];
    }
    if (is_split_rule) {
      TESSERA_ASSIGN_OR_RETURN(parts, state_->alike(std::move(parts), calls, 0));
      return state_->whole_of_pieces(parts, along, total);
    }
    TESSERA_ASSIGN_OR_RETURN(const DTensor whole,
                             state_->gather_parts(std::move(parts), calls, along));
    std::vector<DimSharding> split(whole.shape().size());
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

Status Strategy::update(
    DistributedVariable& variable,
    absl::FunctionRef<DTensor(const DTensor& value, absl::Span<const DTensor> args)> fn,
    absl::Span<const DistributedValues> args) const {
  TESSERA_RETURN_IF_ERROR(state_->check_not_in_replica("update()", "merge_call()"));
  TESSERA_RETURN_IF_ERROR(variable.check_strategy(*this));
  if (variable.options().synchronization == VariableSynchronization::kOnRead) {
    std::vector<std::vector<DTensor>> by_replica(local_replicas().size());
    for (const DistributedValues& arg : args) {
      TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> parts, state_->parts_of(arg));
      for (size_t i = 0; i < parts.size(); ++i) by_replica[i].push_back(parts[i]);
    }
    // All or none.
    const std::vector<DTensor> components = variable.state_->all_components();
    std::vector<DTensor> changed;
    for (size_t i = 0; i < by_replica.size(); ++i) {
      const DTensor value = tensor_of(mesh(), [&] { return fn(components[i], by_replica[i]); });
      TESSERA_RETURN_IF_ERROR(variable.check_value("update", value));
      changed.push_back(state_->on_replica(stop_gradient(value), local_replicas()[i]));
    }
    std::lock_guard<std::mutex> lock(*variable.state_->changing);
    variable.state_->components = std::move(changed);
    return absl::OkStatus();
  }
  std::vector<DTensor> tensors;
  for (size_t k = 0; k < args.size(); ++k) {
    const DTensor* const tensor = args[k].tensor();
    if (tensor == nullptr ||
        (tensor->layout().mesh() == mesh() && !state_->is_replicated(tensor->layout()))) {
      return absl::InvalidArgumentError(
          absl::StrCat("update of variable ", quoted(variable.name()), ": argument ", k,
                       " has a value for each replica, with which the replicas of the variable "
                       "would differ; reduce() it first"));
    }
    // To where the variable is, which a central storage has apart.
    const bool is_there = tensor->layout().mesh() == parameter_mesh();
    const int rank = static_cast<int>(tensor->shape().size());
    tensors.push_back(is_there ? *tensor
                               : relayout(*tensor, Layout::replicated(parameter_mesh(), rank)));
  }
  return variable.assign(
      tensor_of(parameter_mesh(), [&] { return fn(variable.value(), tensors); }));
}

StatusOr<DistributedVariable> Strategy::variable(std::string name, DTensor initial,
                                                 const VariableOptions& options) const {
  TESSERA_RETURN_IF_ERROR(state_->check_not_in_replica("variable()", "it outside of run()"));
  if (name.empty()) {
    return absl::InvalidArgumentError(
        "variable(): a variable needs a name, for messages and calls");
  }
  TESSERA_RETURN_IF_ERROR(with_context(initial.status(), absl::StrCat("variable ", quoted(name))));
  VariableOptions policy = options;
  TESSERA_RETURN_IF_ERROR(
      with_context(check_enumerators(policy), absl::StrCat("variable ", quoted(name))));
  if (policy.synchronization == VariableSynchronization::kNone) {
    return absl::InvalidArgumentError(
        absl::StrCat("variable ", quoted(name),
                     ": kNone is not a synchronization of a strategy; use kOnWrite or kOnRead"));
  }
  if (policy.synchronization == VariableSynchronization::kAuto) {
    policy.synchronization = VariableSynchronization::kOnWrite;
  }
  const bool is_on_read = policy.synchronization == VariableSynchronization::kOnRead;
  if (policy.trainable == Trainable::kAuto) {
    policy.trainable = is_on_read ? Trainable::kNo : Trainable::kYes;
  }
  const Status aggregated = policy.aggregation == VariableAggregation::kSum
                                ? validate_reduction(ReduceOp::kSum, initial.dtype())
                            : policy.aggregation == VariableAggregation::kMean
                                ? validate_reduction(ReduceOp::kAvg, initial.dtype())
                                : absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(with_context(aggregated, absl::StrCat("variable ", quoted(name))));
  const int rank = static_cast<int>(initial.shape().size());
  DTensor mirrored = relayout(initial, Layout::replicated(mesh(), rank));
  if (policy.initial == InitialValue::kFromFirstReplica) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> parts, state_->parts_of(mirrored));
    TESSERA_ASSIGN_OR_RETURN(mirrored, state_->from_first(parts.empty() ? mirrored : parts[0],
                                                          initial.dtype(), initial.shape()));
  }
  // Partial or split initial values keep the layout of their other axes.
  StatusOr<Layout> own =
      state_->is_replicated(initial.layout()) && initial.layout().mesh() == mesh()
          ? initial.layout().without_partial()
          : mirrored.layout();
  if (parameter_mesh() != mesh()) own = Layout::replicated(parameter_mesh(), rank);
  auto state = std::make_shared<DistributedVariable::State>(DistributedVariable::State{
      *this, name, initial.dtype(), initial.shape(), policy,
      is_on_read
          ? Variable(name, failed(*state_, absl::FailedPreconditionError(absl::StrCat(
                                               "variable ", quoted(name),
                                               " has a component for each replica; it is not a "
                                               "variable of an optimizer"))))
          : Variable(name, relayout(mirrored, own))});
  DistributedVariable variable(std::move(state));
  tessera::internal::guard_assignments(
      variable.variable(), [strategy = state_, name](const char* call) -> Status {
        if (!strategy->is_in_replica()) return absl::OkStatus();
        return strategy->check_not_in_replica(
            absl::StrCat(call, " of variable ", quoted(name)).c_str(),
            "the method with the context, or an optimizer outside of run()");
      });
  if (policy.initial == InitialValue::kAgree && !state_->is_of_one_client()) {
    TESSERA_RETURN_IF_ERROR(
        compare_replicas(absl::StrCat("the initial value of variable ", quoted(name)), mirrored));
  }
  if (is_on_read)
    TESSERA_RETURN_IF_ERROR(variable.change(DistributedVariable::Change::kAssign, mirrored));
  return variable;
}

StatusOr<DistributedVariable> Strategy::variable_like(const DistributedVariable& like,
                                                      std::string name, DTensor initial) const {
  TESSERA_RETURN_IF_ERROR(like.check_strategy(*this));
  return variable(std::move(name), std::move(initial), like.options());
}

Status Strategy::compare_replicas(const std::string& subject, const DTensor& mirrored) const {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> parts, state_->parts_of(mirrored));
  std::vector<Call> local;
  for (const DTensor& part : parts) {
    StatusOr<std::string> bits = fingerprint(part);
    Call& call = local.emplace_back(Call{.text = subject});
    if (bits.ok()) call.value = *std::move(bits);
    if (!bits.ok()) call.error = bits.status();
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Call> calls,
                           state_->exchange(std::move(local), state_->options().communication));
  return internal::check_calls(calls, state_->names(), {});
}

Status Strategy::check_replicas(const DistributedVariable& variable) const {
  TESSERA_RETURN_IF_ERROR(state_->check_not_in_replica("check_replicas()", "it outside of run()"));
  TESSERA_RETURN_IF_ERROR(variable.check_strategy(*this));
  if (variable.options().synchronization == VariableSynchronization::kOnRead ||
      parameter_mesh() != mesh()) {
    return absl::OkStatus();
  }
  const Status same =
      compare_replicas(absl::StrCat("variable ", quoted(variable.name())), variable.value());
  return absl::IsInvalidArgument(same) ? absl::InternalError(same.message()) : same;
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
    for (size_t i = 0; i < client.local_devices().size(); ++i) {
      local_devices.push_back(static_cast<int>(i));
    }
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
