// SPDX-License-Identifier: Apache-2.0
//
// OptimizerState: what an optimizer keeps for each variable, under names. Programs reach it by
// state() of the optimizer (nn/optimizer.h).
//
//   "w1/first_moment", "w1/second_moment", "w1/step", "b1/first_moment", ...
//
// Each part of the state is a variable: a save reads value(), a restore calls assign(). Not
// thread-safe.
#ifndef TESSERA_NN_OPTIMIZER_STATE_H_
#define TESSERA_NN_OPTIMIZER_STATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "nn/parameters.h"
#include "ops/variable.h"

namespace tessera {

namespace internal {

// What an optimizer keeps for a variable.
struct KeptState {
  // The names of its tensors, which have the shape of the variable, in the order of the engine.
  absl::Span<const char* const> tensors;
  // Their elements before the first step.
  double initial = 0;
  // Whether it keeps the number of steps too.
  bool counts_steps = false;
  // Whether the tensors are also split over the axes that the variable's layout does not name.
  bool is_sharded = false;
};

// The number of steps of a variable, kept as a number and as a variable with a scalar of i64.
struct StepCount {
  Variable variable;
  int64_t count;
  // The value of `variable` that says `count`. If `variable` has another value, a program assigned
  // it, and it is the count.
  DTensor counted;
};

// The state of one variable.
struct StateOfVariable {
  std::string name;  // of the variable in the names of its state
  Layout layout;     // of the tensors
  std::vector<Variable> tensors;
  std::optional<StepCount> steps;
};

}  // namespace internal

// A copy has variables of its own, with the same names and values.
class OptimizerState {
 public:
  OptimizerState() = default;
  OptimizerState(const OptimizerState& other);
  OptimizerState(OptimizerState&& other) noexcept;
  OptimizerState& operator=(OptimizerState other) noexcept;
  ~OptimizerState() = default;

  // All parts: those of the variable that was prepared first, then those of the second, ... Each
  // variable has its tensors in the order of KeptState, then "step".
  nn::Parameters& parameters() { return parameters_; }

  // Internal. Makes what the state of the variable lacks, and returns it; the pointer stays valid
  // until this object is assigned or destroyed. The first call decides the layout of the tensors. A
  // second variable of one name is called "w#2", a third "w#3".
  StatusOr<internal::StateOfVariable*> prepare(const Variable& variable,
                                               const internal::KeptState& kept);

 private:
  void swap(OptimizerState& other) noexcept;

  nn::Parameters parameters_;
  absl::node_hash_map<Variable, internal::StateOfVariable> variables_;
  absl::flat_hash_set<std::string> names_;  // of StateOfVariable
};

}  // namespace tessera

#endif  // TESSERA_NN_OPTIMIZER_STATE_H_
