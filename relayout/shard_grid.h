// SPDX-License-Identifier: Apache-2.0
//
// ShardGrid: which devices hold which part of a tensor, the inverse of Layout::box. Internal to
// relayout/.
//
// A layout cuts an index space into a grid of cells; each is the box of one device or of several
// replicas. A cell is named by one shard number per dim.
//
//   [x, y] on {x=2, y=2, z=3}, shape [8, 6]:  2 x 2 cells, cell (1, 0) = [4:8, 0:3], held by the
//   three devices (x=1, y=0, z=0..2)
#ifndef TESSERA_RELAYOUT_SHARD_GRID_H_
#define TESSERA_RELAYOUT_SHARD_GRID_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/shape.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/sub_axes.h"

namespace tessera::internal {

using Cell = std::vector<int64_t>;

// Immutable, safe to read from any thread.
class ShardGrid {
 public:
  // Requires shape.size() == layout.rank().
  ShardGrid(Layout layout, Shape shape);

  const Layout& layout() const { return layout_; }
  const Shape& shape() const { return shape_; }
  int device(int64_t position) const { return *layout_.mesh().device_at(position); }
  std::optional<int64_t> position_of(int device_id) const {
    return layout_.mesh().position_of_device(device_id);
  }

  Cell cell(int64_t position) const;
  Box cell_box(const Cell& cell) const;
  bool holds(int64_t position, const Cell& cell) const;
  // The interval {first, end} of a dim that the device at a position holds.
  std::pair<int64_t, int64_t> interval(int dim, int64_t position) const;
  // How many elements the device at a position holds. Allocates nothing.
  int64_t elements(int64_t position) const;
  // The part of a position that determines the cell of its device: it is equal for positions of one
  // cell.
  int64_t cell_offset(const Cell& cell) const;

  // All positions where there are at most `most`; else `most` positions. Half of these are evenly
  // spread over the mesh. The others hold elements evenly spread over the tensor, because in a mesh
  // larger than its tensor few devices hold any. Equal in every process; a position may be listed
  // twice.
  std::vector<int64_t> spread_positions(int64_t most) const;
  // The number of the shard of a dim that an element belongs to. Requires 0 <= element < size.
  int64_t shard_of(int dim, int64_t element) const;
  // Calls fn for each cell that meets `part`, with the common elements, in row-major order.
  // O(rank) for each, empty cells not counted.
  void for_each_cell(const Box& part,
                     absl::FunctionRef<void(const Cell& cell, const Box& common)> fn) const;

 private:
  Layout layout_;
  Shape shape_;
  std::vector<Digits> dim_digits_;
};

// The number of devices of both meshes; devices of both count once. O(devices of b).
int64_t num_devices(const Mesh& a, const Mesh& b);

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_SHARD_GRID_H_
