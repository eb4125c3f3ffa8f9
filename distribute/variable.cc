// SPDX-License-Identifier: Apache-2.0
#include "distribute/variable.h"

#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "distribute/replica_run.h"
#include "distribute/strategy_state.h"
#include "distribute/value_access.h"
#include "distribute/variable_state.h"
#include "dtensor/device_op.h"
#include "dtensor/relayout.h"
#include "ops/pointwise.h"
#include "ops/tape.h"

namespace tessera::distribute {
namespace {

using internal::StrategyState;

constexpr const char* kCalls[] = {"assign", "assign_add", "assign_sub"};

ReduceOp reduce_op_of(VariableAggregation aggregation) {
  return aggregation == VariableAggregation::kSum ? ReduceOp::kSum : ReduceOp::kAvg;
}

const char* name_of(VariableAggregation aggregation) {
  static constexpr const char* kNames[] = {"none", "sum", "mean", "first replica"};
  return kNames[static_cast<int>(aggregation)];
}

DTensor failed(const DistributedVariable& variable, const Mesh& mesh, Status error) {
  return tessera::internal::failed_tensor(
      variable.dtype(), variable.shape(),
      Layout::replicated(mesh, static_cast<int>(variable.shape().size())), std::move(error));
}

// Zeros for floats, NaN and infinity included, and for integers.
DTensor zeros_like(const DTensor& x) {
  return is_floating_point(x.dtype()) ? ops::mul_or_zero(x, 0)
                                      : ops::cast(ops::not_equal(x, x), x.dtype());
}

}  // namespace

const std::string& DistributedVariable::name() const { return state_->name; }
DType DistributedVariable::dtype() const { return state_->dtype; }
const Shape& DistributedVariable::shape() const { return state_->shape; }
const VariableOptions& DistributedVariable::options() const { return state_->options; }
Variable& DistributedVariable::variable() { return state_->variable; }

Status DistributedVariable::check_value(const char* call, const DTensor& value) const {
  TESSERA_RETURN_IF_ERROR(value.status());
  if (value.dtype() == dtype() && value.shape() == shape()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(call, " of variable ", quoted(name()), ": it is of ", dtype_name(dtype()), " ",
                   shape_to_string(shape()), ", and the value of ", dtype_name(value.dtype()), " ",
                   shape_to_string(value.shape())));
}

Status DistributedVariable::check_strategy(const Strategy& strategy) const {
  const StrategyState& own = *state_->strategy.state_;
  const StrategyState& other = *strategy.state_;
  if (&own == &other) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("variable ", quoted(name()), " is of a strategy of ", own.num_replicas(),
                   " replicas on ", own.mesh().to_string(), ", and is used in one of ",
                   other.num_replicas(), " on ", other.mesh().to_string()));
}

StatusOr<std::vector<DTensor>> DistributedVariable::components_of(const DTensor& value) const {
  const StrategyState& strategy = *state_->strategy.state_;
  const int rank = static_cast<int>(shape().size());
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<DTensor> parts,
      strategy.parts_of(relayout(stop_gradient(value), Layout::replicated(strategy.mesh(), rank))));
  if (options().aggregation != VariableAggregation::kSum) return parts;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (strategy.local_replicas()[i] > 0) parts[i] = zeros_like(parts[i]);
  }
  return parts;
}

DTensor DistributedVariable::value() const {
  const StrategyState& strategy = *state_->strategy.state_;
  const Status outside =
      strategy.check_not_in_replica("value()", "value(replica) for this replica's");
  if (!outside.ok()) return failed(*this, strategy.mesh(), outside);
  if (options().synchronization == VariableSynchronization::kOnWrite) {
    return state_->variable.value();
  }
  const std::vector<DTensor> components = state_->all_components();
  StatusOr<DTensor> result;
  switch (options().aggregation) {
    case VariableAggregation::kNone:
      result = absl::FailedPreconditionError(absl::StrCat(
          "variable ", quoted(name()),
          " has a component for each replica and no aggregation, so there is no one value; "
          "value(replica) is a component"));
      break;
    case VariableAggregation::kOnlyFirstReplica:
      result = strategy.from_first(
          components.empty() ? failed(*this, strategy.mesh(), absl::OkStatus()) : components[0],
          dtype(), shape());
      break;
    default:
      result = strategy.whole_of_terms(components, reduce_op_of(options().aggregation));
      if (result.ok()) *result = relayout(*result, result->layout().without_partial());
  }
  return result.ok() ? *result : failed(*this, strategy.mesh(), result.status());
}

