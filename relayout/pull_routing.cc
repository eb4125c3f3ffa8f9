// SPDX-License-Identifier: Apache-2.0
//
// The direct block exchange: which device pulls which box from which other device.
#include "relayout/pull_routing.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/union_find.h"
#include "relayout/factored_view.h"
#include "relayout/sub_axes.h"

namespace tessera::internal {
PullRouting::PullRouting(const Layout& from, const Layout& to, const Shape& shape,
                         const Topology& topology)
    : from_(from, shape),
      to_(to, shape),
      topology_(topology),
      same_mesh_(from.mesh() == to.mesh()) {
  if (same_mesh_) {
    classify_digits();
  } else {
    TESSERA_CHECK(!from.is_partial() && !to.is_partial(), "terms move within one mesh");
    old_replicas_ = digits_of(from.mesh(), complement(from.mesh(), all_sub_axes(from.dim_axes())));
    new_replicas_ = digits_of(to.mesh(), complement(to.mesh(), all_sub_axes(to.dim_axes())));
  }
  if (same_mesh_ && !own_coordinates_ && !topology_.only_link().has_value()) classify_links();
}

// Cuts the replicas' digits where processes and hosts begin, which leaves their numbers as they
// are.
void PullRouting::classify_links() {
  const Mesh& mesh = from_.layout().mesh();
  if (!has_blocks(mesh, topology_)) return;
  old_replicas_ = cut_at_blocks(old_replicas_, topology_);
  for (const Digit& digit : old_replicas_) {
    replica_links_.push_back(link_of_digit(mesh, digit, topology_));
  }
}

void PullRouting::classify_digits() {
  const Layout& from = from_.layout();
  const Layout& to = to_.layout();
  const Mesh& mesh = from.mesh();
  const Cuts cuts(from, to);
  const SubAxes old_parts = all_sub_axes(from.dim_axes());
  const SubAxes new_parts = all_sub_axes(to.dim_axes());
  SubAxes shared(from.partial_axes().begin(), from.partial_axes().end());
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if (!cuts.aligned(axis)) continue;
    for (const SubAxis& atom : cuts.atoms(axis)) {
      const bool used = overlaps_any(atom, old_parts) || overlaps_any(atom, new_parts) ||
                        overlaps_any(atom, from.partial_axes());
      if (!used) shared.push_back(atom);
    }
  }
  const auto replicas = [&](SubAxes parts) {
    parts.insert(parts.end(), shared.begin(), shared.end());
    return digits_of(mesh, complement(mesh, parts));
  };
  shared_ = digits_of(mesh, shared);
  old_replicas_ = replicas(old_parts);
  new_replicas_ = replicas(new_parts);

  own_coordinates_ = cuts.all_aligned();
  for (int dim = 0; dim < from.rank() && own_coordinates_; ++dim) {
    const SubAxes after = cuts.cut(to.dim_axes()[dim]);
    const bool adds = std::any_of(after.begin(), after.end(), [&](const SubAxis& part) {
      return !overlaps_any(part, old_parts);
    });
    own_coordinates_ = !adds || is_prefix(cuts.cut(from.dim_axes()[dim]), after);
  }
}

void PullRouting::for_each_pull(int device_id,
                                absl::FunctionRef<void(const Cell&, int, const Box&)> fn) const {
  const std::optional<int64_t> position = to_.position_of(device_id);
  if (!position.has_value()) return;
  const std::optional<int64_t> old = from_.position_of(device_id);
  const Cell new_cell = to_.cell(*position);
  from_.for_each_cell(to_.cell_box(new_cell), [&](const Cell& old_cell, const Box& common) {
    const bool is_local = old.has_value() && from_.holds(*old, old_cell);
    const int source = is_local ? device_id : from_.device(holder({old_cell, new_cell, *position}));
    fn(old_cell, source, common);
  });
}

std::vector<Pull> PullRouting::pulls(int device_id) const {
  std::vector<Pull> result;
  for_each_pull(device_id, [&](const Cell& old_cell, int source, const Box& common) {
    result.push_back({source, from_.cell_box(old_cell), common});
  });
  return result;
}

void PullRouting::for_each_source(int device_id, absl::FunctionRef<void(int, int64_t)> fn) const {
  for_each_pull(device_id, [&](const Cell&, int source, const Box& common) {
    fn(source, common.num_elements());
  });
}

