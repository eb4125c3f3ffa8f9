// SPDX-License-Identifier: Apache-2.0
//
// Kernels that reduce dims of one device's array, scan them, or look for elements in them. Pure
// functions of memory; several threads at once.
#ifndef TESSERA_COMPUTE_CPU_REDUCE_H_
#define TESSERA_COMPUTE_CPU_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "compute/engine.h"

namespace tessera::kernels {

// out = reduction of a dense array over the dims that are marked, in an order that depends on the
// sizes alone. kSum, kProd, kMin or kMax. f16 and bf16 accumulate in f32 and are rounded once;
// floats are added pairwise; integers wrap; min and max ignore NaN. Without elements a sum is 0, a
// product 1, a min or max the identity, which is NaN for floats. The sum is divided by `divisor`,
// which is 1 for integers.
void reduce_dims(ReduceOp op, DType dtype, const std::byte* in, absl::Span<const int64_t> sizes,
                 const std::vector<bool>& is_reduced, double divisor, std::byte* out);

Lines lines_along(absl::Span<const int64_t> sizes, int dim);

// Elements [first, first + count) of the inclusive sums along the lines. f32 accumulates in f64,
// f16 and bf16 in f32; integers wrap.
void cumsum(DType dtype, const std::byte* in, const Lines& lines, int64_t first, int64_t count,
            std::byte* out);

// The index in each line of its largest or smallest element, the lowest of equals; NaN is ignored,
// and a line of NaN gives the lowest index of all. Requires size > 0.
void arg_extreme(bool is_max, DType dtype, const std::byte* in, const Lines& lines,
                 const LineIndices& numbers, int64_t* out);

// The first `count` elements of each line in ascending order, or descending; equals stay in the
// order of the line; NaN comes last. Values, indices, or both where not null.
void sort_lines(bool is_descending, DType dtype, const std::byte* in, const Lines& lines,
                const LineIndices& numbers, int64_t count, std::byte* values, int64_t* indices);

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_CPU_REDUCE_H_
