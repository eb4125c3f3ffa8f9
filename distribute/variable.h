// SPDX-License-Identifier: Apache-2.0
//
// DistributedVariable: a variable of a strategy. Strategy::variable() makes it.
//
//   kOnWrite   one value on all replicas: a Variable, replicated along the replica axes
//   kOnRead    a component for each replica; value() aggregates them. Under kSum a value v is the
//              components v, 0, 0, ...; under other aggregations each replica has v
//
// A checkpoint holds {v.name(), v.value()}, and v.assign() takes the restored tensor, on any number
// of replicas.
//
// Methods with a context are for replica functions; methods without one are for outside of run(),
// and for merge_call(). TF: tf.Variable in a strategy's scope, with synchronization and
// aggregation.
#ifndef TESSERA_DISTRIBUTE_VARIABLE_H_
#define TESSERA_DISTRIBUTE_VARIABLE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/public.h"
#include "base/shape.h"
#include "base/status.h"
#include "distribute/strategy.h"
#include "dtensor/dtensor.h"
#include "ops/variable.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute {

// A handle: copies mean the same variable.
class DistributedVariable {
 public:
  // A move copies: the moved-from handle stays valid.
  DistributedVariable(const DistributedVariable&) = default;
  DistributedVariable& operator=(const DistributedVariable&) = default;

  const std::string& name() const;
  DType dtype() const;
  const Shape& shape() const;
  // kAuto is resolved.
  const VariableOptions& options() const;

  // The aggregated value. kOnWrite: no communication. kOnRead: one reduction, and
  // FailedPrecondition with kNone.
  DTensor value() const;
  // A value for all replicas, of any layout on the strategy's mesh. InvalidArgument for another
  // shape or dtype, naming both.
  Status assign(const DTensor& value) { return change(Change::kAssign, value); }
  Status assign_add(const DTensor& delta) { return change(Change::kAdd, delta); }
  Status assign_sub(const DTensor& delta) { return change(Change::kSub, delta); }

  // The value of this replica. No communication, except from a central storage.
  DTensor value(ReplicaContext& replica) const;
  // kOnWrite: a call of all replicas, whose values are aggregated first; FailedPrecondition with
  // kNone. kOnRead: changes this replica's component.
  Status assign(ReplicaContext& replica, const DTensor& value) {
    return change(replica, Change::kAssign, value);
  }
  Status assign_add(ReplicaContext& replica, const DTensor& delta) {
    return change(replica, Change::kAdd, delta);
  }
  Status assign_sub(ReplicaContext& replica, const DTensor& delta) {
    return change(replica, Change::kSub, delta);
  }

  // kOnWrite: for tapes, and for optimizers outside of run(). In a replica function its assignments
  // are FailedPrecondition, since there would be one for each replica. kOnRead: a variable whose
  // value and assignments are FailedPrecondition.
  Variable& variable();

 private:
  friend class Strategy;
  struct State;
  enum class Change { kAssign, kAdd, kSub };
  explicit DistributedVariable(std::shared_ptr<State> state) : state_(std::move(state)) {}

  Status change(Change change, const DTensor& value);
  Status change(ReplicaContext& replica, Change change, const DTensor& value);
  Status check_value(const char* call, const DTensor& value) const;
  Status check_strategy(const Strategy& strategy) const;
  // The components that a value stands for.
  StatusOr<std::vector<DTensor>> components_of(const DTensor& value) const;

  std::shared_ptr<State> state_;
};

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_DISTRIBUTE_VARIABLE_H_
