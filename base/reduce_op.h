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
#include "base/public.h"
#include "base/status.h"

namespace TESSERA_PUBLIC tessera {

enum class ReduceOp : uint8_t { kSum, kProd, kMin, kMax, kAvg };
inline constexpr int kNumReduceOps = 5;

// The order in which the terms of a reduction are added, where devices of several hosts hold them.
enum class ReductionOrder : uint8_t {
  // Adds each host's terms in ascending order, and then the hosts' sums in the order of their first
  // terms, where may_add_by_host() permits it and a relayout is faster for it. The bits depend on
  // which devices share hosts, not on how devices are dealt to processes.
  kByHost,
  // Adds all terms in ascending order, in one step, at the price of more traffic between hosts.
  kFlat,
};

// "by_host", "flat".
absl::string_view reduction_order_name(ReductionOrder order);

// Whether each host's terms may be added first. False for averages, and for sums and products of
// f16 and bf16: these are divided, or rounded, once.
bool may_add_by_host(ReduceOp op, DType dtype);

// "sum", "prod", "min", "max", "avg"; "unknown" for a value outside the enumeration.
absl::string_view reduce_op_name(ReduceOp op);

// InvalidArgument for a value outside the enumeration, as a cast from another integer may
// give. Checked wherever a ReduceOp comes from a caller.
Status validate_reduce_op(ReduceOp op);

// As validate_reduce_op(); also InvalidArgument for avg of integers, and for all but min (and) and
// max (or) of bool.
Status validate_reduction(ReduceOp op, DType dtype);

// The element that changes no other element when both are reduced, in the first bytes: 0 for a sum
// and an average, 1 for a product, the largest value for min and the smallest for max. For floats
// min and max have NaN: they ignore it, and an infinity would replace the NaN of an element.
std::array<std::byte, 8> identity_element(ReduceOp op, DType dtype);

}  // namespace tessera

#endif  // TESSERA_BASE_REDUCE_OP_H_
