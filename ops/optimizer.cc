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
#include "dtensor/device_op.h"
#include "dtensor/relayout.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/scalar.h"
#include "ops/tape.h"

namespace tessera {
namespace {

using ops::add;
using ops::div;
using ops::mul;
using ops::sub;

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
    const std::string name = absl::StrCat(optimizer, ": variable \"", variable.name(), "\"");
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

// A tensor of rank 0: a number that changes from step to step is no attribute of an operation,
// for which operations would be planned anew.
DTensor number(const DTensor& like, double value) {
  const ops::ElementBytes element = ops::rounded_element(value, like.dtype());
  return internal::full_raw(like.dtype(), {}, Layout::replicated(like.layout().mesh(), 0),
                            element.data());
}

// One step of one variable: from its value, the gradient and what is remembered, all of one layout,
// to the new value.
struct Step {
  const DTensor& value;
  const DTensor& gradient;
  OptimizerSlots& slots;
};
using StepFn = absl::FunctionRef<DTensor(const Step& step)>;

Status apply_steps(OptimizerState& state, bool shard_state, absl::Span<Variable> variables,
                   absl::Span<const DTensor> gradients, StepFn step) {
  for (size_t i = 0; i < variables.size(); ++i) {
    Variable& variable = variables[i];
    const Layout layout =
        shard_state ? sharded(variable.layout(), variable.shape()) : variable.layout();
    OptimizerSlots& slots = state[variable];
    ++slots.step;
    const DTensor value = relayout(variable.value(), layout);
    const DTensor gradient = relayout(stop_gradient(gradients[i]), layout);
    TESSERA_RETURN_IF_ERROR(variable.assign(step({value, gradient, slots})));
  }
  return absl::OkStatus();
}

// The gradient with the decay of the value.
DTensor decayed(const Step& step, double weight_decay) {
  if (weight_decay == 0) return step.gradient;
  return add(step.gradient, mul(step.value, number(step.value, weight_decay)));
}

// old * decay + fresh * (1 - decay), of zeros before the first step.
DTensor moving_average(const DTensor* old, const DTensor& fresh, double decay) {
  const DTensor added = mul(fresh, number(fresh, 1 - decay));
  return old == nullptr ? added : add(mul(*old, number(fresh, decay)), added);
}

// What Adam and AdamW have in common: what is subtracted from the value.
DTensor adam_change(const Step& step, const DTensor& gradient, double learning_rate, double beta1,
                    double beta2, double epsilon) {
  std::vector<DTensor>& tensors = step.slots.tensors;
  const bool is_first = tensors.empty();
  DTensor mean = moving_average(is_first ? nullptr : &tensors[0], gradient, beta1);
  DTensor squares = moving_average(is_first ? nullptr : &tensors[1], ops::square(gradient), beta2);
  const auto count = static_cast<double>(step.slots.step);
  const DTensor scale = number(gradient, 1 / std::sqrt(1 - std::pow(beta2, count)));
  const DTensor spread = add(mul(ops::sqrt(squares), scale), number(gradient, epsilon));
  const DTensor rate = number(gradient, learning_rate / (1 - std::pow(beta1, count)));
  const DTensor change = mul(div(mean, spread), rate);
  tensors = {std::move(mean), std::move(squares)};
  return change;
}

}  // namespace

Status Sgd::apply(absl::Span<Variable> variables, absl::Span<const DTensor> gradients) {
  TESSERA_RETURN_IF_ERROR(check_options("Sgd", {{"learning_rate", learning_rate, 0, kUnbounded},
                                                {"momentum", momentum, 0, kUnbounded},
                                                {"weight_decay", weight_decay, 0, kUnbounded}}));
  TESSERA_RETURN_IF_ERROR(check_gradients("Sgd", variables, gradients));
  return apply_steps(state, shard_state, variables, gradients, [this](const Step& step) {
    DTensor direction = decayed(step, weight_decay);
    if (momentum != 0) {
      std::vector<DTensor>& tensors = step.slots.tensors;
      const DTensor factor = number(direction, momentum);
      const DTensor moved = tensors.empty() ? direction : add(mul(tensors[0], factor), direction);
      tensors = {moved};
      direction = nesterov ? add(direction, mul(moved, factor)) : moved;
    }
    return sub(step.value, mul(direction, number(direction, learning_rate)));
  });
}

Status Adam::apply(absl::Span<Variable> variables, absl::Span<const DTensor> gradients) {
  TESSERA_RETURN_IF_ERROR(check_options("Adam", {{"learning_rate", learning_rate, 0, kUnbounded},
                                                 {"beta1", beta1, 0, 1},
                                                 {"beta2", beta2, 0, 1},
                                                 {"epsilon", epsilon, 0, kUnbounded},
                                                 {"weight_decay", weight_decay, 0, kUnbounded}}));
  TESSERA_RETURN_IF_ERROR(check_gradients("Adam", variables, gradients));
  return apply_steps(state, shard_state, variables, gradients, [this](const Step& step) {
    return sub(step.value, adam_change(step, decayed(step, weight_decay), learning_rate, beta1,
                                       beta2, epsilon));
  });
}

Status AdamW::apply(absl::Span<Variable> variables, absl::Span<const DTensor> gradients) {
  TESSERA_RETURN_IF_ERROR(check_options("AdamW", {{"learning_rate", learning_rate, 0, kUnbounded},
                                                  {"beta1", beta1, 0, 1},
                                                  {"beta2", beta2, 0, 1},
                                                  {"epsilon", epsilon, 0, kUnbounded},
                                                  {"weight_decay", weight_decay, 0, kUnbounded}}));
  TESSERA_RETURN_IF_ERROR(check_gradients("AdamW", variables, gradients));
  return apply_steps(state, shard_state, variables, gradients, [this](const Step& step) {
    const DTensor kept = mul(step.value, number(step.value, 1 - learning_rate * weight_decay));
    return sub(kept, adam_change(step, step.gradient, learning_rate, beta1, beta2, epsilon));
  });
}

Status Adagrad::apply(absl::Span<Variable> variables, absl::Span<const DTensor> gradients) {
  TESSERA_RETURN_IF_ERROR(
      check_options("Adagrad", {{"learning_rate", learning_rate, 0, kUnbounded},
                                {"epsilon", epsilon, 0, kUnbounded},
                                {"weight_decay", weight_decay, 0, kUnbounded},
                                {"initial_accumulator", initial_accumulator, 0, kUnbounded}}));
  TESSERA_RETURN_IF_ERROR(check_gradients("Adagrad", variables, gradients));
  return apply_steps(state, shard_state, variables, gradients, [this](const Step& step) {
    const DTensor gradient = decayed(step, weight_decay);
    std::vector<DTensor>& tensors = step.slots.tensors;
    const DTensor before = tensors.empty() ? number(gradient, initial_accumulator) : tensors[0];
    const DTensor squares = add(ops::square(gradient), before);
    tensors = {squares};
    const DTensor spread = add(ops::sqrt(squares), number(gradient, epsilon));
    return sub(step.value, mul(div(gradient, spread), number(gradient, learning_rate)));
  });
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
  DTensor squares = ops::sum(ops::square(gradients[0]));
  for (const DTensor& gradient : gradients.subspan(1)) {
    squares = add(squares, ops::sum(ops::square(gradient)));
  }
  DTensor norm = ops::sqrt(squares);
  const DTensor factor = div(max_norm, ops::maximum(norm, max_norm));
  std::vector<DTensor> clipped;
  for (const DTensor& gradient : gradients) clipped.push_back(mul(gradient, factor));
  return {std::move(clipped), std::move(norm)};
}

}  // namespace tessera
