// SPDX-License-Identifier: Apache-2.0
//
// PullRouting: which boxes each device pulls from which holder in a move, one batch that takes a
// tensor from one layout to another. Internal to relayout/.
//
// The old layout cuts the index space into cells. A new box meets some of them. The cell that the
// device holds itself is local; each other cell is pulled from a device that holds it. Hence each
// missing element is received once, and the bytes are the lower bound.
//
// The choice among several holders of a cell:
// - On one mesh, where the axes that the new layout adds only cut old boxes further: the holder
//   with the device's own coordinates along them. This spreads the load evenly, keeps the groups
//   small, and is the nearest holder: it differs from the device only in axes that must differ.
// - Otherwise the requests for a cell are numbered and dealt in turn to its nearest holders (same
//   process, then same host).
// - Among more than 64 holders that no digits of one mesh tell apart: the nearest of the next 64 in
//   turn.
#ifndef TESSERA_RELAYOUT_PULL_ROUTING_H_
#define TESSERA_RELAYOUT_PULL_ROUTING_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/shape.h"
#include "layout/layout.h"
#include "relayout/pull.h"
#include "relayout/shard_grid.h"
#include "relayout/sub_axes.h"
#include "relayout/topology.h"

namespace tessera::internal {

// Immutable, safe to read from any thread.
class PullRouting {
 public:
  // Partial axes must be the same on both sides, of equal meshes: terms move as they are.
  PullRouting(const Layout& from, const Layout& to, const Shape& shape, const Topology& topology);

  // See PlanStep.
  std::vector<Pull> pulls(int device_id) const;
  // As pulls(), without the boxes: calls `fn` with the source and the number of elements of each.
  void for_each_source(int device_id,
                       absl::FunctionRef<void(int source, int64_t elements)> fn) const;
  int64_t received_elements(int device_id) const;
  // As received_elements(), for the device at a position of the new mesh.
  int64_t received_at(int64_t new_position) const;
  int64_t sent_elements(int device_id) const;
  // Whether any device lacks an element of its new box.
  bool any_remote() const;
  // The connected components of more than one device under "pulls from", each ascending by position
  // (in the old mesh, then in the new one alone). O(devices * cells a device meets).
  std::vector<std::vector<int>> components() const;

  // Whether a device pulls a cell from the holder with its own coordinates in all axes that the
  // cell leaves open.
  bool pulls_by_own_coordinates() const { return own_coordinates_; }

  const ShardGrid& from() const { return from_; }
  const ShardGrid& to() const { return to_; }

 private:
  // A cell of the new layout that requests a cell of the old layout.
  struct Request {
    const Cell& old_cell;
    const Cell& new_cell;
    int64_t new_position;  // position of the requesting device
  };
  struct Turn {
    int64_t number;
    int64_t count;
  };

  // Calls fn(old cell, source, common part of the old cell and the new box) for each pull of the
  // device.
  void for_each_pull(int device_id,
                     absl::FunctionRef<void(const Cell&, int source, const Box&)> fn) const;
  void classify_digits();
  bool holds_old(int device_id, const Cell& cell) const;
  int64_t holder(const Request& request) const;
  Turn turn_of(const Request& request) const;
  // The number that deals a request to holders, before it is taken modulo their number.
  int64_t dealt(const Request& request, int64_t holders) const;
  int64_t near_holder(const Request& request) const;
  void classify_links();
  int64_t old_position(const Cell& cell, int64_t replica, int64_t shared) const;
  int64_t new_position(const Cell& cell, int64_t replica, int64_t shared) const;
  int64_t shared_offset(int64_t position) const;

  ShardGrid from_;
  ShardGrid to_;
  Topology topology_;
  bool same_mesh_;
  bool own_coordinates_ = false;  // the holder has the coordinates of the requesting device
  Digits old_replicas_;           // tell the holders of one old cell apart
  Digits new_replicas_;           // tell the holders of one new cell apart
  // The link of each of old_replicas_, where the topology is not flat and its blocks are digits of
  // the mesh.
  std::vector<LinkClass> replica_links_;
  Digits shared_;  // all with the same of these: untouched on both sides, or terms.
};

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_PULL_ROUTING_H_
