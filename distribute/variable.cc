// SPDX-License-Identifier: Apache-2.0
#include "distribute/variable.h"

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/stable_hash.h"
#include "base/text.h"
#include "distribute/call.h"
#include "distribute/reductions.h"
#include "distribute/replica_run.h"
#include "distribute/replicas.h"
#include "distribute/strategy_state.h"
#include "distribute/value_access.h"
#include "dtensor/device_op.h"
#include "dtensor/parts.h"
#include "dtensor/relayout.h"
#include "ops/pointwise.h"
#include "ops/tape.h"

namespace tessera::distribute {
namespace {

using internal::Call;
using internal::Rows;
using internal::StrategyState;
using internal::tensor_of;

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

struct DistributedVariable::State {
  const Strategy strategy;
  const std::string name;
  const DType dtype;
  const Shape shape;
  const VariableOptions options;
  // For kOnWrite, on the parameter mesh.
  Variable variable;
  // For kOnRead, by local replica.
  std::vector<DTensor> components = {};
  // Guards the components, from the read of a call that changes them to its write.
  std::unique_ptr<std::mutex> changing = std::make_unique<std::mutex>();

  std::vector<DTensor> all_components() const {
    std::lock_guard<std::mutex> lock(*changing);
    return components;
  }
};

const std::string& DistributedVariable::name() const { return state_->name; }
DType DistributedVariable::dtype() const { return state_->dtype; }
const Shape& DistributedVariable::shape() const { return state_->shape; }
const VariableOptions& DistributedVariable::options() const { return state_->options; }
Variable& DistributedVariable::variable() { return state_->variable; }

Status DistributedVariable::check_value(const char* call, const DTensor& value) const {
  TESSERA_RETURN_IF_ERROR(value.status());
  if (value.dtype() == dtype() && value.shape() == shape()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(call, " of variable ", in_quotes(name()), ": it is of ", dtype_name(dtype()),
                   " ", shape_to_string(shape()), ", and the value of ", dtype_name(value.dtype()),
                   " ", shape_to_string(value.shape())));
}

Status DistributedVariable::check_strategy(const Strategy& strategy) const {
  const StrategyState& own = *state_->strategy.state_;
  const StrategyState& other = *strategy.state_;
  if (&own == &other) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("variable ", in_quotes(name()), " is of a strategy of ", own.num_replicas(),
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
          "variable ", in_quotes(name()),
          " has a component for each replica and no aggregation, so there is no one value; "
          "value(replica) is a component"));
      break;
    case VariableAggregation::kOnlyFirstReplica:
      result = internal::from_first(strategy, components.empty()
                                                  ? failed(*this, strategy.mesh(), absl::OkStatus())
                                                  : components[0]);
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
        call, " of variable ", in_quotes(name()),
        " in a replica function: it has no aggregation, and the values of the replicas may "
        "differ; make it with kSum, kMean or kOnlyFirstReplica"));
  }
  const auto change_once = [&](const Rows& rows, absl::Span<const Call> calls) -> StatusOr<Rows> {
    DTensor whole = rows[0][0];
    if (aggregation == VariableAggregation::kOnlyFirstReplica) {
      TESSERA_ASSIGN_OR_RETURN(whole, internal::from_first(strategy, whole));
    } else {
      TESSERA_ASSIGN_OR_RETURN(
          whole, internal::reduce_value(strategy, reduce_op_of(aggregation), rows, calls, {},
                                        replica.run_->options()));
    }
    TESSERA_RETURN_IF_ERROR(this->change(change, whole));
    return Rows(rows.size());
  };
  return replica.run_
      ->meet(replica.index_,
             absl::StrCat(call, "(", name_of(aggregation), ") of variable ", in_quotes(name())),
             {own},
             internal::ReplicaRun::Terms(replica.run_->options(), {}, /*may_call_strategy=*/true),
             change_once)
      .status;
}

// Strategy: the calls that make and change variables.

