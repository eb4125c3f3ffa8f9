// SPDX-License-Identifier: Apache-2.0
//
// ReduceOp: how the terms of a partial tensor, or the inputs of a reducing collective, become one.
#ifndef TESSERA_BASE_REDUCE_OP_H_
#define TESSERA_BASE_REDUCE_OP_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/status.h"

namespace tessera {

enum class ReduceOp : uint8_t { kSum, kProd, kMin, kMax, kAvg };
inline constexpr int kNumReduceOps = 5;

// "sum", "prod", "min", "max", "avg"; "unknown" of a value that is none of the enumerators.
absl::string_view reduce_op_name(ReduceOp op);

// InvalidArgument for a value that is none of the enumerators, as a cast from another integer may
// give. Checked wherever a ReduceOp comes from a caller.
Status validate_reduce_op(ReduceOp op);

// The same, and for avg of integers, and for anything but min (and) and max (or) of bool.
Status validate_reduction(ReduceOp op, DType dtype);

// The element that changes no other element when both are reduced, in the first bytes: 0 of a sum
// and an average, 1 of a product, the largest value of min and the smallest of max.
std::array<std::byte, 8> identity_element(ReduceOp op, DType dtype);

}  // namespace tessera

#endif  // TESSERA_BASE_REDUCE_OP_H_
