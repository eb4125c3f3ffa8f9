// SPDX-License-Identifier: Apache-2.0
//
// add_nested: a reduction in the order ReductionOrder::kByHost.
#ifndef TESSERA_COLLECTIVES_SPAN_NESTED_SUMS_H_
#define TESSERA_COLLECTIVES_SPAN_NESTED_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "device/cpu/kernels_simd.h"

namespace tessera::span {

// By host in order: the host's terms ascending, or only their sum. No list is empty.
using TermsByHost = std::vector<std::vector<const std::byte*>>;

// outs[j][i] = (terms of the first host) op (terms of the second) op ..., for num_elements
// elements: the terms of a host are reduced first, each sum as cpu::reduce() computes it. Passes
// over the memory once, in blocks that fit into the cache. Requires may_add_by_host(op, dtype). An
// out may be equal to a term.
void add_nested(DType dtype, ReduceOp op, const TermsByHost& terms,
                absl::Span<std::byte* const> outs, int64_t num_elements, cpu::Stores stores);

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_NESTED_SUMS_H_
