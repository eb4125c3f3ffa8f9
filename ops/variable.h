// SPDX-License-Identifier: Apache-2.0
//
// Variable: a place for values of one shape, dtype and layout.
//
//   Variable weights("weights", random_values);
//   weights.assign_sub(gradient * 0.1);
//
// A handle: copies mean the same variable. assign() replaces the value; tensors that value()
// returned before keep theirs. The memory of a value goes back to its pool as soon as nothing holds
// it.
//
// Thread-safe: each call that changes the value does so as a whole, so that no update is lost.
// Calls that change it come in the same order on every client. TF: tf.Variable. PyTorch:
// torch.nn.Parameter.
#ifndef TESSERA_OPS_VARIABLE_H_
#define TESSERA_OPS_VARIABLE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "base/dtype.h"
#include "base/public.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"

namespace TESSERA_PUBLIC tessera {

class Variable;

namespace internal {
// For optimizers: `update` replaces the value by another of its dtype, shape and layout. No other
// thread reads or changes the value meanwhile.
Status update_value(const Variable& variable, absl::FunctionRef<Status(DTensor& value)> update);
// `guard`, given the call, is asked before every assignment; its error becomes the assignment's.
// Set before the variable is shared.
void guard_assignments(const Variable& variable, std::function<Status(const char* call)> guard);
}  // namespace internal

class Variable {
 public:
  // An empty handle: value() and every assignment are FailedPrecondition, naming the call.
  Variable() = default;
  // The initial value gives shape, dtype and layout, which must not be partial: value() and every
  // assignment return its error, or InvalidArgument for a partial one.
  Variable(std::string name, const DTensor& initial);

  // False for Variable(), and for a variable that was moved from.
  bool valid() const { return state_ != nullptr; }
  const std::string& name() const;
  DType dtype() const;
  const Shape& shape() const;
  const Layout& layout() const;
  DTensor value() const;

  // Sets the value, or adds to it. The operand has any layout and is moved to the variable's.
  // InvalidArgument for another shape or dtype, naming both; the error of a value that failed on
  // all clients.
  Status assign(const DTensor& value);
  Status assign_add(const DTensor& delta);
  Status assign_sub(const DTensor& delta);

  // Whether both are one variable.
  friend bool operator==(const Variable& a, const Variable& b) { return a.state_ == b.state_; }
  template <typename H>
  friend H AbslHashValue(H h, const Variable& variable) {
    return H::combine(std::move(h), variable.state_);
  }

 private:
  struct State;
  static State& empty();
  State& state() const { return state_ != nullptr ? *state_ : empty(); }
  friend Status internal::update_value(const Variable& variable,
                                       absl::FunctionRef<Status(DTensor& value)> update);
  friend void internal::guard_assignments(const Variable& variable,
                                          std::function<Status(const char* call)> guard);
  // The one way to change the value: to change(value), which is moved to the layout.
  Status change(const char* function, const DTensor& operand,
                absl::FunctionRef<DTensor(const DTensor& value)> change);
  Status check(const char* function, const DTensor& value) const;

  std::shared_ptr<State> state_;  // null: empty
};

}  // namespace tessera

#endif  // TESSERA_OPS_VARIABLE_H_
