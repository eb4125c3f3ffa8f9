// SPDX-License-Identifier: Apache-2.0
//
// DTensor::operator[]: slices, turned dims and dropped dims, by the operations that do each.
#include "dtensor/index.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/device_op.h"
#include "dtensor/dtensor.h"
#include "ops/refusal.h"
#include "ops/shapes.h"

namespace tessera {
namespace {

// An index of one dim, as slice() and flip() take it.
struct Part {
  int64_t start;
  int64_t limit;
  int64_t stride = 1;
  bool is_turned = false;   // the elements in reverse order
  bool is_dropped = false;  // one element, without the dim
};

// A limit counted from the end where it is negative, from `least` to `most`.
int64_t clamped(int64_t limit, int64_t size, int64_t least, int64_t most) {
  return std::clamp(limit < 0 ? limit + size : limit, least, most);
}

StatusOr<Part> part_of(const Range& range, int dim, int64_t size) {
  const int64_t step = range.step;
  if (step == 0)
    return ops::refusal("index", "step 0 in dim ", dim, "; it should be above or below 0");
  if (step > 0) {
    const int64_t start = clamped(range.begin.value_or(0), size, 0, size);
    const int64_t limit = clamped(range.end.value_or(size), size, 0, size);
    return Part{start, std::max(start, limit), step};
  }
  // From `first` down to the element after `end`, which may be before the first one.
  const int64_t first = clamped(range.begin.value_or(size - 1), size, -1, size - 1);
  const int64_t end = range.end.has_value() ? clamped(*range.end, size, -1, size - 1) : -1;
  if (first <= end) return Part{0, 0};
  // The same elements in ascending order.
  const int64_t stride = step == std::numeric_limits<int64_t>::min() ? size : -step;
  const int64_t last = first - (first - end - 1) / stride * stride;
  return Part{last, first + 1, stride, /*is_turned=*/true};
}

StatusOr<Part> part_of(int64_t index, int dim, int64_t size) {
  const int64_t place = index < 0 ? index + size : index;
  if (place >= 0 && place < size)
    return Part{.start = place, .limit = place + 1, .is_dropped = true};
  return absl::OutOfRangeError(
      absl::StrCat("index ", index, " of dim ", dim, " is not in a dim of ", size, " elements"));
}

StatusOr<std::vector<Part>> parts_of(absl::Span<const Index> indices, const Shape& shape) {
  if (indices.size() > shape.size()) {
    return ops::refusal("index", indices.size(), " indices for a tensor of rank ", shape.size(),
                        "; give one for each dim at most");
  }
  std::vector<Part> parts;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    const Index index = dim < indices.size() ? indices[dim] : kAll;
    const auto part = [&](const auto& value) {
      return part_of(value, static_cast<int>(dim), shape[dim]);
    };
    TESSERA_ASSIGN_OR_RETURN(const Part found, std::visit(part, index.value()));
    parts.push_back(found);
  }
  return parts;
}

}  // namespace

DTensor DTensor::operator[](std::initializer_list<Index> indices) const {
  if (!internal::facts_of(*this).error.ok()) return *this;
  const StatusOr<std::vector<Part>> parts = parts_of(indices, shape());
  if (!parts.ok()) return internal::failed_tensor(dtype(), shape(), layout(), parts.status());
  std::vector<int64_t> starts, limits, strides, turned, dropped;
  for (size_t dim = 0; dim < parts->size(); ++dim) {
    const Part& part = (*parts)[dim];
    starts.push_back(part.start);
    limits.push_back(part.limit);
    strides.push_back(part.stride);
    if (part.is_turned) turned.push_back(static_cast<int64_t>(dim));
    if (part.is_dropped) dropped.push_back(static_cast<int64_t>(dim));
  }
  DTensor result = ops::slice(*this, starts, limits, strides);
  if (!turned.empty()) result = ops::flip(result, turned);
  // From the last one, so that the numbers of the others stay.
  for (; !dropped.empty(); dropped.pop_back()) result = ops::squeeze(result, dropped.back());
  return result;
}

}  // namespace tessera
