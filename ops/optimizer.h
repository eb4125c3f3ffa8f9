// SPDX-License-Identifier: Apache-2.0
//
// Optimizers: how gradients change variables.
//
//   AdamW optimizer{.learning_rate = 1e-3};
//   optimizer.apply(variables, tape.gradient(loss, watched));
//
// An optimizer holds the state of each variable, by the variable. The state has the layout of its
// variable; with `shard_state` it is also split over the axes that the layout does not name, and so
// is the work: gradients, which may be partial, are moved to that layout (a reduce-scatter of
// partial ones), and the new values back (an all-gather). The values have the same bits either way.
//
// A step is one pass over the value, the gradient and the state, in place where nothing else holds
// the memory of a device: tensors that value() returned before keep theirs.
//
// Variables of f16 and bf16 are computed in f32, and their state is f32. The new value is rounded
// to the variable's dtype, and there is no copy of it in f32: a step below half a unit in the last
// place of the value (at 1: 2^-11 in f16, 2^-8 in bf16) is lost. To train with such steps keep the
// variable in f32, and cast() its value where the network uses it.
//
// apply() changes nothing unless every gradient fits its variable. InvalidArgument where their
// numbers, shapes or dtypes differ, naming the variable; and for options out of range. It returns
// before the values are there. A variable may be in one call once.
//
// Sgd: Sutskever et al. 2013, as PyTorch has it (the first momentum is the gradient). Adam: Kingma,
// Ba 2015. AdamW: Loshchilov, Hutter 2019. Adagrad: Duchi et al. 2011.
#ifndef TESSERA_OPS_OPTIMIZER_H_
#define TESSERA_OPS_OPTIMIZER_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "ops/variable.h"

namespace tessera {

// The state that an optimizer keeps for a variable.
struct OptimizerSlots {
  int64_t step = 0;
  std::vector<DTensor> tensors;  // none before the first step
};
using OptimizerState = absl::flat_hash_map<Variable, OptimizerSlots>;

struct Sgd {
  double learning_rate = 0.01;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  bool shard_state = false;
  OptimizerState state = {};

  Status apply(absl::Span<Variable> variables, absl::Span<const DTensor> gradients);
};

struct Adam {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  // added to the gradient
  bool shard_state = false;
  OptimizerState state = {};

  Status apply(absl::Span<Variable> variables, absl::Span<const DTensor> gradients);
};

struct AdamW {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  // of the value, not of the gradient
  bool shard_state = false;
  OptimizerState state = {};

  Status apply(absl::Span<Variable> variables, absl::Span<const DTensor> gradients);
};

struct Adagrad {
  double learning_rate = 0.01;
  double epsilon = 1e-10;
  double weight_decay = 0;
  double initial_accumulator = 0;
  bool shard_state = false;
  OptimizerState state = {};

  Status apply(absl::Span<Variable> variables, absl::Span<const DTensor> gradients);
};

// The gradients times max_norm / max(norm, max_norm), and the norm: the square root of the sum of
// squares of all elements, each once, however they are replicated. Takes at least one gradient, all
// of one dtype and one mesh. f16 and bf16 are computed in f32; the norm has their dtype, and may be
// infinite in f16 where the gradients are not.
struct ClippedGradients {
  std::vector<DTensor> gradients;
  DTensor norm;
};
ClippedGradients clip_by_global_norm(absl::Span<const DTensor> gradients, double max_norm);

}  // namespace tessera

#endif  // TESSERA_OPS_OPTIMIZER_H_
