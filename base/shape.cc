// SPDX-License-Identifier: Apache-2.0
#include "base/shape.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/math.h"

namespace tessera {

int64_t Box::num_elements() const { return tessera::num_elements(sizes); }

std::string Box::to_string() const {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", offsets[i], ":", offsets[i] + sizes[i]);
  }
  return text + "]";
}

Box whole_box(absl::Span<const int64_t> shape) {
  return {std::vector<int64_t>(shape.size(), 0), {shape.begin(), shape.end()}};
}

Box intersect(const Box& a, const Box& b) {
  TESSERA_CHECK(a.sizes.size() == b.sizes.size(), "boxes of one rank");
  Box result = a;
  for (size_t i = 0; i < a.sizes.size(); ++i) {
    const int64_t first = std::max(a.offsets[i], b.offsets[i]);
    const int64_t end = std::min(a.offsets[i] + a.sizes[i], b.offsets[i] + b.sizes[i]);
    result.offsets[i] = first;
    result.sizes[i] = std::max<int64_t>(0, end - first);
  }
  return result;
}

bool contains(const Box& outer, const Box& inner) {
  return inner.is_empty() || intersect(outer, inner) == inner;
}

std::vector<Box> subtract(const Box& a, const Box& b) {
  const Box common = intersect(a, b);
  if (common.is_empty()) {
    if (a.is_empty()) return {};
    return {a};
  }
  // Invariant: what is left of `a` is `rest` plus the boxes in `result`; dims before `i` of `rest`
  // are already cut down to those of `common`.
  std::vector<Box> result;
  Box rest = a;
  for (size_t i = 0; i < a.sizes.size(); ++i) {
    const int64_t rest_end = rest.offsets[i] + rest.sizes[i];
    const int64_t common_end = common.offsets[i] + common.sizes[i];
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
  const std::optional<int64_t> product = checked_product(shape);
  TESSERA_CHECK(product.has_value(), "a shape that validate_shape passed");
  return *product;
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

std::string shape_to_string(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace tessera
