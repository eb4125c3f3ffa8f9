// SPDX-License-Identifier: Apache-2.0
#include "ops/operation.h"

#include <cstdint>

#include "dtensor/device_op.h"

namespace tessera::ops {

Gradients Gradient::operator()(const GradientCall& call) const {
  if (function_ != nullptr) return function_(call);
  const Status error = absl::InvalidArgumentError(why_);
  Gradients failed;
  for (const DTensor& operand : call.operands) {
    failed.emplace_back(
        internal::failed_tensor(operand.dtype(), operand.shape(), operand.layout(), error));
  }
  return failed;
}

StatusOr<int> checked_dim(const char* name, int64_t dim, int64_t rank) {
  if (dim >= -rank && dim < rank) return static_cast<int>(dim < 0 ? dim + rank : dim);
  return refusal(name, "dim ", dim, " is out of range for a tensor of rank ", rank);
}

}  // namespace tessera::ops
