// SPDX-License-Identifier: Apache-2.0
//
// KeptStates: the contents of an OptimizerState, by variable.
#ifndef TESSERA_NN_KEPT_STATES_H_
#define TESSERA_NN_KEPT_STATES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "nn/optimizer_state.h"
#include "nn/parameters.h"
#include "ops/variable.h"

namespace tessera::internal {

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

struct TESSERA_INTERNAL KeptStates {
  KeptStates() = default;
  // The copy has variables of its own, with the same names and values.
  KeptStates(const KeptStates& other);
  KeptStates& operator=(const KeptStates&) = delete;

  // The contents of `state`, which are made where it has none.
  static KeptStates& of(OptimizerState& state);

  // Makes what the state of the variable lacks, and returns it; the pointer stays valid until the
  // OptimizerState is assigned or destroyed. The first call decides the layout of the tensors. A
  // second variable of one name is called "w#2", a third "w#3".
  StatusOr<StateOfVariable*> prepare(const Variable& variable, const KeptState& kept);

  nn::Parameters parameters;
  absl::node_hash_map<Variable, StateOfVariable> variables;
  absl::flat_hash_set<std::string> names;  // of StateOfVariable
};

}  // namespace tessera::internal

#endif  // TESSERA_NN_KEPT_STATES_H_
