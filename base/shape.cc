// SPDX-License-Identifier: Apache-2.0
#include "base/shape.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/math.h"

namespace tessera {
namespace {

// The end of interval `i` of a box.
int64_t end_of(const Box& box, size_t i) { return saturating_add(box.offsets[i], box.sizes[i]); }

// Whether a box has an offset for every size. Its fields are public, so it may not.
bool is_complete(const Box& box) { return box.offsets.size() == box.sizes.size(); }

}  // namespace

int64_t Box::num_elements() const { return tessera::num_elements(sizes); }

std::string Box::to_string() const {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ");
    if (i < offsets.size()) {
      absl::StrAppend(&text, offsets[i], ":", end_of(*this, i));
    } else {
      absl::StrAppend(&text, "?:?");
    }
  }
  return text + "]";
}

Box whole_box(absl::Span<const int64_t> shape) {
  return {std::vector<int64_t>(shape.size(), 0), {shape.begin(), shape.end()}};
}

Box intersect(const Box& a, const Box& b) {
  if (!is_complete(a) || !is_complete(b) || a.sizes.size() != b.sizes.size()) {
    const std::vector<int64_t> zeros(std::max({a.sizes.size(), b.sizes.size(), size_t{1}}), 0);
    return {zeros, zeros};
  }
  Box result = a;
  for (size_t i = 0; i < a.sizes.size(); ++i) {
    const int64_t first = std::max(a.offsets[i], b.offsets[i]);
    const int64_t end = std::min(end_of(a, i), end_of(b, i));
    result.offsets[i] = first;
    result.sizes[i] = end > first ? end - first : 0;
  }
  return result;
}

bool contains(const Box& outer, const Box& inner) {
  return inner.is_empty() || intersect(outer, inner) == inner;
}

std::optional<int64_t> contiguous_offset(const Box& outer, const Box& inner) {
  if (inner.is_empty() || inner.sizes.size() != outer.sizes.size() || !contains(outer, inner)) {
    return std::nullopt;
  }
  int64_t offset = 0;
  int64_t stride = 1;  // of `dim`, in elements of `outer`
  // Whether all dims after `dim` are whole; once one is not, those before it have to be of size 1.
  bool is_whole = true;
  for (size_t dim = outer.sizes.size(); dim-- > 0;) {
    if (!is_whole && inner.sizes[dim] != 1) return std::nullopt;
    is_whole &= inner.sizes[dim] == outer.sizes[dim];
    const int64_t distance = inner.offsets[dim] - outer.offsets[dim];
    offset = saturating_add(offset, saturating_mul(distance, stride));
    stride = saturating_mul(stride, outer.sizes[dim]);
  }
  return offset;
}

std::vector<Box> subtract(const Box& a, const Box& b) {
  const Box common = intersect(a, b);
  if (common.is_empty()) {
    if (a.is_empty()) return {};
    return {a};
  }
  // Invariant: `a` is the disjoint union of `rest` and the boxes in `result`; the dims of `rest`
  // before `i` are already cut down to the dims of `common`.
  std::vector<Box> result;
  Box rest = a;
  for (size_t i = 0; i < a.sizes.size(); ++i) {
    const int64_t rest_end = end_of(rest, i);
    const int64_t common_end = end_of(common, i);
    if (rest.offsets[i] < common.offsets[i]) {
      Box below = rest;
      below.sizes[i] = common.offsets[i] - rest.offsets[i];
      result.push_back(std::move(below));
    }
    if (common_end < rest_end) {
      Box above = rest;
      above.offsets[i] = common_end;
      above.sizes[i] = rest_end - common_end;
      result.push_back(std::move(above));
    }
    rest.offsets[i] = common.offsets[i];
    rest.sizes[i] = common.sizes[i];
  }
  return result;
}

int64_t num_elements(absl::Span<const int64_t> shape) {
  for (const int64_t size : shape) {
    if (size <= 0) return 0;
  }
  int64_t product = 1;
  for (const int64_t size : shape) product = saturating_mul(product, size);
  return product;
}

int64_t num_bytes(absl::Span<const int64_t> shape, DType dtype) {
  return saturating_mul(num_elements(shape), dtype_size(dtype));
}

Status validate_shape(absl::Span<const int64_t> shape) {
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] < 0) {
      return absl::InvalidArgumentError(absl::StrCat("shape ", shape_to_string(shape), " has size ",
                                                     shape[dim], " in dim ", dim,
                                                     "; a size is 0 or more"));
    }
  }
  if (!checked_product(shape).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape ", shape_to_string(shape),
                     " has more elements than a 64-bit integer counts; use smaller sizes"));
  }
  return absl::OkStatus();
}

Status validate_shape(absl::Span<const int64_t> shape, DType dtype) {
  TESSERA_RETURN_IF_ERROR(validate_dtype(dtype));
  TESSERA_RETURN_IF_ERROR(validate_shape(shape));
  if (checked_product({num_elements(shape), dtype_size(dtype)}).has_value()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("shape ", shape_to_string(shape), " of ",
                                                 dtype_name(dtype),
                                                 " has more than 2^63 - 1 bytes; give it fewer "
                                                 "elements"));
}

std::string shape_to_string(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace tessera
