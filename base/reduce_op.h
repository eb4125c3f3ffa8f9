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

// In which order the terms of a reduction are added, where devices of several hosts hold them.
enum class ReductionOrder : uint8_t {
  // Each host's terms ascending and then the hosts' sums, in the order of their first terms, where
  // may_add_by_host(); a relayout does so where that is faster. The same bits wherever the hosts of
  // the devices are the same, however these are dealt to processes.
  kByHost,
  // All terms ascending, in one step, at the price of more traffic between hosts.
  kFlat,
};

// "by_host", "flat".
absl::string_view reduction_order_name(ReductionOrder order);

// Whether sums of sums are what the reduction says. Not of averages, and of sums and products of
// f16 and bf16: these are divided, or rounded, once.
bool may_add_by_host(ReduceOp op, DType dtype);

// "sum", "prod", "min", "max", "avg"; "unknown" of a value that is none of the enumerators.
absl::string_view reduce_op_name(ReduceOp op);

// InvalidArgument for a value that is none of the enumerators, as a cast from another integer may
// give. Checked wherever a ReduceOp comes from a caller.
Status validate_reduce_op(ReduceOp op);

// The same, and for avg of integers, and for anything but min (and) and max (or) of bool.
Status validate_reduction(ReduceOp op, DType dtype);

// The element that changes no other element when both are reduced, in the first bytes: 0 of a sum
// and an average, 1 of a product, the largest value of min and the smallest of max. Of floats min
// and max have NaN: they ignore it, and an infinity would replace the NaN of an element.
std::array<std::byte, 8> identity_element(ReduceOp op, DType dtype);

}  // namespace tessera

#endif  // TESSERA_BASE_REDUCE_OP_H_
