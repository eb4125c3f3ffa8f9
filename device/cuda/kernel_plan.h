// SPDX-License-Identifier: Apache-2.0
//
// Makes the values of kernels.h from boxes and buffers, on the host.
//
//   box [2:5, 0:6] of a buffer of [0:8, 0:6]: one run of 18 elements    no loop
//   box [2:5, 1:3] of it:                     three runs of 2 elements  one loop
//
// Dims that are contiguous on both sides become one run or one loop. Work of more than 2^31 items,
// or of more loops than a kernel has, is cut into several values. Pure functions.
#ifndef TESSERA_DEVICE_CUDA_KERNEL_PLAN_H_
#define TESSERA_DEVICE_CUDA_KERNEL_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "device/cuda/kernels.h"

namespace tessera::cuda {

ElementType element_type(DType dtype);
Reduction reduction(ReduceOp op);
// Requires 1 <= divisor < 2^31.
Divisor make_divisor(uint32_t divisor);

// A copy that is one run on both sides: for Api::copy().
struct DenseCopy {
  const std::byte* from;
  std::byte* to;
  uint64_t num_bytes;
};

struct CopyPlan {
  std::vector<DenseCopy> dense;
  std::vector<CopyBatch> batches;
};

// Adds the copy of `box` from a dense row-major buffer that holds `from_box` to a buffer that holds
// `to_box`. Requires box inside both, and buffers that do not overlap.
void add_copy(const Box& box, const std::byte* from, const Box& from_box, std::byte* to,
              const Box& to_box, int64_t element_bytes, CopyPlan* plan);

// outs[j][i] = the reduction of terms[k][i], for num_elements of each. Requires 1 to kMaxTerms
// terms and outs; an out may be equal to a term.
std::vector<Reduce> plan_reduce(DType dtype, ReduceOp op, absl::Span<const std::byte* const> terms,
                                absl::Span<std::byte* const> outs, int64_t num_elements);
// As above, for `box`: out of buffers that all hold `from_box`, into a buffer that holds `to_box`.
std::vector<Reduce> plan_reduce_box(DType dtype, ReduceOp op, const Box& box,
                                    absl::Span<const std::byte* const> terms, const Box& from_box,
                                    std::byte* out, const Box& to_box);

// Sets every element of `out` to the element at `element`. Requires 1 or more elements.
Fill plan_fill(DType dtype, const void* element, std::byte* out, int64_t num_elements);

// The elements of `box` of a tensor of `shape`, each its flat row-major index.
std::vector<Iota> plan_iota(DType dtype, const Shape& shape, const Box& box, std::byte* out);

// to[i] = from[i]. Requires 1 or more elements, and memory that is aligned to them.
Cast plan_cast(DType from_dtype, DType to_dtype, const std::byte* from, std::byte* to,
               int64_t num_elements);

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_KERNEL_PLAN_H_
