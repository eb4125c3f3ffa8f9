// SPDX-License-Identifier: Apache-2.0
//
// Fetch: each device of a mesh gets a box of a tensor that it needs. It is an exchange between the
// boxes of a layout and boxes of any kind: the rows of a convolution with their neighbours, a
// slice.
//
//   shape [8], layout [x], x=4         needed [1:4], [3:6], [5:8], [7:8]
//   device 0 holds [0:2], and pulls    [1:2] of itself, [2:4] of device 1
//
// Invariants:
//   1. a device that holds its whole needed box pulls nothing, and computes from its own box;
//   2. for every other device the pulls cover the needed box exactly once, with the device itself
//      among the sources;
//   3. a source differs from the device only along the axes that split the tensor's dims: it holds
//      the same term where the tensor is partial, and replicas serve equal shares.
//
// Indices below 0, or beyond the size of a dim, mean the index modulo the size: the first element
// follows the last one. A box may be longer than its dim.
//
// A value. Pure: no devices, I/O or threads.
#ifndef TESSERA_RELAYOUT_FETCH_H_
#define TESSERA_RELAYOUT_FETCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "layout/layout.h"
#include "relayout/pull.h"
#include "relayout/shard_grid.h"
#include "relayout/topology.h"

namespace tessera {

class Fetch {
 public:
  // The box that the device at a position of the mesh needs: a box of the tensor's rank, without
  // elements where it needs nothing. Equal on all clients.
  using Needs = std::function<Box(int64_t position)>;
  // Requires a shape that is legal for the layout, and no need of a dim without elements. `text`
  // describes the purpose; it must be the same on all members of the exchange.
  Fetch(Layout from, Shape shape, DType dtype, Needs needs, Topology topology, std::string text);

  const Layout& from() const { return grid_.layout(); }
  const Shape& shape() const { return grid_.shape(); }
  DType dtype() const { return dtype_; }
  const std::string& text() const { return text_; }

  // The box that the device at the position computes from: its own box if that contains the needed
  // box, else the needed box.
  Box box(int64_t position) const;
  // Whether the device computes from another box than its own.
  bool pulls_any(int64_t position) const;
  // Whether no device pulls anything.
  bool is_idle() const;
  // The copies that the device at the position makes, by device ids; both boxes have the indices of
  // box().
  std::vector<Pull> pulls(int64_t position) const;
  // Calls fn(position) for the sources of the pulls; a source may be passed more than once.
  void for_each_source(int64_t position, absl::FunctionRef<void(int64_t source)> fn) const;

  // The bytes that a device receives from others, and the largest such number. In meshes of more
  // than 1,024 devices only a sample is looked at.
  int64_t received_bytes(int64_t position) const;
  int64_t max_received_bytes() const;
  // By the costs of the topology's links, as RelayoutPlan::predicted_time().
  absl::Duration predicted_time() const;

 private:
  // Calls fn for the part of `needed` in each period of the tensor. The part has the indices of the
  // tensor; the offset passed to fn turns them into the indices of box().
  void for_each_period(
      const Box& needed,
      absl::FunctionRef<void(const Box& part, absl::Span<const int64_t> shift)> fn) const;
  // The elements that one device holds and another one needs, in the tensor's indices.
  struct Piece {
    int64_t source;  // its position
    const internal::Cell& cell;
    const Box& box;
    absl::Span<const int64_t> shift;
  };
  // Calls fn for the pieces of all pulls of the device.
  void for_each_piece(int64_t position, absl::FunctionRef<void(const Piece& piece)> fn) const;

  internal::ShardGrid grid_;
  DType dtype_;
  Needs needs_;
  Topology topology_;
  std::string text_;
};

}  // namespace tessera

#endif  // TESSERA_RELAYOUT_FETCH_H_