int64_t PullRouting::received_elements(int device_id) const {
  const std::optional<int64_t> position = to_.position_of(device_id);
  return position.has_value() ? received_at(*position) : 0;
}

int64_t PullRouting::received_at(int64_t new_position) const {
  // First, for the product of the other sizes may exceed 64 bits where one is 0.
  if (num_elements(to_.shape()) == 0) return 0;
  const std::optional<int64_t> old_position =
      same_mesh_ ? new_position : from_.position_of(to_.device(new_position));
  int64_t all = 1;
  int64_t local = old_position.has_value() ? 1 : 0;
  for (size_t dim = 0; dim < from_.shape().size(); ++dim) {
    const auto [first, end] = to_.interval(dim, new_position);
    all *= end - first;
    if (local == 0) continue;
    const auto [old_first, old_end] = from_.interval(dim, *old_position);
    local *= std::max<int64_t>(0, std::min(end, old_end) - std::max(first, old_first));
  }
  return all - local;
}

int64_t PullRouting::sent_elements(int device_id) const {
  const std::optional<int64_t> position = from_.position_of(device_id);
  if (!position.has_value()) return 0;
  const Cell old_cell = from_.cell(*position);
  const int64_t shared = shared_offset(*position);
  const int64_t replicas = num_values(new_replicas_);
  int64_t sent = 0;
  to_.for_each_cell(from_.cell_box(old_cell), [&](const Cell& new_cell, const Box& common) {
    for (int64_t replica = 0; replica < replicas; ++replica) {
      const int64_t target = new_position(new_cell, replica, shared);
      if (holds_old(to_.device(target), old_cell)) continue;
      if (holder({old_cell, new_cell, target}) == *position) sent += common.num_elements();
    }
  });
  return sent;
}

bool PullRouting::any_remote() const {
  if (num_elements(to_.shape()) == 0) return false;
  // If any element is remote, mostly one of these devices pulls it.
  constexpr int64_t kLookedAtFirst = 128;
  for (int64_t position : to_.spread_positions(kLookedAtFirst)) {
    if (received_at(position) > 0) return true;
  }
  const int64_t size = to_.layout().mesh().size();
  for (int64_t position = 0; position < size; ++position) {
    if (received_at(position) > 0) return true;
  }
  return false;
}

std::vector<std::vector<int>> PullRouting::components() const {
  absl::Span<const int> old_ids = from_.layout().mesh().device_ids();
  absl::Span<const int> new_ids = to_.layout().mesh().device_ids();
  std::vector<int> devices(old_ids.begin(), old_ids.end());
  for (int id : new_ids) {
    if (!from_.position_of(id).has_value()) devices.push_back(id);
  }
  const auto size = static_cast<int64_t>(devices.size());
  absl::flat_hash_map<int, int64_t> nodes;
  for (int64_t node = 0; node < size; ++node) nodes[devices[node]] = node;

  UnionFind sets(size);
  for (int id : new_ids) {
    const int64_t node = nodes[id];
    for_each_source(id, [&](int source, int64_t) { sets.unite(nodes[source], node); });
  }
  absl::flat_hash_map<int64_t, std::vector<int>> by_root;
  for (int64_t node = 0; node < size; ++node) by_root[sets.root(node)].push_back(devices[node]);
  std::vector<std::vector<int>> result;
  for (auto& [root, members] : by_root) {
    if (members.size() > 1) result.push_back(std::move(members));
  }
  return result;
}

bool PullRouting::holds_old(int device_id, const Cell& cell) const {
  const std::optional<int64_t> position = from_.position_of(device_id);
  return position.has_value() && from_.holds(*position, cell);
}

int64_t PullRouting::holder(const Request& request) const {
  if (own_coordinates_) {
    return request.new_position - from_.cell_offset(from_.cell(request.new_position)) +
           from_.cell_offset(request.old_cell);
  }
  const int64_t replicas = num_values(old_replicas_);
  if (replicas > 1 && !topology_.only_link().has_value()) return near_holder(request);
  const int64_t replica = replicas > 1 ? dealt(request, replicas) % replicas : 0;
  return old_position(request.old_cell, replica, shared_offset(request.new_position));
}

