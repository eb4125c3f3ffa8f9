// SPDX-License-Identifier: Apache-2.0
//
// How operations tell tapes of their gradients. Internal to ops/.
#ifndef TESSERA_OPS_GRADIENT_H_
#define TESSERA_OPS_GRADIENT_H_

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/shape.h"
#include "dtensor/device_op.h"
#include "dtensor/dtensor.h"

namespace tessera::ops {

// One gradient for each operand; nothing where it is zero.
using Gradients = std::vector<std::optional<DTensor>>;

struct GradientCall {
  absl::Span<const DTensor> operands;
  const DTensor& result;
  const DTensor& cotangent;         // of the result
  const std::vector<bool>& needed;  // by operand: gradients not needed may be left out
};
// Computes gradients by operations.
using GradientFn = std::function<Gradients(const GradientCall& call)>;

DTensor record(DTensor result, absl::Span<const DTensor> operands, GradientFn gradient);

// The result of an operation, recorded by the tapes that know an operand. Costs a look at each
// operand where there is none.
template <class Fn>
DTensor differentiable(DTensor result, absl::Span<const DTensor> operands, Fn gradient) {
  for (const DTensor& operand : operands) {
    if (internal::trace_of(operand) != nullptr) {
      return record(std::move(result), operands, std::move(gradient));
    }
  }
  return result;
}

// Sums a gradient back to this shape, from which an operand was broadcast.
DTensor sum_to(const DTensor& cotangent, const Shape& shape);

}  // namespace tessera::ops

#endif  // TESSERA_OPS_GRADIENT_H_
