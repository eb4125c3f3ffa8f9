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

#include <memory>

#include "base/public.h"
#include "nn/parameters.h"

namespace TESSERA_PUBLIC tessera {

namespace internal {
struct KeptStates;
}  // namespace internal

// A copy has variables of its own, with the same names and values.
class OptimizerState {
 public:
  OptimizerState();
  OptimizerState(const OptimizerState& other);
  OptimizerState(OptimizerState&& other) noexcept;
  OptimizerState& operator=(OptimizerState other) noexcept;
  ~OptimizerState();

  // All parts: those of the variable that was prepared first, then those of the second, ... Each
  // variable has its tensors in the order in which its optimizer names them, then "step".
  nn::Parameters& parameters();

 private:
  friend struct internal::KeptStates;

  std::unique_ptr<internal::KeptStates> states_;  // null: empty
};

}  // namespace tessera

#endif  // TESSERA_NN_OPTIMIZER_STATE_H_
