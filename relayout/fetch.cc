// SPDX-License-Identifier: Apache-2.0
#include "relayout/fetch.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "relayout/schedule.h"

namespace tessera {
namespace {

// In larger meshes only a sample of devices is looked at, to find the most bytes that a device
// receives, and the links that the bytes use.
constexpr int64_t kMostReceivers = 1024;
constexpr int64_t kMostRows = 16;

Box shifted(Box box, absl::Span<const int64_t> shift) {
  for (size_t dim = 0; dim < shift.size(); ++dim) box.offsets[dim] += shift[dim];
  return box;
}

// The multiple of `size` that is next to `index`, at it or below.
int64_t period_of(int64_t index, int64_t size) {
  const int64_t rest = index % size;
  return index - (rest < 0 ? rest + size : rest);
}

}  // namespace

Fetch::Fetch(Layout from, Shape shape, DType dtype, Needs needs, Topology topology,
             std::string text)
    : grid_(std::move(from), std::move(shape)),
      dtype_(dtype),
      needs_(std::move(needs)),
      topology_(std::move(topology)),
      text_(std::move(text)) {}

Box Fetch::box(int64_t position) const {
  Box own = from().box(shape(), position);
  Box needed = needs_(position);
  return contains(own, needed) ? own : needed;
}

bool Fetch::pulls_any(int64_t position) const {
  return !contains(from().box(shape(), position), needs_(position));
}

bool Fetch::is_idle() const {
  for (int64_t position = 0; position < from().mesh().size(); ++position) {
    if (pulls_any(position)) return false;
  }
  return true;
}

void Fetch::for_each_period(
    const Box& needed,
    absl::FunctionRef<void(const Box& part, absl::Span<const int64_t> shift)> fn) const {
  if (needed.is_empty()) return;
  const size_t rank = shape().size();
  std::vector<int64_t> first(rank);
  for (size_t dim = 0; dim < rank; ++dim) first[dim] = period_of(needed.offsets[dim], shape()[dim]);
  std::vector<int64_t> shift = first;
  std::vector<int64_t> back(rank);
  for (;;) {
    for (size_t dim = 0; dim < rank; ++dim) back[dim] = -shift[dim];
    fn(intersect(whole_box(shape()), shifted(needed, back)), shift);
    size_t dim = rank;
    for (; dim > 0; --dim) {
      shift[dim - 1] += shape()[dim - 1];
      if (shift[dim - 1] < needed.offsets[dim - 1] + needed.sizes[dim - 1]) break;
      shift[dim - 1] = first[dim - 1];
    }
    if (dim == 0) return;
  }
}

void Fetch::for_each_piece(int64_t position, absl::FunctionRef<void(const Piece& piece)> fn) const {
  if (!pulls_any(position)) return;
  const int64_t base = position - grid_.cell_offset(grid_.cell(position));
  for_each_period(needs_(position), [&](const Box& part, absl::Span<const int64_t> shift) {
    grid_.for_each_cell(part, [&](const internal::Cell& cell, const Box& common) {
      fn({base + grid_.cell_offset(cell), cell, common, shift});
    });
  });
}

std::vector<Pull> Fetch::pulls(int64_t position) const {
  std::vector<Pull> pulls;
  for_each_piece(position, [&](const Piece& piece) {
    pulls.push_back({grid_.device(piece.source), shifted(grid_.cell_box(piece.cell), piece.shift),
                     shifted(piece.box, piece.shift)});
  });
  return pulls;
}

void Fetch::for_each_source(int64_t position, absl::FunctionRef<void(int64_t source)> fn) const {
  for_each_piece(position, [&](const Piece& piece) { fn(piece.source); });
}

int64_t Fetch::received_bytes(int64_t position) const {
  const Box own = from().box(shape(), position);
  const Box needed = needs_(position);
  if (contains(own, needed)) return 0;
  int64_t elements = needed.num_elements();
  for_each_period(needed, [&](const Box& part, absl::Span<const int64_t>) {
    elements -= intersect(own, part).num_elements();
  });
  return elements * dtype_size(dtype_);
}

int64_t Fetch::max_received_bytes() const {
  int64_t most = 0;
  for (const int64_t position : grid_.spread_positions(kMostReceivers)) {
    most = std::max(most, received_bytes(position));
  }
  return most;
}

absl::Duration Fetch::predicted_time() const {
  const std::optional<LinkClass> only = topology_.only_link();
  if (only.has_value()) {
    internal::Traffic traffic;
    traffic.bytes[static_cast<int>(*only)] = max_received_bytes();
    return absl::Seconds(internal::seconds_of(traffic, topology_.costs()));
  }
  double most = 0;
  for (const int64_t position : grid_.spread_positions(kMostRows)) {
    internal::Traffic traffic;
    const int own = grid_.device(position);
    for_each_piece(position, [&](const Piece& piece) {
      if (piece.source == position) return;
      const LinkClass link = topology_.link(own, grid_.device(piece.source));
      traffic.bytes[static_cast<int>(link)] += num_bytes(piece.box.sizes, dtype_);
    });
    most = std::max(most, internal::seconds_of(traffic, topology_.costs()));
  }
  return absl::Seconds(most);
}

}  // namespace tessera
