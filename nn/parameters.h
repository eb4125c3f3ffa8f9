// SPDX-License-Identifier: Apache-2.0
//
// Parameters: the variables of a model, in order and by name.
//
//   nn::Parameters model;
//   model.add("w1", random::normal<float>(key, {784, 96}, "[-, model]" on the mesh));
//   model.add("b1", zeros<float>({96}, ...));
//   const std::vector<DTensor> w = model.watch(tape);              in the order of add()
//   optimizer.apply(model.variables(), tape.gradient(loss, w));
//
// A "/" in a name separates a group from its members: "block0/attend/q". The order is that of
// add(); it should be the same on every client, as for all operations.
//
// A handle: copies mean the same parameters, as copies of a Variable mean the same variable. So a
// function or a lambda may hold a copy and see what is added later.
//
// Errors are in the variables, as those of operations are in the tensors. A refused add() returns a
// variable whose value() is the error, which reaches the loss and the optimizer that use it. The
// refused variable keeps its place in the order, so that the indices of the others are what the
// program expects. status() has the first error.
//
// Thread-safe, except that no other call may run during add(). PyTorch:
// torch.nn.Module.named_parameters(). TF: tf.Module.trainable_variables. JAX: a dict of arrays.
#ifndef TESSERA_NN_PARAMETERS_H_
#define TESSERA_NN_PARAMETERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "ops/tape.h"
#include "ops/variable.h"

namespace TESSERA_PUBLIC tessera {
namespace nn {

class Parameters {
 public:
  Parameters();
  // A move copies: the moved-from handle stays valid.
  Parameters(const Parameters&) = default;
  Parameters& operator=(const Parameters&) = default;

  // Appends a variable of this name. The reference is valid as long as the parameters exist. The
  // value is the error where `initial` carries one or is partial, and InvalidArgument where a
  // parameter of this name exists.
  Variable& add(absl::string_view name, DTensor initial);

  // The parameter of this name. If there is none, a variable whose value is NotFound.
  const Variable& operator[](absl::string_view name) const;
  const Variable& operator[](std::nullptr_t) const = delete;  // parameters[0]: see variables()
  // Its place in the order. Nothing if there is none.
  std::optional<size_t> find(absl::string_view name) const;

  // All parameters, and their names, in order. Valid until the next add().
  absl::Span<Variable> variables() const;
  absl::Span<const std::string> names() const;

  // The values, in order, watched by the tape.
  std::vector<DTensor> watch(Tape& tape) const;

  // The elements of all parameters, each once, however they are replicated. Variables that carry an
  // error have none.
  int64_t num_elements() const;
  // The first error of add(). OK if there was none.
  Status status() const;
  // A table: name, shape, dtype, layout, and the bytes on the device that holds the most. Members
  // of a group are below its name, indented. The first error, if there is one, is the last line.
  //
  //   name       shape    dtype  layout      bytes per device
  //   embedding  [64, 8]  f32    [model, -]              1024
  //   block0/
  //     attend/
  //       q      [8, 8]   f32    [-, model]               128
  //   2 in all: 576 elements, 1152 bytes per device
  std::string to_string() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace nn
}  // namespace tessera

#endif  // TESSERA_NN_PARAMETERS_H_