int64_t PullRouting::dealt(const Request& request, int64_t holders) const {
  const Turn turn = turn_of(request);
  // Which of the new cells that meet the old one: their requests follow each other.
  const Box old_box = from_.cell_box(request.old_cell);
  int64_t cell_number = 0;
  for (size_t dim = 0; dim < request.old_cell.size(); ++dim) {
    const int64_t first = to_.shard_of(dim, old_box.offsets[dim]);
    const int64_t last = to_.shard_of(dim, old_box.offsets[dim] + old_box.sizes[dim] - 1);
    cell_number = cell_number * (last - first + 1) + (request.new_cell[dim] - first);
  }
  return cell_number % holders * (turn.count % holders) + turn.number;
}

int64_t PullRouting::near_holder(const Request& request) const {
  const int64_t shared = shared_offset(request.new_position);
  const int asking = to_.device(request.new_position);
  const auto position_of = [&](int64_t replica) {
    return old_position(request.old_cell, replica, shared);
  };
  const auto link_to = [&](int64_t replica) {
    return topology_.link(asking, from_.device(position_of(replica)));
  };
  if (!replica_links_.empty()) {
    // The device's own coordinates give a nearest holder; digits of links as near as that one give
    // the others.
    const int64_t own = offset_of(old_replicas_, value_at(old_replicas_, request.new_position));
    const LinkClass nearest = link_to(value_at(old_replicas_, own));
    Digits dealt_digits;
    for (size_t i = 0; i < old_replicas_.size(); ++i) {
      if (replica_links_[i] <= nearest) dealt_digits.push_back(old_replicas_[i]);
    }
    const int64_t holders = num_values(dealt_digits);
    const int64_t number = dealt(request, holders) % holders;
    return from_.cell_offset(request.old_cell) + shared + own -
           offset_of(dealt_digits, value_at(dealt_digits, own)) + offset_of(dealt_digits, number);
  }
  constexpr int64_t kMostLookedAt = 64;
  const int64_t replicas = num_values(old_replicas_);
  const int64_t first = replicas <= kMostLookedAt ? 0 : dealt(request, replicas) % replicas;
  std::vector<int64_t> nearest;
  LinkClass nearest_link = LinkClass::kNetwork;
  for (int64_t i = 0; i < std::min(replicas, kMostLookedAt); ++i) {
    const int64_t replica = (first + i) % replicas;
    const LinkClass link = link_to(replica);
    if (link < nearest_link) nearest.clear();
    nearest_link = std::min(nearest_link, link);
    if (link == nearest_link) nearest.push_back(replica);
  }
  const auto holders = static_cast<int64_t>(nearest.size());
  return position_of(nearest[dealt(request, holders) % holders]);
}

// Devices that hold the old cell themselves pull nothing; the others of the new cell are numbered
// in the order of their replicas. It is enough to look at the shorter of the two lists.
PullRouting::Turn PullRouting::turn_of(const Request& request) const {
  const int64_t shared = shared_offset(request.new_position);
  const int64_t asking = num_values(new_replicas_);
  const int64_t holding = num_values(old_replicas_);
  const int64_t mine = value_at(new_replicas_, request.new_position);
  Turn turn{mine, asking};
  const auto leave_out = [&](int64_t replica) {
    --turn.count;
    if (replica < mine) --turn.number;
  };
  if (asking <= holding) {
    for (int64_t replica = 0; replica < asking; ++replica) {
      const int device = to_.device(new_position(request.new_cell, replica, shared));
      if (holds_old(device, request.old_cell)) leave_out(replica);
    }
    return turn;
  }
  for (int64_t replica = 0; replica < holding; ++replica) {
    const int device = from_.device(old_position(request.old_cell, replica, shared));
    const std::optional<int64_t> position = to_.position_of(device);
    if (position.has_value() && to_.holds(*position, request.new_cell)) {
      leave_out(value_at(new_replicas_, *position));
    }
  }
  return turn;
}

int64_t PullRouting::old_position(const Cell& cell, int64_t replica, int64_t shared) const {
  return from_.cell_offset(cell) + offset_of(old_replicas_, replica) + shared;
}

int64_t PullRouting::new_position(const Cell& cell, int64_t replica, int64_t shared) const {
  return to_.cell_offset(cell) + offset_of(new_replicas_, replica) + shared;
}

int64_t PullRouting::shared_offset(int64_t position) const {
  return offset_of(shared_, value_at(shared_, position));
}

}  // namespace tessera::internal
