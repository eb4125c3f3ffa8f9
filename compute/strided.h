// SPDX-License-Identifier: Apache-2.0
//
// Arrays by strides, as kernels walk through them. Strides and offsets are in elements.
//
//   sizes {4, 3, 8}, dense strides {24, 8, 1}            MergedSpace: sizes {96}, stride 1
//   beside it a row that is broadcast, {0, 0, 1}         sizes {12, 8}, strides {8, 1} and {0, 1}
#ifndef TESSERA_COMPUTE_STRIDED_H_
#define TESSERA_COMPUTE_STRIDED_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/public.h"

namespace TESSERA_PUBLIC tessera {
namespace kernels {

// An operand of elementwise functions: an array and its strides along the dims of the result; the
// stride is 0 where it is broadcast.
struct Strided {
  const std::byte* data;
  absl::Span<const int64_t> strides;
  // One element, in memory of the host; all strides are 0.
  bool is_element = false;
};

// The strides of a dense, row-major array of these sizes.
absl::InlinedVector<int64_t, 8> dense_strides(absl::Span<const int64_t> sizes);

// One index space and the strides of several arrays in it, without dims of size 1, and with
// neighbouring dims merged where all arrays allow it. Elements keep their order.
class MergedSpace {
 public:
  // `strides[k]`, of array k, has one entry for each dim of `sizes`.
  MergedSpace(absl::Span<const int64_t> sizes, absl::Span<const absl::Span<const int64_t>> strides);

  // No dims: one element.
  absl::Span<const int64_t> sizes() const { return sizes_; }
  size_t num_arrays() const { return strides_.size(); }
  absl::Span<const int64_t> strides(size_t array) const { return strides_[array]; }

 private:
  using List = absl::InlinedVector<int64_t, 8>;

  // Whether in each array a step of the last dim so far is `size` steps of dim `dim`.
  bool merges(int64_t size, absl::Span<const absl::Span<const int64_t>> strides, size_t dim) const;

  List sizes_;
  absl::InlinedVector<List, 3> strides_;  // by array
};

}  // namespace kernels
}  // namespace tessera

#endif  // TESSERA_COMPUTE_STRIDED_H_
