// SPDX-License-Identifier: Apache-2.0
//
// What a RelayoutPlan says about itself: bytes, bound, peak, text, hash.
#include "relayout/plan.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/format.h"
#include "relayout/lower_bound.h"
#include "relayout/plan_rep.h"
#include "relayout/plan_step.h"
#include "relayout/shard_grid.h"

namespace tessera {
namespace internal {
namespace {

// Calls fn(device id) for devices of both meshes, the one that holds most among them. Where both
// begin with one device that is this one, whatever the layouts: shard 0 of a dim is a largest one,
// and it holds shard 0 of every dim. Else each device is called, once.
template <class Fn>
void for_each_that_may_hold_most(const Mesh& a, const Mesh& b, Fn fn) {
  if (a.device_at(0) == b.device_at(0)) return fn(*a.device_at(0));
  for (int64_t position = 0; position < a.size(); ++position) fn(*a.device_at(position));
  for (int64_t position = 0; position < b.size(); ++position) {
    const int id = *b.device_at(position);
    if (!a.position_of_device(id).has_value()) fn(id);
  }
}

int64_t received_over(absl::Span<const PlanStep> steps, int device_id) {
  __int128 bytes = 0;
  for (const PlanStep& step : steps) bytes += step.received_bytes(device_id);
  return saturated(bytes);
}

int64_t lower_bound(const RelayoutPlan::Rep& rep) {
  if (rep.steps.empty()) return 0;
  const __int128 elements = least_received_elements(rep.from, rep.goal, rep.reduced, rep.shape);
  return saturated(elements * dtype_size(rep.dtype));
}

// What a device holds while step `i` runs: the source, the target, and what is in between.
__int128 held_during(absl::Span<const PlanStep> steps, size_t i, int device_id, DType dtype) {
  __int128 held = steps[0].old_elements(device_id);
  held += steps[i].new_elements(device_id);
  if (i > 0) held += steps[i].old_elements(device_id);
  return held * dtype_size(dtype);
}

// FNV-1a: a fixed function of the text, unlike absl::Hash, which differs from process to process.
uint64_t text_hash(absl::string_view text) {
  uint64_t hash = 14695981039346656037u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

template <class Fn>
uint64_t once(RelayoutPlan::Rep::Lazy& lazy, Fn compute) {
  std::call_once(lazy.once, [&] { lazy.value = compute(); });
  return lazy.value;
}

}  // namespace

bool same_steps(absl::Span<const PlanStep> a, absl::Span<const PlanStep> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const PlanStep& left, const PlanStep& right) {
                      return left.kind() == right.kind() && left.from() == right.from() &&
                             left.to() == right.to() && left.shape() == right.shape();
                    });
}

int64_t most_received(absl::Span<const PlanStep> steps) {
  if (steps.empty()) return 0;
  // No device receives more than the most of each step; of one step some device receives that.
  int64_t most = 0;
  __int128 bound = 0;
  std::vector<int> devices;
  for (const PlanStep& step : steps) {
    devices.push_back(device_that_receives_most(step));
    bound += step.received_bytes(devices.back());
  }
  for (const int device : devices) most = std::max(most, received_over(steps, device));
  if (most == saturated(bound)) return most;
  const auto look_at = [&](const Mesh& mesh) {
    for (int64_t position = 0; position < mesh.size(); ++position) {
      most = std::max(most, received_over(steps, *mesh.device_at(position)));
    }
  };
  look_at(steps.back().to().mesh());
  const bool one_mesh = steps.front().from().mesh() == steps.back().to().mesh();
  if (!one_mesh) look_at(steps.front().from().mesh());
  return most;
}

std::string step_names(absl::Span<const PlanStep> steps) {
  if (steps.empty()) return "nothing to do";
  return absl::StrJoin(steps, ", ", [](std::string* out, const PlanStep& step) {
    absl::StrAppend(out, step_kind_name(step.kind()));
    if (!step.axes().empty()) absl::StrAppend(out, "{", absl::StrJoin(step.axes(), ","), "}");
  });
}

int64_t peak(const Layout& from, const Layout& to, const Tensor& tensor,
             absl::Span<const PlanStep> steps) {
  __int128 most = 0;
  const ShardGrid source(from, tensor.shape);
  for_each_that_may_hold_most(from.mesh(), to.mesh(), [&](int id) {
    const std::optional<int64_t> position = source.position_of(id);
    if (position.has_value()) {
      const __int128 held = source.elements(*position);
      most = std::max(most, held * dtype_size(tensor.dtype));
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      most = std::max(most, held_during(steps, i, id, tensor.dtype));
    }
  });
  return saturated(most);
}

double predicted_seconds(absl::Span<const PlanStep> steps, const Topology& topology,
                         int64_t most_devices, double stop_above_seconds) {
  double seconds = 0;
  for (const PlanStep& step : steps) {
    if (seconds >= stop_above_seconds) break;
    seconds += seconds_of(traffic_of(step, most_devices), topology.costs());
  }
  return seconds;
}

}  // namespace internal

