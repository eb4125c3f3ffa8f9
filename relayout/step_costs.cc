// SPDX-License-Identifier: Apache-2.0
#include "relayout/step_costs.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/math.h"
#include "relayout/factored_view.h"
#include "relayout/make_step.h"
#include "relayout/most_received.h"
#include "relayout/plan_step_rep.h"
#include "relayout/pull_routing.h"
#include "relayout/shard_grid.h"
#include "relayout/sub_axes.h"

namespace tessera::internal {
namespace {

// In a group or a mesh of at most so many devices each device's partners are counted.
constexpr int64_t kMostCounted = 256;

// The product of the digits of links as near; nothing where processes or hosts do not cut the group
// at digits.
std::optional<std::vector<int64_t>> within_by_digits(const PlanStepRep& step) {
  const Mesh& mesh = step.from.layout().mesh();
  const std::optional<LinkClass> flat = step.topology.only_link();
  const auto [process, host] = step.topology.block_sizes();
  if (!flat.has_value() && !has_blocks(mesh, step.topology)) return std::nullopt;
  std::vector<int64_t> within(kNumLinkClasses, 1);
  for (const Digit& digit : cut_at_blocks(step.group_digits, step.topology)) {
    const auto cuts = [&](int64_t block) {
      const bool stays = block >= mesh.size() || block % (digit.size * digit.weight) == 0;
      return stays || digit.weight % block == 0;
    };
    if (!flat.has_value() && (!cuts(process) || !cuts(host))) return std::nullopt;
    const LinkClass link = flat.has_value() ? *flat : link_of_digit(mesh, digit, step.topology);
    for (int reach = static_cast<int>(link); reach < kNumLinkClasses; ++reach) {
      within[reach] *= digit.size;
    }
  }
  return within;
}

// The worst device's bytes, by counting its partners, each of which sends `from_each`.
Traffic counted_traffic(const PlanStepRep& step, __int128 from_each, int64_t most_devices) {
  constexpr int64_t kCompared = 16;
  const bool all = most_devices == kEveryDevice && step.from.layout().mesh().size() <= kMostCounted;
  Traffic worst;
  double worst_seconds = -1;
  for (const int64_t position : step.from.spread_positions(all ? kEveryDevice : kCompared)) {
    int64_t partners[kNumLinkClasses] = {};
    for (const int64_t member : step.members(position)) {
      if (member == position) continue;
      const LinkClass link =
          step.topology.link(step.from.device(position), step.from.device(member));
      ++partners[static_cast<int>(link)];
    }
    Traffic traffic;
    for (int link = 0; link < kNumLinkClasses; ++link) {
      traffic.bytes[link] = saturated(from_each * partners[link]);
    }
    const double seconds = seconds_of(traffic, step.topology.costs());
    if (seconds > worst_seconds) worst = traffic;
    worst_seconds = std::max(worst_seconds, seconds);
  }
  return worst;
}

// Each device meets all of its group: how many of it are within its process, its host and all. In a
// group that is too large to be counted all count as of other hosts.
Traffic reduction_traffic(const PlanStepRep& step, int64_t most_devices) {
  // All-reduce: the other terms of a chunk, and then the other chunks.
  const bool chunks = step.kind == StepKind::kAllReduce;
  const int64_t elements = step.to.elements(0);
  const __int128 from_each = static_cast<__int128>(dtype_size(step.dtype)) *
                             (chunks ? 2 * chunk_elements(elements, step.group_size, 0) : elements);
  const std::optional<std::vector<int64_t>> by_digits = within_by_digits(step);
  if (!by_digits.has_value() && step.group_size <= kMostCounted) {
    return counted_traffic(step, from_each, most_devices);
  }
  const std::vector<int64_t> within =
      by_digits.value_or(std::vector<int64_t>{1, 1, step.group_size});
  Traffic result;
  int64_t nearer = 1;
  for (int link = 0; link < kNumLinkClasses; ++link) {
    result.bytes[link] = saturated(from_each * (within[link] - nearer));
    nearer = within[link];
  }
  return result;
}

// The worst device's bytes, row by row. Rows are expensive. On large meshes a sample ranks two
// plans well enough; on small ones all rows are read.
Traffic pulled_traffic(const PlanStepRep& step, int64_t most_devices) {
  constexpr int64_t kSmallMesh = 16;
  constexpr int64_t kComparedRows = 4;
  Traffic worst;
  double worst_seconds = 0;
  const bool all = most_devices == kEveryDevice || step.to.layout().mesh().size() <= kSmallMesh;
  const int64_t rows = all ? kEveryDevice : kComparedRows;
  for (int64_t position : step.to.spread_positions(rows)) {
    const int id = step.to.device(position);
    Traffic traffic;
    step.routing->for_each_source(id, [&](int source, int64_t elements) {
      if (source == id) return;
      const LinkClass link = step.topology.link(id, source);
      traffic.bytes[static_cast<int>(link)] += elements * dtype_size(step.dtype);
    });
    const double seconds = seconds_of(traffic, step.topology.costs());
    if (seconds > worst_seconds) worst = traffic;
    worst_seconds = std::max(worst_seconds, seconds);
  }
  return worst;
}

Traffic move_traffic(const PlanStepRep& step, int64_t most_devices) {
  const Layout& from = step.from.layout();
  const Layout& to = step.to.layout();
  const std::optional<LinkClass> flat = step.topology.only_link();
  if (!flat.has_value()) {
    const auto view = FactoredView::create(from, to, step.to.shape(), step.topology);
    if (view.has_value()) {
      const Scheduler::Sizes sizes{num_bytes(from.box(step.from.shape(), 0).sizes, step.dtype), 0};
      return Scheduler(view->components(), sizes, step.topology.costs()).direct_traffic();
    }
    // A row has up to as many pulls as the other mesh has devices.
    constexpr int64_t kMostRowsMade = 256;
    const int64_t larger = std::max(from.mesh().size(), to.mesh().size());
    if (larger <= kMostRowsMade) return pulled_traffic(step, most_devices);
  }
  int64_t most = 0;
  if (most_devices == kEveryDevice) {
    most = most_received(*step.routing).elements;
  } else {
    for (const int64_t position : step.to.spread_positions(most_devices)) {
      most = std::max(most, step.routing->received_at(position));
    }
  }
  Traffic result;
  const LinkClass link = flat.value_or(LinkClass::kNetwork);
  result.bytes[static_cast<int>(link)] = most * dtype_size(step.dtype);
  return result;
}

// Calls fn(device id) for devices of both meshes, also for the device that holds most. Where both
// begin with the same device, it is that device, whatever the layouts: shard 0 of a dim is a
// largest one, and it holds shard 0 of every dim. Else each device is called, once.
template <class Fn>
void for_each_that_may_hold_most(const Mesh& a, const Mesh& b, Fn fn) {
  if (a.device_at(0) == b.device_at(0)) return fn(*a.device_at(0));
  for (int64_t position = 0; position < a.size(); ++position) fn(*a.device_at(position));
  for (int64_t position = 0; position < b.size(); ++position) {
    const int id = *b.device_at(position);
    if (!a.position_of_device(id).has_value()) fn(id);
  }
}

// Bytes that a device holds while step `i` runs: the source, the target, and the intermediate
// tensor.
__int128 held_during(absl::Span<const PlanStep> steps, size_t i, int device_id) {
  __int128 held = steps[0].old_elements(device_id);
  held += steps[i].new_elements(device_id);
  if (i > 0) held += steps[i].old_elements(device_id);
  return held * dtype_size(steps[0].dtype());
}

// A device that receives as many bytes in the step as any does. In a reduction the first device: it
// has a largest box, and of this a largest chunk.
int device_that_receives_most(const PlanStep& step) {
  const PlanStepRep& rep = PlanStepAccess::rep(step);
  return rep.to.device(rep.routing.has_value() ? most_received(*rep.routing).position : 0);
}

}  // namespace

Traffic traffic_of(const PlanStep& step, int64_t most_devices) {
  const PlanStepRep& rep = PlanStepAccess::rep(step);
  if (rep.kind == StepKind::kExpand || rep.kind == StepKind::kSlice) return {};
  return is_reduction(rep.kind) ? reduction_traffic(rep, most_devices)
                                : move_traffic(rep, most_devices);
}

int64_t received_bytes(absl::Span<const PlanStep> steps, int device_id) {
  __int128 bytes = 0;
  for (const PlanStep& step : steps) bytes += step.received_bytes(device_id);
  return saturated(bytes);
}

int64_t max_received_bytes(absl::Span<const PlanStep> steps) {
  if (steps.empty()) return 0;
  // No device receives more than the most of each step; of one step some device receives that.
  int64_t most = 0;
  __int128 bound = 0;
  std::vector<int> devices;
  for (const PlanStep& step : steps) {
    devices.push_back(device_that_receives_most(step));
    bound += step.received_bytes(devices.back());
  }
  for (const int device : devices) most = std::max(most, received_bytes(steps, device));
  if (most == saturated(bound)) return most;
  const auto look_at = [&](const Mesh& mesh) {
    for (int64_t position = 0; position < mesh.size(); ++position) {
      most = std::max(most, received_bytes(steps, *mesh.device_at(position)));
    }
  };
  look_at(steps.back().to().mesh());
  const bool one_mesh = steps.front().from().mesh() == steps.back().to().mesh();
  if (!one_mesh) look_at(steps.front().from().mesh());
  return most;
}

int64_t step_peak_bytes(absl::Span<const PlanStep> steps, size_t step) {
  __int128 most = 0;
  for_each_that_may_hold_most(steps.front().from().mesh(), steps.back().to().mesh(),
                              [&](int id) { most = std::max(most, held_during(steps, step, id)); });
  return saturated(most);
}

// The source is held during the first step too.
int64_t peak_bytes(absl::Span<const PlanStep> steps) {
  int64_t most = 0;
  for (size_t i = 0; i < steps.size(); ++i) most = std::max(most, step_peak_bytes(steps, i));
  return most;
}

double predicted_seconds(absl::Span<const PlanStep> steps, int64_t most_devices,
                         double stop_above_seconds) {
  double seconds = 0;
  for (const PlanStep& step : steps) {
    if (seconds >= stop_above_seconds) break;
    seconds +=
        seconds_of(traffic_of(step, most_devices), PlanStepAccess::rep(step).topology.costs());
  }
  return seconds;
}

}  // namespace tessera::internal
