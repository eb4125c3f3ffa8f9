// SPDX-License-Identifier: Apache-2.0
#include "ops/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/text.h"
#include "compute/cpu/host_engine.h"
#include "compute/engine.h"
#include "device/arithmetic.h"
#include "dtensor/device_op.h"
#include "dtensor/device_update.h"
#include "dtensor/relayout.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/composite.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/scalar.h"
#include "ops/tape.h"

namespace tessera {
namespace {

using ops::add;
using ops::div;
using ops::mul;

struct Option {
  const char* name;
  double value;
  double least;
  double below;  // not this value itself
};

Status check_options(const char* optimizer, absl::Span<const Option> options) {
  for (const Option& option : options) {
    if (option.value >= option.least && option.value < option.below) continue;
    return absl::InvalidArgumentError(absl::StrCat(optimizer, ": ", option.name, " is ",
                                                   option.value, "; it should be at least ",
                                                   option.least, " and below ", option.below));
  }
  return absl::OkStatus();
}
constexpr double kUnbounded = 1e308;

Status check_gradients(const char* optimizer, absl::Span<Variable> variables,
                       absl::Span<const DTensor> gradients) {
  if (variables.size() != gradients.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        optimizer, ": ", variables.size(), " variables and ", gradients.size(), " gradients"));
  }
  for (size_t i = 0; i < variables.size(); ++i) {
    const Variable& variable = variables[i];
    const DTensor& gradient = gradients[i];
    TESSERA_RETURN_IF_ERROR(internal::facts_of(variable.value()).error);
    TESSERA_RETURN_IF_ERROR(internal::facts_of(gradient).error);
    const std::string name = absl::StrCat(optimizer, ": variable ", quoted(variable.name()));
    if (std::find(variables.begin(), variables.begin() + i, variable) != variables.begin() + i) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is given twice"));
    }
    if (!is_floating_point(variable.dtype())) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is ", dtype_name(variable.dtype()), "; optimizers change floats"));
    }
    if (gradient.shape() == variable.shape() && gradient.dtype() == variable.dtype()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is ", dtype_name(variable.dtype()), " ", shape_to_string(variable.shape()),
        ", its gradient ", dtype_name(gradient.dtype()), " ", shape_to_string(gradient.shape())));
  }
  return absl::OkStatus();
}

// The layout split further over the axes that it does not name, in the dim whose shards stay the
// longest.
Layout sharded(const Layout& layout, const Shape& shape) {
  std::vector<std::string> unused;
  for (int axis = 0; axis < layout.mesh().rank(); ++axis) {
    bool is_used = false;
    for (const std::vector<SubAxis>& dim : layout.dim_axes()) {
      for (const SubAxis& part : dim) is_used = is_used || part.axis == axis;
    }
    if (!is_used) unused.push_back(layout.mesh().axes()[axis].name);
  }
  if (shape.empty() || unused.empty()) return layout;
  std::vector<DimSharding> dims(layout.dims().begin(), layout.dims().end());
  const auto length = [&](size_t dim) {
    return shape[dim] / layout.num_shards(static_cast<int>(dim));
  };
  size_t longest = 0;
  for (size_t dim = 1; dim < dims.size(); ++dim) {
    if (length(dim) > length(longest)) longest = dim;
  }
  dims[longest].insert(dims[longest].end(), unused.begin(), unused.end());
  const StatusOr<Layout> result = Layout::create(layout.mesh(), std::move(dims));
  return result.ok() ? *result : layout;
}

// A tensor of optimizer state before the first step. It is f32 for f16 and bf16, in which means of
// squares cannot change slowly: 0.999 v rounds to v.
DTensor filled_state(double value, const DTensor& like, const Layout& layout) {
  const DType dtype = ops::is_half(like.dtype()) ? DType::kFloat32 : like.dtype();
  const ops::ElementBytes element = ops::rounded_element(value, dtype);
  return internal::full_raw(dtype, like.shape(), layout, element.data());
}

// How an optimizer changes all variables of a call.
struct Change {
  const char* name;
  kernels::StepRule rule;
  bool shard_state;
  double initial;  // of the state
  // The numbers of step `count`, the first of which is 1.
  absl::FunctionRef<kernels::StepNumbers<double>(double count)> numbers;
};

