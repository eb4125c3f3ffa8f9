// SPDX-License-Identifier: Apache-2.0
//
// Shape and Box: index spaces and their parts.
//
//   Shape {8, 6}                                the index space [0, 8) x [0, 6)
//   Box   {.offsets = {2, 0}, .sizes = {3, 6}}  rows 2, 3 and 4 of it, whole rows
//
// A Box of rank 0 holds one element; a Box with a size of 0 holds none. Storage is row-major and
// dense: a buffer that holds a box holds its elements in the order of their indices, nothing else.
//
// validate_shape(shape, dtype) checks sizes that are multiplied once, where a tensor, a plan or a
// call is made. After it no product of sizes and bytes of the shape, or of a box in it, exceeds
// 2^63 - 1. All other functions here accept shapes and boxes that were not checked: counts stop at
// 2^63 - 1 instead of wrapping.
#ifndef TESSERA_BASE_SHAPE_H_
#define TESSERA_BASE_SHAPE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/public.h"
#include "base/status.h"

namespace TESSERA_PUBLIC tessera {

using Shape = std::vector<int64_t>;

// A part of an index space: half-open intervals [offsets[i], offsets[i] + sizes[i]).
struct Box {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;

  // The num_elements() of its sizes, see below.
  int64_t num_elements() const;
  bool is_empty() const { return num_elements() == 0; }
  // "[2:5, 0:6]"; "[]" for rank 0. An empty interval prints as its offsets, "[3:3]".
  std::string to_string() const;

  friend bool operator==(const Box& a, const Box& b) {
    return a.offsets == b.offsets && a.sizes == b.sizes;
  }
  template <typename H>
  friend H AbslHashValue(H h, const Box& box) {
    return H::combine(std::move(h), box.offsets, box.sizes);
  }
};

// The box of all of `shape`.
Box whole_box(absl::Span<const int64_t> shape);

// The common part of two boxes. Where they are disjoint the result is empty. Boxes of different
// ranks have no common part: the result is an empty box of the larger rank.
Box intersect(const Box& a, const Box& b);

// Whether every element of `inner` is in `outer`; an empty box is in every box.
bool contains(const Box& outer, const Box& inner);

// The number of elements of `outer` before the first element of `inner`, if the elements of `inner`
// are consecutive in a buffer that holds `outer`. Nothing if they are not, if `inner` is empty, or
// if it is not in `outer`.
//
//   outer [0:4, 0:6]    inner [2:4, 0:6]: 12    inner [1:2, 2:5]: 8    inner [0:4, 2:5]: nothing
std::optional<int64_t> contiguous_offset(const Box& outer, const Box& inner);

// The elements of `a` that are not in `b`, as disjoint boxes (at most 2 * rank of them).
std::vector<Box> subtract(const Box& a, const Box& b);

// Number of elements (1 for rank 0). 0 where a size is not positive, 2^63 - 1 where there are more.
int64_t num_elements(absl::Span<const int64_t> shape);

// Bytes of those elements, under the same rule.
int64_t num_bytes(absl::Span<const int64_t> shape, DType dtype);

// InvalidArgument for a negative size or a number of elements beyond int64.
Status validate_shape(absl::Span<const int64_t> shape);
// As above, also InvalidArgument for a dtype out of range or elements of more than 2^63 - 1 bytes.
Status validate_shape(absl::Span<const int64_t> shape, DType dtype);

// "[8, 6]"; "[]" for rank 0.
std::string shape_to_string(absl::Span<const int64_t> shape);

}  // namespace tessera

#endif  // TESSERA_BASE_SHAPE_H_
