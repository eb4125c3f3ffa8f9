// SPDX-License-Identifier: Apache-2.0
#include "nn/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
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
#include "nn/kept_states.h"
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
constexpr double kUnbounded = 1e308;

// The name, the options and the rule of an optimizer.
struct Method {
  const char* name;
  std::vector<Option> options;
  kernels::StepRule rule;
  double initial = 0;  // of the state
};

Status check_options(const Method& method) {
  for (const Option& option : method.options) {
    if (option.value >= option.least && option.value < option.below) continue;
    return absl::InvalidArgumentError(absl::StrCat(method.name, ": ", option.name, " is ",
                                                   option.value, "; it should be at least ",
                                                   option.least, " and below ", option.below));
  }
  return absl::OkStatus();
}

Status check_variables(const char* optimizer, absl::Span<const Variable> variables) {
  for (size_t i = 0; i < variables.size(); ++i) {
    const Variable& variable = variables[i];
    TESSERA_RETURN_IF_ERROR(internal::facts_of(variable.value()).error);
    const auto refuse = [&](const auto&... parts) {
      return absl::InvalidArgumentError(
          absl::StrCat(optimizer, ": variable ", in_quotes(variable.name()), parts...));
    };
    if (std::find(variables.begin(), variables.begin() + i, variable) != variables.begin() + i) {
      return refuse(" is given twice");
    }
    if (!is_floating_point(variable.dtype())) {
      return refuse(" is ", dtype_name(variable.dtype()), "; optimizers change floats");
    }
  }
  return absl::OkStatus();
}

Status check_gradients(const char* optimizer, absl::Span<const Variable> variables,
                       absl::Span<const DTensor> gradients) {
  if (variables.size() != gradients.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        optimizer, ": ", variables.size(), " variables and ", gradients.size(), " gradients"));
  }
  TESSERA_RETURN_IF_ERROR(check_variables(optimizer, variables));
  for (size_t i = 0; i < variables.size(); ++i) {
    const Variable& variable = variables[i];
    const DTensor& gradient = gradients[i];
    TESSERA_RETURN_IF_ERROR(internal::facts_of(gradient).error);
    if (gradient.shape() == variable.shape() && gradient.dtype() == variable.dtype()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        optimizer, ": variable ", in_quotes(variable.name()), " is ", dtype_name(variable.dtype()),
        " ", shape_to_string(variable.shape()), ", its gradient ", dtype_name(gradient.dtype()),
        " ", shape_to_string(gradient.shape())));
  }
  return absl::OkStatus();
}

// The names of the tensors that a rule remembers, in the order of the engine.
absl::Span<const char* const> names_of(kernels::StepRule rule) {
  static constexpr const char* kMomentum[] = {"momentum"};
  static constexpr const char* kMoments[] = {"first_moment", "second_moment"};
  static constexpr const char* kSum[] = {"sum"};
  switch (rule) {
    case kernels::StepRule::kSgd:
      return {};
    case kernels::StepRule::kMomentum:
    case kernels::StepRule::kNesterov:
      return kMomentum;
    case kernels::StepRule::kAdam:
      return kMoments;
    case kernels::StepRule::kAdagrad:
      return kSum;
  }
  return {};
}

using States = std::vector<internal::StateOfVariable*>;

// The states of the variables, in their order.
StatusOr<States> prepare_states(OptimizerState& state, const Method& method, bool shard_state,
                                absl::Span<const Variable> variables) {
  const internal::KeptState kept = {names_of(method.rule), method.initial,
                                    method.rule == kernels::StepRule::kAdam, shard_state};
  States states;
  states.reserve(variables.size());
  for (const Variable& variable : variables) {
    TESSERA_ASSIGN_OR_RETURN(states.emplace_back(),
                             internal::KeptStates::of(state).prepare(variable, kept));
  }
  return states;
}

// Reads the number of steps, and waits for it, if it was assigned.
Status read_count(const char* optimizer, internal::StepCount& steps) {
  const DTensor value = steps.variable.value();
  if (internal::is_same_tensor(value, steps.counted)) return absl::OkStatus();
  int64_t count = 0;  // without meaning on a client that has no device of the variable
  if (value.num_local_shards() > 0) {
    TESSERA_ASSIGN_OR_RETURN(const ShardView<int64_t> shard, value.shard<int64_t>(0));
    count = shard.data[0];
  }
  constexpr int64_t kMost = int64_t{1} << 53;  // a double has all numbers up to here
  if (count < 0 || count > kMost) {
    return absl::InvalidArgumentError(absl::StrCat(optimizer, ": ",
                                                   in_quotes(steps.variable.name()), " is ", count,
                                                   "; it should be from 0 to ", kMost));
  }
  steps.count = count;
  steps.counted = value;
  return absl::OkStatus();
}