// Moves the value and its optimizer state one step by the gradient; all of one layout.
Status run_step(const Change& change, DTensor& value, const DTensor& gradient,
                OptimizerSlots& slots) {
  const kernels::OptimizerStep step = {change.rule,
                                       change.numbers(static_cast<double>(slots.step))};
  std::vector<DTensor*> state = {&value};
  for (DTensor& tensor : slots.tensors) state.push_back(&tensor);
  return internal::update_on_devices(
      change.name, state, gradient,
      [step, dtype = value.dtype()](Engine* engine, const internal::UpdateArrays& arrays) {
        kernels::StepArrays in_memory = {.gradient = arrays.input};
        std::copy(arrays.from.begin(), arrays.from.end(), in_memory.from);
        std::copy(arrays.to.begin(), arrays.to.end(), in_memory.to);
        Engine& used =
            engine != nullptr ? *engine : kernels::host_engine(Arithmetic::of_this_host());
        return used.optimizer_step(step, dtype, in_memory, arrays.num_elements);
      });
}

Status apply_step(const Change& change, Variable& variable, const DTensor& gradient,
                  OptimizerSlots& slots) {
  const Layout layout =
      change.shard_state ? sharded(variable.layout(), variable.shape()) : variable.layout();
  const DTensor moved = relayout(stop_gradient(gradient), layout);
  TESSERA_RETURN_IF_ERROR(internal::facts_of(moved).error);
  if (slots.tensors.empty()) {
    for (int k = 0; k < kernels::num_step_slots(change.rule); ++k) {
      slots.tensors.push_back(filled_state(change.initial, moved, layout));
      TESSERA_RETURN_IF_ERROR(internal::facts_of(slots.tensors.back()).error);
    }
  }
  ++slots.step;
  return internal::update_value(variable, [&](DTensor& value) -> Status {
    if (layout == variable.layout()) return run_step(change, value, moved, slots);
    DTensor shards = relayout(value, layout);
    TESSERA_RETURN_IF_ERROR(internal::facts_of(shards).error);
    TESSERA_RETURN_IF_ERROR(run_step(change, shards, moved, slots));
    DTensor changed = relayout(std::move(shards), variable.layout());
    TESSERA_RETURN_IF_ERROR(internal::facts_of(changed).error);
    value = std::move(changed);
    return absl::OkStatus();
  });
}

Status apply_steps(OptimizerState& state, absl::Span<Variable> variables,
                   absl::Span<const DTensor> gradients, const Change& change) {
  for (size_t i = 0; i < variables.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(apply_step(change, variables[i], gradients[i], state[variables[i]]));
  }
  return absl::OkStatus();
}

// The numbers of a step of Adam or AdamW.
template <class Options>
kernels::StepNumbers<double> adam_numbers(const Options& options, double count) {
  return {.rate = options.learning_rate / (1 - std::pow(options.beta1, count)),
          .beta1 = options.beta1,
          .rest1 = 1 - options.beta1,
          .beta2 = options.beta2,
          .rest2 = 1 - options.beta2,
          .scale = 1 / std::sqrt(1 - std::pow(options.beta2, count)),
          .epsilon = options.epsilon};
}

}  // namespace

Status Sgd::apply(absl::Span<Variable> variables, absl::Span<const DTensor> gradients) {
  TESSERA_RETURN_IF_ERROR(check_options("Sgd", {{"learning_rate", learning_rate, 0, kUnbounded},
                                                {"momentum", momentum, 0, kUnbounded},
                                                {"weight_decay", weight_decay, 0, kUnbounded}}));
  TESSERA_RETURN_IF_ERROR(check_gradients("Sgd", variables, gradients));
  const kernels::StepRule rule = momentum == 0 ? kernels::StepRule::kSgd
                                 : nesterov    ? kernels::StepRule::kNesterov
                                               : kernels::StepRule::kMomentum;
  return apply_steps(state, variables, gradients, {"Sgd", rule, shard_state, 0, [this](double) {
                                                     return kernels::StepNumbers<double>{
                                                         .rate = learning_rate,
                                                         .gradient_decay = weight_decay,
                                                         .momentum = momentum};
                                                   }});
}

