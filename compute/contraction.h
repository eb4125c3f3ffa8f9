// SPDX-License-Identifier: Apache-2.0
//
// The labels of a product of two arrays, by what they are in a product of matrices.
//
//   a [b, i, k]  b [k, b, j]  ->  [b, i, j]      batch b, rows i, columns j, summed k
#ifndef TESSERA_COMPUTE_CONTRACTION_H_
#define TESSERA_COMPUTE_CONTRACTION_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

namespace tessera::kernels {

// Labels of dims, in their order. A small product takes less time than allocating them would.
using Labels = absl::InlinedVector<int, 8>;

// A dense array whose dims have labels, -1 for a dim of size 1 that has none. No label is twice in
// an array.
struct Labelled {
  const std::byte* data;
  absl::Span<const int64_t> sizes;
  const Labels& labels;
};

// Each list is in the order of the result, the last one in that of `a`.
struct ContractionLabels {
  Labels batch;    // of both operands and the result
  Labels rows;     // of a and the result
  Labels columns;  // of b and the result
  Labels summed;   // of both operands alone

  // Requires that each label of an operand is in the other one, in the result, or in both.
  static ContractionLabels create(const Labelled& a, const Labelled& b, const Labels& result);
};

// The lists, one after the other.
Labels joined(const Labels& first, const Labels& second, const Labels& third);

// The values of an array's dims, which have these labels, by a list of labels that it has.
absl::InlinedVector<int64_t, 8> by_label(const Labels& labels, absl::Span<const int64_t> values,
                                         const Labels& order);

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_CONTRACTION_H_
