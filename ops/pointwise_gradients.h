// SPDX-License-Identifier: Apache-2.0
//
// The gradients of elementwise operations. Internal to ops/.
#ifndef TESSERA_OPS_POINTWISE_GRADIENTS_H_
#define TESSERA_OPS_POINTWISE_GRADIENTS_H_

#include <cstddef>

#include "compute/cpu/pointwise.h"
#include "ops/operation.h"
#include "ops/scalar.h"

namespace tessera::ops {

// Whether the derivative is zero wherever there is one.
constexpr bool is_flat(kernels::PointwiseOp op) {
  using kernels::PointwiseOp;
  return kernels::gives_bool(op) || op == PointwiseOp::sign || op == PointwiseOp::floor ||
         op == PointwiseOp::ceil || op == PointwiseOp::round || op == PointwiseOp::floor_div;
}
// Whether each gradient is computed by one operation that rounds.
bool rounds_once(kernels::PointwiseOp op, const GradientCall& call);
// The gradients for operands that are all tensors; and for a tensor beside a scalar, which is
// operand number `place`.
Gradients pointwise_gradient(kernels::PointwiseOp op, const GradientCall& call);
Gradients scalar_gradient(kernels::PointwiseOp op, const Scalar& scalar, size_t place,
                          const GradientCall& call);

}  // namespace tessera::ops

#endif  // TESSERA_OPS_POINTWISE_GRADIENTS_H_