// Scalars of i64. Most variables of a call have one count and one mesh: they share the tensor.
class CountTensors {
 public:
  // On the devices of `like`. Valid until the next call.
  const DTensor& tensor(int64_t count, const DTensor& like) {
    const bool fits =
        last_.has_value() && last_count_ == count &&
        internal::facts_of(*last_).runtime_number == internal::facts_of(like).runtime_number &&
        last_->layout() == like.layout();
    // full() would take a turn of a device, which then is not idle when the step comes.
    if (!fits) last_ = from_host<int64_t>({count}, {}, like.layout());
    last_count_ = count;
    return *last_;
  }

 private:
  std::optional<DTensor> last_;
  int64_t last_count_ = 0;
};

// The value of a variable, then its optimizer state.
using Values = absl::InlinedVector<DTensor*, 1 + kernels::kMaxStepSlots>;

// Calls update() with the values of all variables, which it may replace, in `values`.
Status update_values(absl::Span<const Variable* const> variables, Values& values,
                     absl::FunctionRef<Status()> update) {
  if (values.size() == variables.size()) return update();
  return internal::update_value(*variables[values.size()], [&](DTensor& value) {
    values.push_back(&value);
    return update_values(variables, values, update);
  });
}

// Moves `changed` one step by the gradient; all of one layout.
Status run_step(const char* name, const kernels::OptimizerStep& step, const Values& changed,
                const DTensor& gradient) {
  return internal::update_on_devices(
      name, changed, gradient,
      [step, dtype = changed[0]->dtype()](Engine* engine, const internal::UpdateArrays& arrays) {
        kernels::StepArrays in_memory = {.gradient = arrays.input};
        std::copy(arrays.from.begin(), arrays.from.end(), in_memory.from);
        std::copy(arrays.to.begin(), arrays.to.end(), in_memory.to);
        Engine& used =
            engine != nullptr ? *engine : kernels::host_engine(Arithmetic::of_this_host());
        return used.optimizer_step(step, dtype, in_memory, arrays.num_elements);
      });
}

// run_step() for a value of the layout of `variable`, and a gradient and state of another layout.
Status run_step_on_shards(const char* name, const kernels::OptimizerStep& step,
                          const Variable& variable, Values& changed, const DTensor& gradient) {
  if (gradient.layout() == variable.layout()) return run_step(name, step, changed, gradient);
  DTensor& value = *changed[0];
  DTensor shards = relayout(value, gradient.layout());
  TESSERA_RETURN_IF_ERROR(internal::facts_of(shards).error);
  changed[0] = &shards;
  TESSERA_RETURN_IF_ERROR(run_step(name, step, changed, gradient));
  DTensor whole = relayout(std::move(shards), variable.layout());
  TESSERA_RETURN_IF_ERROR(internal::facts_of(whole).error);
  value = std::move(whole);
  return absl::OkStatus();
}

// The numbers of step `count`, the first of which is 1.
using Numbers = absl::FunctionRef<kernels::StepNumbers<double>(double count)>;

Status apply_step(const Method& method, Numbers numbers, const Variable& variable,
                  const DTensor& gradient, internal::StateOfVariable& state,
                  CountTensors& count_tensors) {
  const DTensor moved = relayout(stop_gradient(gradient), state.layout);
  TESSERA_RETURN_IF_ERROR(internal::facts_of(moved).error);
  int64_t count = 1;
  const DTensor* counted = nullptr;  // without a count of steps
  if (state.steps.has_value()) {
    count = state.steps->count + 1;
    counted = &count_tensors.tensor(count, state.steps->counted);
    TESSERA_RETURN_IF_ERROR(internal::facts_of(*counted).error);
  }
  const kernels::OptimizerStep step = {method.rule, numbers(static_cast<double>(count))};
  // An Sgd whose momentum was set to 0 keeps a tensor that it does not use.
  absl::InlinedVector<const Variable*, 1 + kernels::kMaxStepSlots> changed = {&variable};
  for (int k = 0; k < kernels::num_step_slots(method.rule); ++k) {
    changed.push_back(&state.tensors[k]);
  }
  Values values;
  TESSERA_RETURN_IF_ERROR(update_values(changed, values, [&] {
    return run_step_on_shards(method.name, step, variable, values, moved);
  }));
  if (counted == nullptr) return absl::OkStatus();
  state.steps->count = count;
  state.steps->counted = *counted;
  return internal::update_value(state.steps->variable, [&](DTensor& value) {
    value = *counted;
    return absl::OkStatus();
  });
}

Status apply_steps(const Method& method, Numbers numbers,
                   absl::Span<internal::StateOfVariable* const> states,
                   absl::Span<const Variable> variables, absl::Span<const DTensor> gradients) {
  for (internal::StateOfVariable* const state : states) {
    if (state->steps.has_value()) TESSERA_RETURN_IF_ERROR(read_count(method.name, *state->steps));
  }
  CountTensors count_tensors;
  for (size_t i = 0; i < variables.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(
        apply_step(method, numbers, variables[i], gradients[i], *states[i], count_tensors));
  }
  return absl::OkStatus();
}

