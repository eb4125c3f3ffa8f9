// SPDX-License-Identifier: Apache-2.0
//
// Optimizers: how gradients change variables.
//
//   AdamW optimizer{.learning_rate = 1e-3};
//   optimizer.apply(variables, tape.gradient(loss, watched));
//   optimizer.apply({w}, {gradient});
//
// An optimizer keeps state for each variable. The parts of the state are variables with names,
// which can be saved and restored as those of a model:
//
//   optimizer           parts for a variable "w", in order
//   Sgd                 "w/momentum"; none where `momentum` is 0
//   Adam, AdamW         "w/first_moment", "w/second_moment", "w/step"
//   Adagrad             "w/sum"
//
// state() has the parts of the variable that came first, then those of the second, ... They are
// made, with the values before the first step, by prepare(), or by the apply() that is the first to
// have the variable. So a program that restores calls prepare(), assigns the saved values to
// state().variables(), and goes on bit for bit. A second variable of the name "w" has the parts
// "w#2/momentum", ..., a third "w#3/momentum".
//
// Moments, momentum and sums have the shape and the layout of their variable; if `shard_state` is
// set when they are made, they are also split over the axes that the layout does not name, and so
// is the work: gradients, which may be partial, are moved to that layout (a reduce-scatter of
// partial ones), and the new values back (an all-gather). The values have the same bits either way.
// "w/step" is an i64 scalar: how often apply() had the variable. The first apply() after a new
// value was assigned to it waits for that value.
//
// A copy of an optimizer has a state of its own, with the same values.
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
// numbers, shapes or dtypes differ, naming the variable; for options out of range; and for a
// "w/step" that is no number of steps. It returns before the values are there. A variable may be in
// one call once. prepare() has the errors of apply() that do not depend on gradients.
//
// Threads: the calls of one optimizer are made by one thread at a time.
//
// Sgd: Sutskever et al. 2013, as PyTorch has it (the first momentum is the gradient). Adam: Kingma,
// Ba 2015. AdamW: Loshchilov, Hutter 2019. Adagrad: Duchi et al. 2011.
#ifndef TESSERA_NN_OPTIMIZER_H_
#define TESSERA_NN_OPTIMIZER_H_

#include <vector>

#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "nn/optimizer_state.h"
#include "nn/parameters.h"
#include "ops/variable.h"

namespace TESSERA_PUBLIC tessera {

struct Sgd {
  double learning_rate = 0.01;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  bool shard_state = false;
  OptimizerState kept = {};  // programs use state()

  nn::Parameters& state() { return kept.parameters(); }
  Status prepare(absl::Span<const Variable> variables);
  Status apply(absl::Span<const Variable> variables, absl::Span<const DTensor> gradients);
};

struct Adam {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  // added to the gradient
  bool shard_state = false;
  OptimizerState kept = {};  // programs use state()

  nn::Parameters& state() { return kept.parameters(); }
  Status prepare(absl::Span<const Variable> variables);
  Status apply(absl::Span<const Variable> variables, absl::Span<const DTensor> gradients);
};

struct AdamW {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  // of the value, not of the gradient
  bool shard_state = false;
  OptimizerState kept = {};  // programs use state()

  nn::Parameters& state() { return kept.parameters(); }
  Status prepare(absl::Span<const Variable> variables);
  Status apply(absl::Span<const Variable> variables, absl::Span<const DTensor> gradients);
};

struct Adagrad {
  double learning_rate = 0.01;
  double epsilon = 1e-10;
  double weight_decay = 0;
  double initial_accumulator = 0;
  bool shard_state = false;
  OptimizerState kept = {};  // programs use state()

  nn::Parameters& state() { return kept.parameters(); }
  Status prepare(absl::Span<const Variable> variables);
  Status apply(absl::Span<const Variable> variables, absl::Span<const DTensor> gradients);
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

#endif  // TESSERA_NN_OPTIMIZER_H_