Status Adam::apply(absl::Span<Variable> variables, absl::Span<const DTensor> gradients) {
  TESSERA_RETURN_IF_ERROR(check_options("Adam", {{"learning_rate", learning_rate, 0, kUnbounded},
                                                 {"beta1", beta1, 0, 1},
                                                 {"beta2", beta2, 0, 1},
                                                 {"epsilon", epsilon, 0, kUnbounded},
                                                 {"weight_decay", weight_decay, 0, kUnbounded}}));
  TESSERA_RETURN_IF_ERROR(check_gradients("Adam", variables, gradients));
  return apply_steps(state, variables, gradients,
                     {"Adam", kernels::StepRule::kAdam, shard_state, 0, [this](double count) {
                        kernels::StepNumbers<double> numbers = adam_numbers(*this, count);
                        numbers.gradient_decay = weight_decay;
                        return numbers;
                      }});
}

Status AdamW::apply(absl::Span<Variable> variables, absl::Span<const DTensor> gradients) {
  TESSERA_RETURN_IF_ERROR(check_options("AdamW", {{"learning_rate", learning_rate, 0, kUnbounded},
                                                  {"beta1", beta1, 0, 1},
                                                  {"beta2", beta2, 0, 1},
                                                  {"epsilon", epsilon, 0, kUnbounded},
                                                  {"weight_decay", weight_decay, 0, kUnbounded}}));
  TESSERA_RETURN_IF_ERROR(check_gradients("AdamW", variables, gradients));
  return apply_steps(state, variables, gradients,
                     {"AdamW", kernels::StepRule::kAdam, shard_state, 0, [this](double count) {
                        kernels::StepNumbers<double> numbers = adam_numbers(*this, count);
                        numbers.kept = 1 - learning_rate * weight_decay;
                        return numbers;
                      }});
}

Status Adagrad::apply(absl::Span<Variable> variables, absl::Span<const DTensor> gradients) {
  TESSERA_RETURN_IF_ERROR(
      check_options("Adagrad", {{"learning_rate", learning_rate, 0, kUnbounded},
                                {"epsilon", epsilon, 0, kUnbounded},
                                {"weight_decay", weight_decay, 0, kUnbounded},
                                {"initial_accumulator", initial_accumulator, 0, kUnbounded}}));
  TESSERA_RETURN_IF_ERROR(check_gradients("Adagrad", variables, gradients));
  return apply_steps(
      state, variables, gradients,
      {"Adagrad", kernels::StepRule::kAdagrad, shard_state, initial_accumulator, [this](double) {
         return kernels::StepNumbers<double>{
             .rate = learning_rate, .gradient_decay = weight_decay, .epsilon = epsilon};
       }});
}

ClippedGradients clip_by_global_norm(absl::Span<const DTensor> gradients, double max_norm) {
  if (gradients.empty() || !(max_norm > 0)) {
    const Status error = absl::InvalidArgumentError(
        gradients.empty() ? std::string("clip_by_global_norm: of no gradients; give one at least")
                          : absl::StrCat("clip_by_global_norm: max_norm is ", max_norm,
                                         "; it should be above 0"));
    const DTensor failed =
        internal::failed_tensor(DType::kFloat32, {}, StatusOr<Layout>(error), error);
    return {std::vector<DTensor>(gradients.size(), failed), failed};
  }
  // Computed in f32 for f16 and bf16, which cannot hold large squares.
  const auto squares_of = [](const DTensor& gradient) {
    return ops::sum(ops::square(ops::widened({&gradient, 1})[0]));
  };
  DTensor squares = squares_of(gradients[0]);
  for (const DTensor& gradient : gradients.subspan(1)) {
    squares = add(squares, squares_of(gradient));
  }
  const DTensor norm = ops::sqrt(squares);
  const DTensor factor = div(max_norm, ops::maximum(norm, max_norm));
  std::vector<DTensor> clipped;
  for (const DTensor& gradient : gradients) {
    clipped.push_back(ops::in_f32(
        {&gradient, 1}, {},
        [&](absl::Span<const DTensor> x, const ops::Out& out) { return mul(x[0], factor, out); }));
  }
  const DType dtype = gradients[0].dtype();
  return {std::move(clipped), ops::is_half(dtype) ? ops::cast(norm, dtype) : norm};
}

}  // namespace tessera