Status DistributedVariable::change(Change change, const DTensor& value) {
  const char* const call = kCalls[static_cast<int>(change)];
  const StrategyState& strategy = *state_->strategy.state_;
  TESSERA_RETURN_IF_ERROR(strategy.check_not_in_replica(call, "the method with the context"));
  TESSERA_RETURN_IF_ERROR(check_value(call, value));
  if (options().synchronization == VariableSynchronization::kOnWrite) {
    Variable& variable = state_->variable;
    if (change == Change::kAssign) return variable.assign(value);
    // Moved to where the variable is before it is added: terms are reduced first.
    const DTensor delta = relayout(value, variable.layout());
    return change == Change::kAdd ? variable.assign_add(delta) : variable.assign_sub(delta);
  }
  TESSERA_ASSIGN_OR_RETURN(std::vector<DTensor> parts, components_of(value));
  std::lock_guard<std::mutex> lock(*state_->changing);
  std::vector<DTensor>& components = state_->components;
  for (size_t i = 0; i < parts.size() && change != Change::kAssign; ++i) {
    parts[i] = change == Change::kAdd ? components[i] + parts[i] : components[i] - parts[i];
  }
  components = std::move(parts);
  return absl::OkStatus();
}

Status DistributedVariable::assign(const DTensor& value) { return change(Change::kAssign, value); }
Status DistributedVariable::assign_add(const DTensor& delta) { return change(Change::kAdd, delta); }
Status DistributedVariable::assign_sub(const DTensor& delta) { return change(Change::kSub, delta); }

DTensor DistributedVariable::value(ReplicaContext& replica) const {
  if (const Status status = check_strategy(replica.strategy()); !status.ok()) {
    return failed(*this, replica.mesh(), status);
  }
  if (options().synchronization == VariableSynchronization::kOnRead) {
    return state_->all_components()[replica.index_];
  }
  const StrategyState& strategy = *state_->strategy.state_;
  return strategy.on_replica(state_->variable.value(), replica.replica_id_in_sync_group());
}

Status DistributedVariable::change(ReplicaContext& replica, Change change, const DTensor& value) {
  const char* const call = kCalls[static_cast<int>(change)];
  TESSERA_RETURN_IF_ERROR(check_strategy(replica.strategy()));
  TESSERA_RETURN_IF_ERROR(check_value(call, value));
  const StrategyState& strategy = *state_->strategy.state_;
  const DTensor own = strategy.on_replica(stop_gradient(value), replica.replica_id_in_sync_group());
  if (options().synchronization == VariableSynchronization::kOnRead) {
    std::lock_guard<std::mutex> lock(*state_->changing);
    DTensor& component = state_->components[replica.index_];
    component = change == Change::kAdd   ? component + own
                : change == Change::kSub ? component - own
                                         : own;
    return absl::OkStatus();
  }
  const VariableAggregation aggregation = options().aggregation;
  if (aggregation == VariableAggregation::kNone) {
    return absl::FailedPreconditionError(absl::StrCat(
        call, " of variable ", quoted(name()),
        " in a replica function: it has no aggregation, and the values of the replicas may "
        "differ; make it with kSum, kMean or kOnlyFirstReplica"));
  }
  const auto change_once =
      [&](const std::vector<std::vector<DTensor>>& args,
          absl::Span<const internal::Call> calls) -> StatusOr<internal::ReplicaRun::Results> {
    std::vector<DTensor> parts;
    for (const std::vector<DTensor>& each : args) parts.push_back(each[0]);
    DTensor whole = parts[0];
    if (aggregation == VariableAggregation::kOnlyFirstReplica) {
      TESSERA_ASSIGN_OR_RETURN(whole, strategy.from_first(parts[0], dtype(), shape()));
    } else {
      TESSERA_ASSIGN_OR_RETURN(
          whole, strategy.reduce_parts(reduce_op_of(aggregation), std::move(parts), calls, {},
                                       replica.run_->options()));
    }
    TESSERA_RETURN_IF_ERROR(this->change(change, whole));
    return internal::ReplicaRun::Results(args.size());
  };
  return replica.run_
      ->meet(replica.index_,
             absl::StrCat(call, "(", name_of(aggregation), ") of variable ", quoted(name())), {own},
             {}, replica.run_->options(), /*may_call_strategy=*/true, change_once)
      .status;
}

Status DistributedVariable::assign(ReplicaContext& replica, const DTensor& value) {
  return change(replica, Change::kAssign, value);
}
Status DistributedVariable::assign_add(ReplicaContext& replica, const DTensor& delta) {
  return change(replica, Change::kAdd, delta);
}
Status DistributedVariable::assign_sub(ReplicaContext& replica, const DTensor& delta) {
  return change(replica, Change::kSub, delta);
}

}  // namespace tessera::distribute
