// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the host backend: reductions in fixed order, and copies of boxes between row-major
// buffers. Pure functions of memory; they neither wait nor allocate.
#ifndef TESSERA_COLLECTIVES_HOST_KERNELS_H_
#define TESSERA_COLLECTIVES_HOST_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"

namespace tessera::host {

// outs[j][i] = terms[0][i] op terms[1][i] op ..., in this order, for i in [0, num_elements) and
// every j. An out may be exactly one of the terms; outs must not overlap otherwise. One term is
// copied bit for bit. f16 and bf16 accumulate in f32 and round once; integers wrap; min and max
// ignore NaN; avg is the sum divided once. Requires validate_reduction(op, dtype).
void reduce(DType dtype, ReduceOp op, absl::Span<const std::byte* const> terms,
            absl::Span<std::byte* const> outs, int64_t num_elements);

// A dense row-major buffer that holds `box`.
struct BoxView {
  std::byte* data;
  const Box& box;
};
struct ConstBoxView {
  const std::byte* data;
  const Box& box;
};

// Copies the elements of `box` from `from` to `to`. Requires box inside both; buffers that do not
// overlap.
void copy_box(const Box& box, ConstBoxView from, BoxView to, int64_t element_bytes);

// to[box] = reduction of terms[k][box], as reduce(). Requires box inside all of them.
void reduce_box(DType dtype, ReduceOp op, const Box& box, absl::Span<const ConstBoxView> terms,
                BoxView to);

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_KERNELS_H_
