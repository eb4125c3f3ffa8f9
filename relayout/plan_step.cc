// SPDX-License-Identifier: Apache-2.0
//
// Steps of a plan: their names, and the rows of single devices.
#include "relayout/plan_step.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "relayout/factored_view.h"
#include "relayout/most_received.h"
#include "relayout/pull_routing.h"
#include "relayout/shard_grid.h"

namespace tessera {
namespace {

// Of a group of at most so many, or a mesh, each device's partners are counted.
constexpr int64_t kMostCounted = 256;

}  // namespace

using internal::Cuts;
using internal::Digits;
using internal::PullRouting;
using internal::ShardGrid;
using internal::SubAxes;

struct PlanStep::Rep {
  Rep(StepKind kind, const Layout& from, const Layout& to, const internal::Tensor& tensor)
      : kind(kind),
        from(from, tensor.shape),
        to(to, tensor.shape),
        dtype(tensor.dtype),
        topology(tensor.topology) {}

  StepKind kind;
  ShardGrid from;
  ShardGrid to;
  DType dtype;
  Topology topology;
  ReduceOp op = ReduceOp::kSum;
  std::vector<std::string> axes;
  int64_t group_size = 1;
  std::optional<PullRouting> moves;  // Exactly in moves.
  Digits group_digits;               // kAllGather, kAllToAll and reductions: tell members apart.
  Digits zero_digits;                // kExpand: devices with these all zero hold the value.

  // The components of kPermute and kExchange, found when a group is first asked for.
  mutable std::once_flag components_once;
  mutable std::vector<std::vector<int>> components;
  mutable absl::flat_hash_map<int, size_t> component_of_device;

