// SPDX-License-Identifier: Apache-2.0
#include "ops/variable.h"

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "dtensor/device_op.h"
#include "dtensor/relayout.h"
#include "ops/pointwise.h"
#include "ops/tape.h"

namespace tessera {

struct Variable::State {
  State(std::string name, const DTensor& initial)
      : name(std::move(name)),
        dtype(initial.dtype()),
        shape(initial.shape()),
        layout(initial.layout()),
        value(initial) {}

  const std::string name;
  const DType dtype;
  const Shape shape;
  const Layout layout;
  std::function<Status(const char* call)> guard = {};
  // Held by a call that changes the value, from its read to its write. Acquired before `mutex`.
  std::mutex changing;
  std::mutex mutex;  // guards value
  DTensor value;
};

// The contents of an empty handle. Not changed.
Variable::State& Variable::empty() {
  static State* const kEmpty = new State(
      "", internal::failed_tensor(DType::kFloat32, {}, Layout(),
                                  internal::empty_handle("Variable::value()", "Variable")));
  return *kEmpty;
}

namespace {

DTensor checked_initial(const std::string& name, const DTensor& initial) {
  if (!internal::facts_of(initial).error.ok() || !initial.layout().is_partial()) {
    return stop_gradient(initial);
  }
  return internal::failed_tensor(
      initial.dtype(), initial.shape(), initial.layout(),
      absl::InvalidArgumentError(absl::StrCat(
          "variable ", in_quotes(name), ": the initial value is ", initial.layout().to_string(),
          "; relayout() it to a layout that is not partial")));
}

}  // namespace

Variable::Variable(std::string name, const DTensor& initial) {
  const DTensor value = checked_initial(name, initial);
  state_ = std::make_shared<State>(std::move(name), value);
}

const std::string& Variable::name() const { return state().name; }
DType Variable::dtype() const { return state().dtype; }
const Shape& Variable::shape() const { return state().shape; }
const Layout& Variable::layout() const { return state().layout; }

DTensor Variable::value() const {
  std::lock_guard<std::mutex> lock(state().mutex);
  return state().value;
}

Status Variable::check(const char* function, const DTensor& value) const {
  if (!valid()) {
    return internal::empty_handle(absl::StrCat("Variable::", function, "()"), "Variable");
  }
  if (state_->guard != nullptr) TESSERA_RETURN_IF_ERROR(state_->guard(function));
  TESSERA_RETURN_IF_ERROR(internal::facts_of(this->value()).error);
  TESSERA_RETURN_IF_ERROR(internal::facts_of(value).error);
  if (value.shape() == shape() && value.dtype() == dtype()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "variable ", in_quotes(name()), " is ", dtype_name(dtype()), " ", shape_to_string(shape()),
      ", ", function, " got ", dtype_name(value.dtype()), " ", shape_to_string(value.shape())));
}

Status Variable::change(const char* function, const DTensor& operand,
                        absl::FunctionRef<DTensor(const DTensor& value)> change) {
  TESSERA_RETURN_IF_ERROR(check(function, operand));
  std::lock_guard<std::mutex> changing(state_->changing);
  DTensor moved = relayout(change(value()), layout());
  TESSERA_RETURN_IF_ERROR(internal::facts_of(moved).error);
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->value = std::move(moved);
  return absl::OkStatus();
}

Status Variable::assign(const DTensor& value) {
  return change("assign", value, [&](const DTensor&) { return stop_gradient(value); });
}

Status Variable::assign_add(const DTensor& delta) {
  return change("assign_add", delta, [&](const DTensor& value) {
    return ops::add(value, stop_gradient(delta), layout());
  });
}

Status Variable::assign_sub(const DTensor& delta) {
  return change("assign_sub", delta, [&](const DTensor& value) {
    return ops::sub(value, stop_gradient(delta), layout());
  });
}

Status internal::update_value(const Variable& variable,
                              absl::FunctionRef<Status(DTensor& value)> update) {
  if (!variable.valid()) return empty_handle("apply()", "Variable");
  const auto& guard = variable.state_->guard;
  if (guard != nullptr) TESSERA_RETURN_IF_ERROR(guard("the optimizer's update"));
  std::lock_guard<std::mutex> changing(variable.state_->changing);
  std::lock_guard<std::mutex> lock(variable.state_->mutex);
  return update(variable.state_->value);
}

void internal::guard_assignments(const Variable& variable,
                                 std::function<Status(const char* call)> guard) {
  variable.state_->guard = std::move(guard);
}

}  // namespace tessera