const Layout& RelayoutPlan::from() const { return rep_->from; }
const Layout& RelayoutPlan::to() const { return rep_->to; }
const Shape& RelayoutPlan::shape() const { return rep_->shape; }
DType RelayoutPlan::dtype() const { return rep_->dtype; }
absl::Span<const PlanStep> RelayoutPlan::steps() const { return rep_->steps; }

int64_t RelayoutPlan::received_bytes(int64_t position) const {
  const std::optional<int> device = rep_->to.mesh().device_at(position);
  return device.has_value() ? internal::received_over(rep_->steps, *device) : 0;
}

int64_t RelayoutPlan::max_received_bytes() const {
  return static_cast<int64_t>(
      internal::once(rep_->max_received, [this] { return internal::most_received(rep_->steps); }));
}

int64_t RelayoutPlan::lower_bound_bytes() const {
  return static_cast<int64_t>(internal::once(rep_->lower_bound, [this] {
    // A direct batch attains the bound: each device receives what it lacks. On small meshes the
    // bound is found by itself all the same, which checks that.
    constexpr int64_t kSmallMesh = int64_t{1} << 16;
    const bool is_direct =
        rep_->steps.size() == 1 && rep_->reduced.empty() && rep_->steps[0].to() == rep_->goal;
    if (is_direct && rep_->goal.mesh().size() > kSmallMesh) return max_received_bytes();
    return internal::lower_bound(*rep_);
  }));
}

int64_t RelayoutPlan::peak_bytes() const {
  return static_cast<int64_t>(internal::once(rep_->peak, [this] {
    return internal::peak(rep_->from, rep_->to, {rep_->shape, rep_->dtype, rep_->topology},
                          rep_->steps);
  }));
}

int64_t RelayoutPlan::step_peak_bytes(size_t step) const {
  if (step >= rep_->steps.size()) return 0;
  __int128 most = 0;
  internal::for_each_that_may_hold_most(rep_->from.mesh(), rep_->to.mesh(), [&](int id) {
    most = std::max(most, internal::held_during(rep_->steps, step, id, rep_->dtype));
  });
  return internal::saturated(most);
}

absl::Duration RelayoutPlan::predicted_time() const {
  return absl::Seconds(internal::predicted_seconds(rep_->steps, rep_->topology));
}

absl::Duration RelayoutPlan::step_predicted_time(size_t step) const {
  if (step >= rep_->steps.size()) return absl::ZeroDuration();
  return absl::Seconds(internal::predicted_seconds({rep_->steps[step]}, rep_->topology));
}