  bool is_reduction() const {
    return kind == StepKind::kReduceScatter || kind == StepKind::kAllReduce;
  }
  // The positions of the group of a position, ascending. Requires group_digits.
  std::vector<int64_t> members(int64_t position) const;
  int64_t new_elements(int64_t position) const;
  const std::vector<int>* component(int device_id) const;
  // See internal::traffic_of().
  internal::Traffic traffic(int64_t most_devices) const;
  internal::Traffic reduction_traffic(int64_t most_devices) const;
  std::optional<std::vector<int64_t>> within_by_digits() const;
  internal::Traffic counted_traffic(__int128 from_each, int64_t most_devices) const;
  internal::Traffic pulled_traffic(int64_t most_devices) const;
  int64_t from_bytes(int64_t position) const {
    return from.layout().box(from.shape(), position).num_elements() * dtype_size(dtype);
  }
};

namespace {

// The members of a group reduce equal chunks of a box of `elements`.
int64_t chunk_elements(int64_t elements, int64_t members, int64_t member) {
  const auto [first, end] = shard_interval(elements, members, member);
  return end - first;
}

// What an all-reduce receives of `elements`, and sends, where `chunk` of them are the device's to
// reduce: the other terms of its chunk, and the other chunks.
__int128 all_reduce_elements(int64_t elements, int64_t members, int64_t chunk) {
  return static_cast<__int128>(members - 1) * chunk + (elements - chunk);
}

}  // namespace

absl::string_view step_kind_name(StepKind kind) {
  switch (kind) {
    case StepKind::kSlice:
      return "slice";
    case StepKind::kAllGather:
      return "all_gather";
    case StepKind::kAllToAll:
      return "all_to_all";
    case StepKind::kPermute:
      return "permute";
    case StepKind::kExchange:
      return "exchange";
    case StepKind::kReduceScatter:
      return "reduce_scatter";
    case StepKind::kAllReduce:
      return "all_reduce";
    case StepKind::kExpand:
      return "expand";
  }
  return "unknown";
}

std::vector<int64_t> PlanStep::Rep::members(int64_t position) const {
  const int64_t base =
      position - internal::offset_of(group_digits, internal::value_at(group_digits, position));
  std::vector<int64_t> result(group_size);
  for (int64_t i = 0; i < group_size; ++i) {
    result[i] = base + internal::offset_of(group_digits, i);
  }
  return result;
}

int64_t PlanStep::Rep::new_elements(int64_t position) const { return to.elements(position); }

const std::vector<int>* PlanStep::Rep::component(int device_id) const {
  std::call_once(components_once, [this] {
    components = moves->components();
    for (size_t i = 0; i < components.size(); ++i) {
      for (int id : components[i]) component_of_device[id] = i;
    }
  });
  const auto found = component_of_device.find(device_id);
  return found == component_of_device.end() ? nullptr : &components[found->second];
}

internal::Traffic PlanStep::Rep::traffic(int64_t most_devices) const {
  if (kind == StepKind::kExpand || kind == StepKind::kSlice) return {};
  if (is_reduction()) return reduction_traffic(most_devices);
  const Shape& shape = to.shape();
  const std::optional<LinkClass> flat = topology.only_link();
  internal::Traffic result;
  if (!flat.has_value()) {
    const auto view = internal::FactoredView::create(from.layout(), to.layout(), shape, topology);
    if (view.has_value()) {
      const internal::Scheduler::Sizes sizes{from_bytes(0), 0};
      return internal::Scheduler(view->components(), sizes, topology.costs()).direct_traffic();
    }
    // A row has up to as many pulls as the other mesh has devices.
    constexpr int64_t kMostRowsMade = 256;
    const int64_t larger = std::max(from.layout().mesh().size(), to.layout().mesh().size());
    if (larger <= kMostRowsMade) return pulled_traffic(most_devices);
  }
  int64_t most = 0;
  if (most_devices == internal::kEveryDevice) {
    most = internal::most_received(*moves).elements;
  } else {
    for (const int64_t position : to.spread_positions(most_devices)) {
      most = std::max(most, moves->received_at(position));
    }
  }
  const LinkClass link = flat.value_or(LinkClass::kNetwork);
  result.bytes[static_cast<int>(link)] = most * dtype_size(dtype);
  return result;
}

// Each device meets all of its group: how many of it are within its process, its host and all. Of a
// group that is too large to be counted all count as of other hosts.
internal::Traffic PlanStep::Rep::reduction_traffic(int64_t most_devices) const {
  // All-reduce: the other terms of a chunk, and then the other chunks.
  const bool chunks = kind == StepKind::kAllReduce;
  const int64_t elements = new_elements(0);
  const __int128 from_each = static_cast<__int128>(dtype_size(dtype)) *
                             (chunks ? 2 * chunk_elements(elements, group_size, 0) : elements);
  const std::optional<std::vector<int64_t>> by_digits = within_by_digits();
  if (!by_digits.has_value() && group_size <= kMostCounted) {
    return counted_traffic(from_each, most_devices);
  }
  const std::vector<int64_t> within = by_digits.value_or(std::vector<int64_t>{1, 1, group_size});
  internal::Traffic result;
  int64_t nearer = 1;
  for (int link = 0; link < kNumLinkClasses; ++link) {
    result.bytes[link] = internal::saturated(from_each * (within[link] - nearer));
    nearer = within[link];
  }
  return result;
}

// The product of the digits of links as near; nothing where processes or hosts do not cut the group
// at digits.
std::optional<std::vector<int64_t>> PlanStep::Rep::within_by_digits() const {
  const Mesh& mesh = from.layout().mesh();
  const std::optional<LinkClass> flat = topology.only_link();
  const auto [process, host] = topology.block_sizes();
  if (!flat.has_value() && !internal::has_blocks(mesh, topology)) return std::nullopt;
  std::vector<int64_t> within(kNumLinkClasses, 1);
  for (const internal::Digit& digit : internal::cut_at_blocks(group_digits, topology)) {
    const auto cuts = [&](int64_t block) {
      const bool stays = block >= mesh.size() || block % (digit.size * digit.weight) == 0;
      return stays || digit.weight % block == 0;
    };
    if (!flat.has_value() && (!cuts(process) || !cuts(host))) return std::nullopt;
    const LinkClass link = flat.has_value() ? *flat : link_of_digit(mesh, digit, topology);
    for (int reach = static_cast<int>(link); reach < kNumLinkClasses; ++reach) {
      within[reach] *= digit.size;
    }
  }
  return within;
}

// The worst device's bytes, by counting its partners, each of which sends `from_each`.
internal::Traffic PlanStep::Rep::counted_traffic(__int128 from_each, int64_t most_devices) const {
  constexpr int64_t kCompared = 16;
  const bool all =
      most_devices == internal::kEveryDevice && from.layout().mesh().size() <= kMostCounted;
  internal::Traffic worst;
  double worst_seconds = -1;
  for (const int64_t position : from.spread_positions(all ? internal::kEveryDevice : kCompared)) {
    int64_t partners[kNumLinkClasses] = {};
    for (const int64_t member : members(position)) {
      if (member == position) continue;
      ++partners[static_cast<int>(topology.link(from.device(position), from.device(member)))];
    }
    internal::Traffic traffic;
    for (int link = 0; link < kNumLinkClasses; ++link) {
      traffic.bytes[link] = internal::saturated(from_each * partners[link]);
    }
    const double seconds = internal::seconds_of(traffic, topology.costs());
    if (seconds > worst_seconds) worst = traffic;
    worst_seconds = std::max(worst_seconds, seconds);
  }
  return worst;
}

// The worst device's bytes, row by row. Rows are expensive. On large meshes a sample ranks two
// plans well enough; on small ones all rows are read.
internal::Traffic PlanStep::Rep::pulled_traffic(int64_t most_devices) const {
  constexpr int64_t kSmallMesh = 16;
  constexpr int64_t kComparedRows = 4;
  internal::Traffic worst;
  double worst_seconds = 0;
  const bool all =
      most_devices == internal::kEveryDevice || to.layout().mesh().size() <= kSmallMesh;
  const int64_t rows = all ? internal::kEveryDevice : kComparedRows;
  for (int64_t position : to.spread_positions(rows)) {
    const int id = to.device(position);
    internal::Traffic traffic;
    moves->for_each_source(id, [&](int source, int64_t elements) {
      if (source == id) return;
      traffic.bytes[static_cast<int>(topology.link(id, source))] += elements * dtype_size(dtype);
    });
    const double seconds = internal::seconds_of(traffic, topology.costs());
    if (seconds > worst_seconds) worst = traffic;
    worst_seconds = std::max(worst_seconds, seconds);
  }
  return worst;
}

StepKind PlanStep::kind() const { return rep_->kind; }
const Layout& PlanStep::from() const { return rep_->from.layout(); }
const Layout& PlanStep::to() const { return rep_->to.layout(); }
const Shape& PlanStep::shape() const { return rep_->to.shape(); }
absl::Span<const std::string> PlanStep::axes() const { return rep_->axes; }
int64_t PlanStep::group_size() const {
  const bool counted = kind() == StepKind::kSlice || from().mesh() == to().mesh();
  return counted ? rep_->group_size : internal::num_devices(from().mesh(), to().mesh());
}
ReduceOp PlanStep::op() const { return rep_->op; }

std::optional<Box> PlanStep::old_box(int device_id) const {
  const std::optional<int64_t> position = rep_->from.position_of(device_id);
  if (!position.has_value()) return std::nullopt;
  return from().box(rep_->from.shape(), *position);
}

std::optional<Box> PlanStep::new_box(int device_id) const {
  const std::optional<int64_t> position = rep_->to.position_of(device_id);
  if (!position.has_value()) return std::nullopt;
  return to().box(rep_->to.shape(), *position);
}

int64_t PlanStep::old_elements(int device_id) const {
  const std::optional<int64_t> position = rep_->from.position_of(device_id);
  return position.has_value() ? rep_->from.elements(*position) : 0;
}

int64_t PlanStep::new_elements(int device_id) const {
  const std::optional<int64_t> position = rep_->to.position_of(device_id);
  return position.has_value() ? rep_->to.elements(*position) : 0;
}

std::vector<Pull> PlanStep::pulls(int device_id) const {
  if (rep_->moves.has_value()) return rep_->moves->pulls(device_id);
  if (rep_->kind != StepKind::kExpand) return {};
  const std::optional<int64_t> position = rep_->from.position_of(device_id);
  if (!position.has_value()) return {};
  if (internal::value_at(rep_->zero_digits, *position) != 0) return {};
  const Box own = from().box(rep_->from.shape(), *position);
  if (own.is_empty()) return {};
  return {{device_id, own, own}};
}

// Of a gather whose sources have the coordinates of the device that asks, the devices of a group
// differ only in coordinates that the source does not take from them.
bool PlanStep::has_common_pulls() const {
  if (rep_->is_reduction()) return true;
  return rep_->kind == StepKind::kAllGather && rep_->moves->pulls_by_own_coordinates();
}

std::vector<int> PlanStep::terms(int device_id) const {
  if (!rep_->is_reduction()) return {};
  const std::optional<int64_t> position = rep_->from.position_of(device_id);
  if (!position.has_value() || rep_->new_elements(*position) == 0) return {};
  std::vector<int> devices;
  devices.reserve(rep_->group_size);
  for (int64_t member : rep_->members(*position)) devices.push_back(rep_->from.device(member));
  return devices;
}

std::vector<int> PlanStep::group(int device_id) const {
  switch (rep_->kind) {
    case StepKind::kSlice:
    case StepKind::kExpand:
      return {device_id};
    case StepKind::kPermute:
    case StepKind::kExchange: {
      const std::vector<int>* component = rep_->component(device_id);
      return component != nullptr ? *component : std::vector<int>{device_id};
    }
    default:
      break;
  }
  const std::optional<int64_t> position = rep_->from.position_of(device_id);
  if (!position.has_value()) return {device_id};
  std::vector<int> devices;
  bool anything = false;
  for (int64_t member : rep_->members(*position)) {
    devices.push_back(rep_->from.device(member));
    anything |= rep_->new_elements(member) > 0;
  }
  return anything ? devices : std::vector<int>{device_id};
}

int64_t PlanStep::received_bytes(int device_id) const {
  const int64_t element_bytes = dtype_size(rep_->dtype);
  if (rep_->moves.has_value()) return element_bytes * rep_->moves->received_elements(device_id);
  const std::optional<int64_t> position = rep_->from.position_of(device_id);
  if (!rep_->is_reduction() || !position.has_value()) return 0;
  const int64_t elements = rep_->new_elements(*position);
  const int64_t n = rep_->group_size;
  if (rep_->kind == StepKind::kReduceScatter) {
    return internal::saturated(static_cast<__int128>(n - 1) * elements * element_bytes);
  }
  const int64_t chunk =
      chunk_elements(elements, n, internal::value_at(rep_->group_digits, *position));
  return internal::saturated(all_reduce_elements(elements, n, chunk) * element_bytes);
}

int64_t PlanStep::sent_bytes(int device_id) const {
  if (rep_->moves.has_value()) {
    return internal::saturated(static_cast<__int128>(rep_->moves->sent_elements(device_id)) *
                               dtype_size(rep_->dtype));
  }
  // An all-reduce sends the terms of the other chunks and its own chunk to all: as it receives.
  if (rep_->kind != StepKind::kReduceScatter) return received_bytes(device_id);
  const std::optional<int64_t> position = rep_->from.position_of(device_id);
  if (!position.has_value()) return 0;
  __int128 elements = -rep_->new_elements(*position);
  for (int64_t member : rep_->members(*position)) elements += rep_->new_elements(member);
  return internal::saturated(elements * dtype_size(rep_->dtype));
}

std::string PlanStep::to_string() const {
  std::string text(step_kind_name(rep_->kind));
  if (!rep_->axes.empty()) absl::StrAppend(&text, "{", absl::StrJoin(rep_->axes, ","), "}");
  const bool same_mesh = from().mesh() == to().mesh();
  absl::StrAppend(&text, " ", same_mesh ? from().to_string() : from().to_string_with_mesh(), " -> ",
                  same_mesh ? to().to_string() : to().to_string_with_mesh());
  return text;
}

namespace internal {
namespace {

// What a move does to the lists of the dims, in common atoms: the common front of each, and what
// goes and comes behind it.
struct Difference {
  std::vector<SubAxes> gone;
  std::vector<SubAxes> come;
  SubAxes concerned;  // Both, mesh order; axes that are not aligned whole.

