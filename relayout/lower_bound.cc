// SPDX-License-Identifier: Apache-2.0
#include "relayout/lower_bound.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/math.h"
#include "relayout/most_received.h"
#include "relayout/pull_routing.h"
#include "relayout/shard_grid.h"
#include "relayout/topology.h"

namespace tessera::internal {
namespace {

int64_t most_lacking(const Layout& from, const Layout& goal, const Shape& shape) {
  const PullRouting routing(from, goal, shape, Topology());
  // On small meshes each device is looked at, which checks the search of most_received.h.
  constexpr int64_t kSmallMesh = int64_t{1} << 16;
  if (goal.mesh().size() > kSmallMesh) return most_received(routing).elements;
  int64_t most = 0;
  for (int64_t position = 0; position < goal.mesh().size(); ++position) {
    most = std::max(most, routing.received_elements(*goal.mesh().device_at(position)));
  }
  return most;
}

// The number of values that some device both wants and holds a term of. The common boxes of both
// layouts are cells of one grid: any two are the same or disjoint.
__int128 num_held_where_wanted(const Layout& from, const Layout& goal, const Shape& shape) {
  absl::flat_hash_set<std::pair<int64_t, std::vector<int64_t>>> seen;  // Term that stays, cell.
  __int128 values = 0;
  for (int64_t position = 0; position < goal.mesh().size(); ++position) {
    const int id = *goal.mesh().device_at(position);
    const std::optional<int64_t> old_position = from.mesh().position_of_device(id);
    if (!old_position.has_value()) continue;
    const Box common = intersect(from.box(shape, *old_position), goal.box(shape, position));
    if (common.is_empty()) continue;
    const bool is_new = seen.emplace(goal.partial_index(position), common.offsets).second;
    if (is_new) values += common.num_elements();
  }
  return values;
}

}  // namespace

int64_t least_received_elements(const Layout& from, const Layout& goal, const SubAxes& reduced,
                                const Shape& shape) {
  if (reduced.empty()) return most_lacking(from, goal, shape);
  // The new boxes tile the tensor, and each is the box of as many devices; the first is a largest.
  __int128 copies = goal.mesh().size();
  for (int dim = 0; dim < goal.rank(); ++dim) copies /= goal.num_shards(dim);
  const __int128 wanted = copies * num_elements(shape);
  const int64_t largest = ShardGrid(goal, shape).elements(0);
  const int64_t terms = num_values(digits_of(from.mesh(), reduced));
  const __int128 values = static_cast<__int128>(num_elements(shape)) * goal.num_partial_terms();
  // The cells of larger meshes do not fit in memory: without this term the bound is lower.
  constexpr int64_t kMostCells = int64_t{1} << 20;
  const bool counts_cells = goal.mesh().size() <= kMostCells;
  const __int128 lonely = counts_cells ? values - num_held_where_wanted(from, goal, shape) : 0;
  const __int128 messages = wanted + (terms - 2) * values + lonely;
  const int64_t devices = num_devices(from.mesh(), goal.mesh());
  return std::max(largest, saturated((messages + devices - 1) / devices));
}

}  // namespace tessera::internal
