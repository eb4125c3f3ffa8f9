// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/writers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/math.h"
#include "checkpoint/checksum.h"
#include "relayout/sub_axes.h"

namespace tessera::checkpoint::internal {
namespace {

using tessera::internal::all_sub_axes;
using tessera::internal::complement;
using tessera::internal::Digits;
using tessera::internal::digits_of;
using tessera::internal::num_values;
using tessera::internal::value_at;

// A dim is cut into shares of this many indices or more, where a box has such a dim.
constexpr int64_t kMinIndicesPerShare = 16;

// The devices that hold a box differ in these digits. In mesh order, so that the number that they
// make ascends with the position.
Digits digits_of_holders(const Layout& layout) {
  return digits_of(layout.mesh(), complement(layout.mesh(), all_sub_axes(layout.dim_axes())));
}

// The dim c of the rule, for a box of these sizes. Requires a rank of at least 1.
int shared_dim(absl::Span<const int64_t> sizes, int64_t num_shares) {
  int best = 0;
  for (int dim = 0; dim < static_cast<int>(sizes.size()); ++dim) {
    if (sizes[dim] / num_shares >= kMinIndicesPerShare) return dim;
    // Compares ceil(m/r) / m as a product, so that it is exact.
    const auto largest = [&](int d) {
      return static_cast<__int128>(ceil_mul_div(1, sizes[d], num_shares));
    };
    if (largest(dim) * sizes[best] < largest(best) * sizes[dim]) best = dim;
  }
  return best;
}

// Writes of one tensor: the terms of the rule.
struct Rule {
  const Layout& layout;
  const Shape& shape;
  int64_t element_bytes;
  int64_t min_split_bytes;
  uint64_t hash;  // h
  Digits holder_digits;
  int64_t num_holders;  // r

  Rule(const Layout& layout, const Shape& shape, DType dtype, absl::string_view name,
       int64_t min_split_bytes)
      : layout(layout),
        shape(shape),
        element_bytes(dtype_size(dtype)),
        min_split_bytes(min_split_bytes),
        hash(checksum64(name)),
        holder_digits(digits_of_holders(layout)),
        num_holders(num_values(holder_digits)) {}

  std::optional<Box> box_at(int64_t position) const {
    Box box = layout.box(shape, position);
    if (box.is_empty()) return std::nullopt;
    const int64_t holder = value_at(holder_digits, position);
    const int64_t first = static_cast<int64_t>(hash % static_cast<uint64_t>(num_holders));
    // Holder (share + first) mod r writes share `share`.
    const int64_t share = (holder - first + num_holders) % num_holders;
    if (num_holders == 1 || box.sizes.empty() ||
        box.num_elements() * element_bytes <= min_split_bytes) {
      if (share != 0) return std::nullopt;
      return box;
    }
    const int dim = shared_dim(box.sizes, num_holders);
    const auto [begin, end] = shard_interval(box.sizes[dim], num_holders, share);
    if (begin == end) return std::nullopt;
    box.offsets[dim] += begin;
    box.sizes[dim] = end - begin;
    return box;
  }
};

}  // namespace

StatusOr<std::vector<WrittenBox>> written_boxes(const Layout& layout, const Shape& shape,
                                                DType dtype, absl::string_view name,
                                                int64_t min_split_bytes) {
  TESSERA_RETURN_IF_ERROR(layout.validate_shape(shape));
  TESSERA_RETURN_IF_ERROR(validate_shape(shape, dtype));
  if (min_split_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_split_bytes is ", min_split_bytes, "; it must be 0 or more"));
  }
  const Rule rule(layout, shape, dtype, name, min_split_bytes);
  std::vector<WrittenBox> result;
  for (int64_t position = 0; position < layout.mesh().size(); ++position) {
    std::optional<Box> box = rule.box_at(position);
    if (!box.has_value()) continue;
    result.push_back({position, *layout.mesh().device_at(position), *std::move(box)});
  }
  return result;
}

std::optional<Box> written_box(const Layout& layout, const Shape& shape, DType dtype,
                               absl::string_view name, int64_t min_split_bytes, int64_t position) {
  return Rule(layout, shape, dtype, name, min_split_bytes).box_at(position);
}

}  // namespace tessera::checkpoint::internal