Status Strategy::update(
    DistributedVariable& variable,
    absl::FunctionRef<DTensor(const DTensor& value, absl::Span<const DTensor> args)> fn,
    absl::Span<const DistributedValues> args) const {
  TESSERA_RETURN_IF_ERROR(state_->check_not_in_replica("update()", "merge_call()"));
  TESSERA_RETURN_IF_ERROR(variable.check_strategy(*this));
  if (variable.options().synchronization == VariableSynchronization::kOnRead) {
    TESSERA_ASSIGN_OR_RETURN(const Rows rows, state_->rows_of(args));
    // All or none.
    const std::vector<DTensor> components = variable.state_->all_components();
    std::vector<DTensor> changed;
    for (size_t i = 0; i < rows.size(); ++i) {
      const DTensor value = tensor_of(mesh(), [&] { return fn(components[i], rows[i]); });
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
        (tensor->layout().mesh() == mesh() && !state_->is_mirrored(tensor->layout()))) {
      return absl::InvalidArgumentError(
          absl::StrCat("update of variable ", in_quotes(variable.name()), ": argument ", k,
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
  const std::string subject = absl::StrCat("variable ", in_quotes(name));
  TESSERA_RETURN_IF_ERROR(with_context(initial.status(), subject));
  VariableOptions policy = options;
  TESSERA_RETURN_IF_ERROR(with_context(check_enumerators(policy), subject));
  if (policy.synchronization == VariableSynchronization::kNone) {
    return absl::InvalidArgumentError(absl::StrCat(
        subject, ": kNone is not a synchronization of a strategy; use kOnWrite or kOnRead"));
  }
  const bool is_on_read = policy.synchronization == VariableSynchronization::kOnRead;
  if (!is_on_read) policy.synchronization = VariableSynchronization::kOnWrite;
  if (policy.trainable == Trainable::kAuto) {
    policy.trainable = is_on_read ? Trainable::kNo : Trainable::kYes;
  }
  if (policy.aggregation == VariableAggregation::kSum ||
      policy.aggregation == VariableAggregation::kMean) {
    TESSERA_RETURN_IF_ERROR(with_context(
        validate_reduction(reduce_op_of(policy.aggregation), initial.dtype()), subject));
  }
  const int rank = static_cast<int>(initial.shape().size());
  DTensor mirrored = relayout(initial, Layout::replicated(mesh(), rank));
  if (policy.initial == InitialValue::kFromFirstReplica) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> parts, state_->parts_of(mirrored));
    TESSERA_ASSIGN_OR_RETURN(mirrored,
                             internal::from_first(*state_, parts.empty() ? mirrored : parts[0]));
  }
  // Partial or split initial values keep the layout of their other axes.
  StatusOr<Layout> own = state_->is_mirrored(initial.layout()) ? initial.layout().without_partial()
                                                               : mirrored.layout();
  if (parameter_mesh() != mesh()) own = Layout::replicated(parameter_mesh(), rank);
  auto state = std::make_shared<DistributedVariable::State>(DistributedVariable::State{
      *this, name, initial.dtype(), initial.shape(), policy,
      is_on_read ? Variable(name, internal::failed_on(
                                      mesh(), absl::FailedPreconditionError(absl::StrCat(
                                                  subject,
                                                  " has a component for each replica; it is not a "
                                                  "variable of an optimizer"))))
                 : Variable(name, relayout(mirrored, own))});
  DistributedVariable variable(std::move(state));
  tessera::internal::guard_assignments(
      variable.variable(), [strategy = state_, subject](const char* call) {
        return strategy->check_not_in_replica(
            absl::StrCat(call, " of ", subject),
            "the method with the context, or an optimizer outside of run()");
      });
  if (policy.initial == InitialValue::kAgree && !state_->is_of_one_client()) {
    TESSERA_RETURN_IF_ERROR(
        compare_replicas(absl::StrCat("the initial value of ", subject), mirrored));
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
  return state_->exchange().agree(std::move(local), {}, state_->options().communication).status();
}

Status Strategy::check_replicas(const DistributedVariable& variable) const {
  TESSERA_RETURN_IF_ERROR(state_->check_not_in_replica("check_replicas()", "it outside of run()"));
  TESSERA_RETURN_IF_ERROR(variable.check_strategy(*this));
  if (variable.options().synchronization == VariableSynchronization::kOnRead ||
      parameter_mesh() != mesh()) {
    return absl::OkStatus();
  }
  const Status same =
      compare_replicas(absl::StrCat("variable ", in_quotes(variable.name())), variable.value());
  return absl::IsInvalidArgument(same) ? absl::InternalError(same.message()) : same;
}

}  // namespace tessera::distribute