  bool nothing_goes() const { return all_empty(gone); }
  bool nothing_comes() const { return all_empty(come); }

  static bool all_empty(const std::vector<SubAxes>& lists) {
    return std::all_of(lists.begin(), lists.end(),
                       [](const SubAxes& parts) { return parts.empty(); });
  }
};

Difference difference(const Layout& from, const Layout& to) {
  const Cuts cuts(from, to);
  Difference result;
  for (int dim = 0; dim < from.rank(); ++dim) {
    SubAxes before = cuts.cut(from.dim_axes()[dim]);
    SubAxes after = cuts.cut(to.dim_axes()[dim]);
    // Equal numbers of shards are equal grids: a common end, too, stays in place.
    const bool one_grid = from.num_shards(dim) == to.num_shards(dim);
    while (one_grid && !before.empty() && !after.empty() && before.back() == after.back()) {
      before.pop_back();
      after.pop_back();
    }
    const auto [gone, come] =
        std::mismatch(before.begin(), before.end(), after.begin(), after.end());
    result.gone.emplace_back(gone, before.end());
    result.come.emplace_back(come, after.end());
  }
  SubAxes all;
  for (const std::vector<SubAxes>* lists : {&result.gone, &result.come}) {
    for (const SubAxes& parts : *lists) {
      for (const SubAxis& part : parts) {
        const bool whole = !cuts.aligned(part.axis);
        all.push_back(whole ? SubAxis{part.axis, 1, from.mesh().axes()[part.axis].size} : part);
      }
    }
  }
  result.concerned = normalised(from.mesh(), std::move(all));
  return result;
}

// Each atom that one dim loses is gained by another, no dim both loses and gains, and all sizes
// divide: every pair of a group then exchanges the same number of elements.
bool is_all_to_all(const Layout& from, const Layout& to, const Difference& change,
                   const Shape& shape) {
  SubAxes gone;
  SubAxes come;
  for (int dim = 0; dim < from.rank(); ++dim) {
    if (!change.gone[dim].empty() && !change.come[dim].empty()) return false;
    if (shape[dim] % from.num_shards(dim) != 0 || shape[dim] % to.num_shards(dim) != 0) {
      return false;
    }
    gone.insert(gone.end(), change.gone[dim].begin(), change.gone[dim].end());
    come.insert(come.end(), change.come[dim].begin(), change.come[dim].end());
  }
  return gone.size() == come.size() &&
         std::all_of(gone.begin(), gone.end(),
                     [&](const SubAxis& part) { return contains_sub_axis(come, part); });
}

bool same_grid(const Layout& from, const Layout& to) {
  for (int dim = 0; dim < from.rank(); ++dim) {
    if (from.num_shards(dim) != to.num_shards(dim)) return false;
  }
  return from.mesh().size() == to.mesh().size();
}

StepKind kind_of_move(const PullRouting& moves, const Difference* change) {
  const Layout& from = moves.from().layout();
  const Layout& to = moves.to().layout();
  if (change != nullptr && change->nothing_goes()) return StepKind::kSlice;
  if (!moves.any_remote()) return StepKind::kSlice;
  if (change != nullptr && change->nothing_comes()) return StepKind::kAllGather;
  if (change != nullptr && is_all_to_all(from, to, *change, moves.from().shape())) {
    return StepKind::kAllToAll;
  }
  return same_grid(from, to) ? StepKind::kPermute : StepKind::kExchange;
}

void set_axes(const Mesh& mesh, const SubAxes& parts, PlanStep::Rep& rep) {
  const SubAxes ordered = normalised(mesh, parts);
  for (const SubAxis& part : ordered) rep.axes.push_back(sub_axis_name(mesh, part));
  rep.group_digits = digits_of(mesh, ordered);
  rep.group_size = num_values(rep.group_digits);
}

}  // namespace

PlanStep make_move(const Layout& from, const Layout& to, const Tensor& tensor) {
  auto rep = std::make_shared<PlanStep::Rep>(StepKind::kExchange, from, to, tensor);
  rep->op = from.partial_op();
  rep->moves.emplace(from, to, tensor.shape, tensor.topology);
  if (from.mesh() == to.mesh()) {
    const Difference change = difference(from, to);
    rep->kind = kind_of_move(*rep->moves, &change);
    set_axes(from.mesh(), change.concerned, *rep);
  } else {
    rep->kind = kind_of_move(*rep->moves, nullptr);
  }
  if (rep->kind == StepKind::kSlice) rep->group_size = 1;
  return PlanStep(std::move(rep));
}

PlanStep make_reduction(StepKind kind, const Layout& from, const Layout& to, const SubAxes& reduced,
                        const Tensor& tensor) {
  auto rep = std::make_shared<PlanStep::Rep>(kind, from, to, tensor);
  rep->op = from.partial_op();
  set_axes(from.mesh(), reduced, *rep);
  return PlanStep(std::move(rep));
}

PlanStep make_expansion(const Layout& from, const Layout& to, const SubAxes& added,
                        const Tensor& tensor) {
  auto rep = std::make_shared<PlanStep::Rep>(StepKind::kExpand, from, to, tensor);
  rep->op = to.partial_op();
  set_axes(to.mesh(), added, *rep);
  rep->group_size = 1;
  // Of copies of the value only the first counts in a sum or product; for the other reductions
  // equal terms are the value.
  if (rep->op == ReduceOp::kSum || rep->op == ReduceOp::kProd) {
    const SubAxes split = all_sub_axes(from.dim_axes());
    SubAxes copies;
    for (const SubAxis& part : Cuts(from, to).cut(added)) {
      if (!overlaps_any(part, split)) copies.push_back(part);
    }
    rep->zero_digits = digits_of(to.mesh(), copies);
  }
  return PlanStep(std::move(rep));
}

PlanStep with_topology(const PlanStep& step, const Topology& topology) {
  const PlanStep::Rep& same = step.rep();
  if (same.topology == topology) return step;
  const Tensor tensor{step.shape(), same.dtype, topology};
  if (same.moves.has_value()) return make_move(step.from(), step.to(), tensor);
  auto rep = std::make_shared<PlanStep::Rep>(same.kind, step.from(), step.to(), tensor);
  rep->op = same.op;
  rep->axes = same.axes;
  rep->group_size = same.group_size;
  rep->group_digits = same.group_digits;
  rep->zero_digits = same.zero_digits;
  return PlanStep(std::move(rep));
}

Traffic traffic_of(const PlanStep& step, int64_t most_devices) {
  return step.rep().traffic(most_devices);
}

// Of a reduction the first device: it has a largest box, and of this a largest chunk.
int device_that_receives_most(const PlanStep& step) {
  const PlanStep::Rep& rep = step.rep();
  return rep.to.device(rep.moves.has_value() ? most_received(*rep.moves).position : 0);
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

int64_t saturated(__int128 value) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  return value > kMax ? kMax : static_cast<int64_t>(value);
}

}  // namespace internal
}  // namespace tessera
