// SPDX-License-Identifier: Apache-2.0
//
// Cells of a layout: which shards meet a box, and which devices hold them.
#include "relayout/shard_grid.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tessera::internal {

ShardGrid::ShardGrid(Layout layout, Shape shape)
    : layout_(std::move(layout)), shape_(std::move(shape)) {
  for (const std::vector<SubAxis>& parts : layout_.dim_axes()) {
    dim_digits_.push_back(digits_of(layout_.mesh(), parts));
  }
}

Cell ShardGrid::cell(int64_t position) const {
  Cell cell(shape_.size());
  for (size_t dim = 0; dim < cell.size(); ++dim) cell[dim] = value_at(dim_digits_[dim], position);
  return cell;
}

Box ShardGrid::cell_box(const Cell& cell) const {
  Box box;
  for (size_t dim = 0; dim < cell.size(); ++dim) {
    const auto [first, end] = shard_interval(shape_[dim], layout_.num_shards(dim), cell[dim]);
    box.offsets.push_back(first);
    box.sizes.push_back(end - first);
  }
  return box;
}

bool ShardGrid::holds(int64_t position, const Cell& cell) const {
  for (size_t dim = 0; dim < cell.size(); ++dim) {
    if (value_at(dim_digits_[dim], position) != cell[dim]) return false;
  }
  return true;
}

std::pair<int64_t, int64_t> ShardGrid::interval(int dim, int64_t position) const {
  return shard_interval(shape_[dim], layout_.num_shards(dim), value_at(dim_digits_[dim], position));
}

int64_t ShardGrid::elements(int64_t position) const {
  // First, for the product of the other sizes may exceed 64 bits where one is 0.
  if (num_elements(shape_) == 0) return 0;
  int64_t elements = 1;
  for (size_t dim = 0; dim < shape_.size(); ++dim) {
    const auto [first, end] = interval(dim, position);
    elements *= end - first;
  }
  return elements;
}

int64_t ShardGrid::cell_offset(const Cell& cell) const {
  int64_t offset = 0;
  for (size_t dim = 0; dim < cell.size(); ++dim) offset += offset_of(dim_digits_[dim], cell[dim]);
  return offset;
}

std::vector<int64_t> ShardGrid::spread_positions(int64_t most) const {
  const int64_t size = layout_.mesh().size();
  const int64_t count = std::min(size, most);
  std::vector<int64_t> positions(count);
  std::iota(positions.begin(), positions.end(), 0);
  if (count == size) return positions;
  // The i-th of `count` of 0 ... last, both ends included.
  const auto spread = [](int64_t i, int64_t last, int64_t count) {
    return static_cast<int64_t>(static_cast<__int128>(i) * last / std::max<int64_t>(1, count - 1));
  };
  for (int64_t i = 0; i < count; ++i) positions[i] = spread(i, size - 1, count);
  const int64_t elements = num_elements(shape_);
  for (int64_t i = 0; i < count / 2 && elements > 0; ++i) {
    int64_t element = spread(i, elements - 1, count / 2);
    Cell holding(shape_.size());
    for (int dim = static_cast<int>(shape_.size()) - 1; dim >= 0; --dim) {
      holding[dim] = shard_of(dim, element % shape_[dim]);
      element /= shape_[dim];
    }
    int64_t& position = positions[2 * i + 1];
    position += cell_offset(holding) - cell_offset(cell(position));
  }
  return positions;
}

int64_t ShardGrid::shard_of(int dim, int64_t element) const {
  // 128 bits: element * shards passes 2^63 for large dims.
  const __int128 product = static_cast<__int128>(element) * layout_.num_shards(dim);
  return static_cast<int64_t>(product / shape_[dim]);
}

void ShardGrid::for_each_cell(
    const Box& part, absl::FunctionRef<void(const Cell& cell, const Box& common)> fn) const {
  if (part.is_empty()) return;
  const int rank = static_cast<int>(shape_.size());
  struct Piece {
    int64_t shard, first, size;
  };
  std::vector<std::vector<Piece>> pieces(rank);
  for (int dim = 0; dim < rank; ++dim) {
    const int64_t part_end = part.offsets[dim] + part.sizes[dim];
    // Goes from the shard of an element to the shard of the first element after it, and so steps
    // over empty shards, however many there are.
    for (int64_t first = part.offsets[dim]; first < part_end;) {
      const int64_t shard = shard_of(dim, first);
      const int64_t shard_end = shard_interval(shape_[dim], layout_.num_shards(dim), shard).second;
      const int64_t end = std::min(part_end, shard_end);
      pieces[dim].push_back({shard, first, end - first});
      first = end;
    }
  }
  std::vector<size_t> at(rank, 0);
  Cell cell(rank);
  Box common{std::vector<int64_t>(rank), std::vector<int64_t>(rank)};
  for (;;) {
    for (int dim = 0; dim < rank; ++dim) {
      const Piece& piece = pieces[dim][at[dim]];
      cell[dim] = piece.shard;
      common.offsets[dim] = piece.first;
      common.sizes[dim] = piece.size;
    }
    fn(cell, common);
    int dim = rank - 1;
    while (dim >= 0 && ++at[dim] == pieces[dim].size()) at[dim--] = 0;
    if (dim < 0) return;
  }
}

int64_t num_devices(const Mesh& a, const Mesh& b) {
  if (a == b) return a.size();
  if (a.ids_are_positions() && b.ids_are_positions()) return std::max(a.size(), b.size());
  int64_t count = a.size();
  for (int64_t position = 0; position < b.size(); ++position) {
    count += a.position_of_device(*b.device_at(position)).has_value() ? 0 : 1;
  }
  return count;
}

}  // namespace tessera::internal
