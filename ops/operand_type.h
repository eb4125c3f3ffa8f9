// SPDX-License-Identifier: Apache-2.0
//
// OperandType: the dtype and the shape of an operand, which are all that a rule depends on beside
// attributes. No tensor is needed: tools/plan plans for machines that do not exist.
//
//   plan_matmul(a, b)                                    of two DTensors
//   plan_matmul({DType::kFloat32, m_k}, {DType::kFloat32, k_n})  of two shapes
//
// A view: the tensor, or the shape, must outlive it. JAX: ShapeDtypeStruct.
#ifndef TESSERA_OPS_OPERAND_TYPE_H_
#define TESSERA_OPS_OPERAND_TYPE_H_

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "dtensor/dtensor.h"

namespace tessera::ops {

class OperandType {
 public:
  OperandType(const DTensor& tensor)  // NOLINT: operations pass their operands
      : dtype_(tensor.dtype()), shape_(&tensor.shape()) {}
  OperandType(DType dtype, const Shape& shape) : dtype_(dtype), shape_(&shape) {}

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return *shape_; }

 private:
  DType dtype_;
  const Shape* shape_;
};

using OperandTypes = absl::InlinedVector<OperandType, 3>;
inline OperandTypes types_of(absl::Span<const DTensor> tensors) {
  return OperandTypes(tensors.begin(), tensors.end());
}

}  // namespace tessera::ops

#endif  // TESSERA_OPS_OPERAND_TYPE_H_
