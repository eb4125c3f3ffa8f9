// SPDX-License-Identifier: Apache-2.0
#include "nn/optimizer_state.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/device_op.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "nn/kept_states.h"
#include "nn/parameters.h"
#include "ops/composite.h"
#include "ops/scalar.h"
#include "ops/variable.h"

namespace tessera {
namespace internal {
namespace {

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
DTensor filled_state(double value, const Variable& like, const Layout& layout) {
  const DType dtype = ops::is_half(like.dtype()) ? DType::kFloat32 : like.dtype();
  const ops::ElementBytes element = ops::rounded_element(value, dtype);
  return full_raw(dtype, like.shape(), layout, element.data());
}

// A new variable with the name and the value of this one.
Variable& add_copy(nn::Parameters& parameters, const Variable& variable) {
  return parameters.add(variable.name(), variable.value());
}

}  // namespace

KeptStates::KeptStates(const KeptStates& other) : variables(other.variables), names(other.names) {
  absl::flat_hash_map<Variable, Variable> copies;
  for (const Variable& part : other.parameters.variables()) {
    copies.emplace(part, add_copy(parameters, part));
  }
  for (auto& [variable, state] : variables) {
    for (Variable& tensor : state.tensors) tensor = copies.at(tensor);
    if (!state.steps.has_value()) continue;
    StepCount& steps = *state.steps;
    const bool is_counted = is_same_tensor(steps.variable.value(), steps.counted);
    steps.variable = copies.at(steps.variable);
    if (is_counted) steps.counted = steps.variable.value();
  }
}

KeptStates& KeptStates::of(OptimizerState& state) {
  if (state.states_ == nullptr) state.states_ = std::make_unique<KeptStates>();
  return *state.states_;
}

StatusOr<StateOfVariable*> KeptStates::prepare(const Variable& variable, const KeptState& kept) {
  auto place = variables.find(variable);
  if (place == variables.end()) {
    std::string name = variable.name();
    for (int number = 2; !names.insert(name).second; ++number) {
      name = absl::StrCat(variable.name(), "#", number);
    }
    const Layout layout =
        kept.is_sharded ? sharded(variable.layout(), variable.shape()) : variable.layout();
    place = variables.emplace(variable, StateOfVariable{std::move(name), layout, {}, std::nullopt})
                .first;
  }
  StateOfVariable& state = place->second;
  for (size_t k = state.tensors.size(); k < kept.tensors.size(); ++k) {
    const DTensor initial = filled_state(kept.initial, variable, state.layout);
    TESSERA_RETURN_IF_ERROR(facts_of(initial).error);
    state.tensors.push_back(
        parameters.add(absl::StrCat(state.name, "/", kept.tensors[k]), initial));
  }
  if (!kept.counts_steps || state.steps.has_value()) return &state;
  const DTensor zero = zeros<int64_t>({}, Layout::replicated(variable.layout().mesh(), 0));
  TESSERA_RETURN_IF_ERROR(facts_of(zero).error);
  const Variable& steps = parameters.add(absl::StrCat(state.name, "/step"), zero);
  state.steps = StepCount{steps, 0, steps.value()};
  return &state;
}

}  // namespace internal

OptimizerState::OptimizerState() = default;
OptimizerState::OptimizerState(const OptimizerState& other)
    : states_(other.states_ == nullptr ? nullptr
                                       : std::make_unique<internal::KeptStates>(*other.states_)) {}
OptimizerState::OptimizerState(OptimizerState&& other) noexcept = default;
OptimizerState& OptimizerState::operator=(OptimizerState other) noexcept {
  states_.swap(other.states_);
  return *this;
}
OptimizerState::~OptimizerState() = default;

nn::Parameters& OptimizerState::parameters() { return internal::KeptStates::of(*this).parameters; }

}  // namespace tessera
