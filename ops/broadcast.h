// SPDX-License-Identifier: Apache-2.0
//
// NumPy's broadcasting, as rules and as strides. Internal to ops/.
#ifndef TESSERA_OPS_BROADCAST_H_
#define TESSERA_OPS_BROADCAST_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "ops/operand_type.h"
#include "ops/rule.h"

namespace tessera::ops {

// The common shape; InvalidArgument "add: shapes [7, 5] and [9, 5] do not broadcast".
StatusOr<Shape> broadcast_shapes(const char* name, absl::Span<const OperandType> operands);

// Each dim of the result is a factor, which operands have in their dim of that size. A dim of size
// 1 that is broadcast has none.
Rule broadcast_rule(absl::Span<const OperandType> operands, const Shape& shape);

// The strides of a dense array of these sizes in a result of `rank` dims: 0 along dims that it is
// broadcast along.
absl::InlinedVector<int64_t, 8> broadcast_strides(absl::Span<const int64_t> sizes,
                                                  absl::Span<const int64_t> result_sizes);

// InvalidArgument "add: operands are f32 and i32; cast() one of them" where dtypes differ.
Status check_same_dtype(const char* name, absl::Span<const OperandType> operands);

}  // namespace tessera::ops

#endif  // TESSERA_OPS_BROADCAST_H_