std::vector<Alternative> RelayoutPlan::alternatives() const {
  if (rep_->steps.empty() || !rep_->schedules.empty()) return rep_->schedules;
  if (!rep_->candidates.empty()) {
    const internal::Tensor tensor{rep_->shape, rep_->dtype, rep_->topology};
    std::vector<Alternative> candidates;
    for (std::vector<PlanStep> steps : rep_->candidates) {
      // They were compared without processes.
      for (PlanStep& step : steps) step = internal::with_topology(step, rep_->topology);
      const double seconds = internal::predicted_seconds(steps, rep_->topology);
      candidates.push_back({internal::step_names(steps), absl::Seconds(seconds),
                            internal::most_received(steps),
                            internal::peak(rep_->from, rep_->goal, tensor, steps),
                            candidates.size() == rep_->chosen_candidate});
    }
    return candidates;
  }
  const std::string name = rep_->reduced.empty() ? "direct" : internal::step_names(rep_->steps);
  return {{name, predicted_time(), max_received_bytes(), peak_bytes(), true}};
}

const Topology& RelayoutPlan::topology() const { return rep_->topology; }

std::string RelayoutPlan::explain() const {
  const int64_t tensor_bytes = num_bytes(rep_->shape, rep_->dtype);
  std::string text =
      absl::StrCat("relayout of ", dtype_name(rep_->dtype), " ", shape_to_string(rep_->shape), ", ",
                   format_bytes(tensor_bytes), "\n  from  ", rep_->from.to_string_with_mesh(),
                   "\n  to    ", rep_->to.to_string_with_mesh(), "\n");
  if (rep_->steps.empty()) {
    return text + "  no steps: every device already holds its new box\n";
  }
  for (size_t i = 0; i < rep_->steps.size(); ++i) {
    const PlanStep& step = rep_->steps[i];
    absl::StrAppend(&text, "  ", i + 1, ". ", step.to_string());
    if (step.shape() != rep_->shape) {
      absl::StrAppend(&text, " as ", shape_to_string(step.shape()));
    }
    // Of the only step it is known, or found for good.
    const int64_t received =
        rep_->steps.size() == 1 ? max_received_bytes() : internal::most_received({step});
    if (received == 0) {
      absl::StrAppend(&text, "; local\n");
      continue;
    }
    absl::StrAppend(&text, "; groups of ", step.group_size(), ", receives ", format_bytes(received),
                    "\n");
  }
  const int64_t received = max_received_bytes();
  const int64_t bound = lower_bound_bytes();
  absl::StrAppend(&text, "  a device receives at most ", format_bytes(received),
                  ", the lower bound is ", format_bytes(bound));
  if (bound > 0) {
    absl::StrAppendFormat(&text, " (%.2fx)", static_cast<double>(received) / bound);
  }
  absl::StrAppend(&text, "; it holds at most ", format_bytes(peak_bytes()), "\n");
  return text;
}

std::string RelayoutPlan::to_string() const {
  const bool one_mesh = rep_->from.mesh() == rep_->to.mesh();
  return absl::StrCat(one_mesh ? rep_->from.to_string() : rep_->from.to_string_with_mesh(), " -> ",
                      rep_->to.to_string_with_mesh(), ", ", dtype_name(rep_->dtype), " ",
                      shape_to_string(rep_->shape), ": ", internal::step_names(rep_->steps));
}

uint64_t RelayoutPlan::hash() const {
  return internal::once(rep_->hash, [this] {
    std::string text = absl::StrCat(rep_->from.to_string_with_mesh(), "|", to_string());
    for (const PlanStep& step : rep_->steps) {
      if (rep_->steps.size() == 1) break;  // Follows from the layouts.
      absl::StrAppend(&text, "|", step.to_string(), " ", shape_to_string(step.shape()));
    }
    if (!(rep_->topology == Topology())) absl::StrAppend(&text, "|", rep_->topology.hash());
    return internal::text_hash(text);
  });
}

bool operator==(const RelayoutPlan& a, const RelayoutPlan& b) {
  // Planning is a function of these and the cap, which may only choose another of the schedules.
  return a.rep_ == b.rep_ || (a.from() == b.from() && a.to() == b.to() && a.shape() == b.shape() &&
                              a.dtype() == b.dtype() && a.topology() == b.topology() &&
                              internal::same_steps(a.steps(), b.steps()));
}

}  // namespace tessera