Method method_of(const Sgd& sgd) {
  const kernels::StepRule rule = sgd.momentum == 0 ? kernels::StepRule::kSgd
                                 : sgd.nesterov    ? kernels::StepRule::kNesterov
                                                   : kernels::StepRule::kMomentum;
  return {"Sgd",
          {{"learning_rate", sgd.learning_rate, 0, kUnbounded},
           {"momentum", sgd.momentum, 0, kUnbounded},
           {"weight_decay", sgd.weight_decay, 0, kUnbounded}},
          rule};
}

kernels::StepNumbers<double> numbers_of(const Sgd& sgd, double) {
  return {.rate = sgd.learning_rate, .gradient_decay = sgd.weight_decay, .momentum = sgd.momentum};
}

// The method of Adam and of AdamW.
template <class Options>
Method adam_method(const char* name, const Options& options) {
  return {name,
          {{"learning_rate", options.learning_rate, 0, kUnbounded},
           {"beta1", options.beta1, 0, 1},
           {"beta2", options.beta2, 0, 1},
           {"epsilon", options.epsilon, 0, kUnbounded},
           {"weight_decay", options.weight_decay, 0, kUnbounded}},
          kernels::StepRule::kAdam};
}

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

Method method_of(const Adam& adam) { return adam_method("Adam", adam); }

kernels::StepNumbers<double> numbers_of(const Adam& adam, double count) {
  kernels::StepNumbers<double> numbers = adam_numbers(adam, count);
  numbers.gradient_decay = adam.weight_decay;
  return numbers;
}

Method method_of(const AdamW& adamw) { return adam_method("AdamW", adamw); }

kernels::StepNumbers<double> numbers_of(const AdamW& adamw, double count) {
  kernels::StepNumbers<double> numbers = adam_numbers(adamw, count);
  numbers.kept = 1 - adamw.learning_rate * adamw.weight_decay;
  return numbers;
}

Method method_of(const Adagrad& adagrad) {
  return {"Adagrad",
          {{"learning_rate", adagrad.learning_rate, 0, kUnbounded},
           {"epsilon", adagrad.epsilon, 0, kUnbounded},
           {"weight_decay", adagrad.weight_decay, 0, kUnbounded},
           {"initial_accumulator", adagrad.initial_accumulator, 0, kUnbounded}},
          kernels::StepRule::kAdagrad,
          adagrad.initial_accumulator};
}

kernels::StepNumbers<double> numbers_of(const Adagrad& adagrad, double) {
  return {.rate = adagrad.learning_rate,
          .gradient_decay = adagrad.weight_decay,
          .epsilon = adagrad.epsilon};
}

template <class Optimizer>
Status prepare_with(Optimizer& optimizer, absl::Span<const Variable> variables) {
  const Method method = method_of(optimizer);
  TESSERA_RETURN_IF_ERROR(check_options(method));
  TESSERA_RETURN_IF_ERROR(check_variables(method.name, variables));
  return prepare_states(optimizer.kept, method, optimizer.shard_state, variables).status();
}

template <class Optimizer>
Status apply_with(Optimizer& optimizer, absl::Span<const Variable> variables,
                  absl::Span<const DTensor> gradients) {
  const Method method = method_of(optimizer);
  TESSERA_RETURN_IF_ERROR(check_options(method));
  TESSERA_RETURN_IF_ERROR(check_gradients(method.name, variables, gradients));
  TESSERA_ASSIGN_OR_RETURN(const States states, prepare_states(optimizer.kept, method,
                                                               optimizer.shard_state, variables));
  return apply_steps(
      method, [&](double count) { return numbers_of(optimizer, count); }, states, variables,
      gradients);
}

}  // namespace

Status Sgd::prepare(absl::Span<const Variable> variables) { return prepare_with(*this, variables); }
Status Adam::prepare(absl::Span<const Variable> variables) {
  return prepare_with(*this, variables);
}
Status AdamW::prepare(absl::Span<const Variable> variables) {
  return prepare_with(*this, variables);
}
Status Adagrad::prepare(absl::Span<const Variable> variables) {
  return prepare_with(*this, variables);
}

Status Sgd::apply(absl::Span<const Variable> variables, absl::Span<const DTensor> gradients) {
  return apply_with(*this, variables, gradients);
}
Status Adam::apply(absl::Span<const Variable> variables, absl::Span<const DTensor> gradients) {
  return apply_with(*this, variables, gradients);
}
Status AdamW::apply(absl::Span<const Variable> variables, absl::Span<const DTensor> gradients) {
  return apply_with(*this, variables, gradients);
}
Status Adagrad::apply(absl::Span<const Variable> variables, absl::Span<const DTensor> gradients) {
  return apply_with(*this, variables, gradients);
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
