// SPDX-License-Identifier: Apache-2.0
//
// plan_relayout: from two layouts to the steps between them; and the numbers and texts of a
// RelayoutPlan: bytes, bound, peak, text, hash.
//
// Partial axes are kept (both layouts have them: terms move as they are), reduced (only the old
// layout has them) or added (only the new layout has them). The order is: slice, reduce, move,
// expand; without partials one move is all. plan_candidates.h finds the steps before the expansion.
#include "relayout/plan.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/format.h"
#include "base/math.h"
#include "base/reduce_op.h"
#include "base/stable_hash.h"
#include "relayout/lower_bound.h"
#include "relayout/make_step.h"
#include "relayout/plan_candidates.h"
#include "relayout/step_costs.h"
#include "relayout/sub_axes.h"

namespace tessera {

// Immutable once planned, except for numbers that cost O(devices): each is computed when it is
// first asked for, by one thread.
struct RelayoutPlan::Rep {
  Rep(const Layout& from, const Layout& to, Shape shape, DType dtype)
      : from(from), to(to), goal(to), shape(std::move(shape)), dtype(dtype) {}

  Layout from;
  Layout to;
  Layout goal;                // Where the tensor is before its expansion; `to` without one.
  internal::SubAxes reduced;  // The partial axes of `from` that are reduced.
  Shape shape;
  DType dtype;
  std::vector<PlanStep> steps;
  Topology topology;
  // The alternatives; both empty where only one plan was looked at. Schedules of moves are stored
  // with their numbers; the numbers of candidates that reduce are computed on demand.
  std::vector<Alternative> schedules;
  std::vector<std::vector<PlanStep>> candidates;
  size_t chosen_candidate = 0;

  // A number that is computed once.
  struct Lazy {
    std::once_flag once;
    uint64_t value = 0;
  };
  mutable Lazy max_received;
  mutable Lazy lower_bound;
  mutable Lazy peak;
  mutable Lazy hash;
};

namespace internal {
namespace {

Partials split_partials(const Layout& from, const Layout& to) {
  const bool comparable = from.mesh() == to.mesh() && from.partial_op() == to.partial_op();
  if (!comparable || !from.is_partial() || !to.is_partial()) {
    return {{},
            {from.partial_axes().begin(), from.partial_axes().end()},
            {to.partial_axes().begin(), to.partial_axes().end()}};
  }
  const Cuts cuts(from, to);
  const SubAxes before = cuts.cut(from.partial_axes());
  const SubAxes after = cuts.cut(to.partial_axes());
  Partials result;
  for (const SubAxis& part : before) {
    (contains_sub_axis(after, part) ? result.kept : result.reduced).push_back(part);
  }
  for (const SubAxis& part : after) {
    if (!contains_sub_axis(before, part)) result.added.push_back(part);
  }
  return result;
}

// Where the tensor must be before the expansion: under `to` without the axes added. A dim that is
// only split further along axes added may stay so: its parts, with the identity elsewhere, are
// terms. Not for avg, where the parts would have to be scaled.
Layout goal_before_expansion(const Layout& from, const Layout& to, const Partials& partials) {
  std::vector<SubAxes> dims = dims_of(to);
  const bool absorbs =
      !partials.added.empty() && from.mesh() == to.mesh() && to.partial_op() != ReduceOp::kAvg;
  if (absorbs) {
    const Cuts cuts(from, to);
    const SubAxes added = cuts.cut(partials.added);
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      const SubAxes before = cuts.cut(from.dim_axes()[dim]);
      const SubAxes after = cuts.cut(to.dim_axes()[dim]);
      if (!is_prefix(after, before)) continue;
      const bool only_added =
          std::all_of(before.begin() + after.size(), before.end(),
                      [&](const SubAxis& part) { return contains_sub_axis(added, part); });
      if (only_added) dims[dim] = from.dim_axes()[dim];
    }
  }
  return make_layout(to.mesh(), dims, partials.kept, to.partial_op());
}

// Whether the result of a reduction depends on the order of its terms.
bool order_shows(ReduceOp op, DType dtype) {
  return is_floating_point(dtype) &&
         (op == ReduceOp::kSum || op == ReduceOp::kProd || op == ReduceOp::kAvg);
}

// By which parts hosts may add their own terms first; nothing where they may not, or where one host
// or each device by itself has them all. Sums of hosts would be rounded between two steps, and
// averages divided.
std::optional<HostAxes> hosts_of_terms(const Layout& from, const Partials& partials, DType dtype,
                                       const PlanOptions& options) {
  if (options.reduction_order == ReductionOrder::kFlat || partials.reduced.empty()) {
    return std::nullopt;
  }
  if (!may_add_by_host(*from.partial_op(), dtype)) return std::nullopt;
  return terms_by_host(from.mesh(), partials.reduced, options.topology);
}

Status validate_devices(const Mesh& mesh, const Topology& topology) {
  if (!topology.num_devices().has_value()) return absl::OkStatus();
  for (int64_t position = 0; position < mesh.size(); ++position) {
    const int id = *mesh.device_at(position);
    if (id < *topology.num_devices()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "mesh ", axes_to_string(mesh.axes()), " has device ", id, ", the topology lists ",
        *topology.num_devices(), " devices; give it one with all devices of the mesh"));
  }
  return absl::OkStatus();
}

Status validate_cap(const RelayoutPlan& plan, const Choice& choice, int64_t cap) {
  if (plan.steps().empty() || plan.peak_bytes() <= cap) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("relayout ", plan.to_string(), " needs ", plan.peak_bytes(),
                   " bytes on a device, the memory cap is ", cap,
                   " bytes; the least feasible cap is ", choice.least_peak));
}

Status validate(const Layout& from, const Layout& to, const Shape& shape, DType dtype) {
  TESSERA_RETURN_IF_ERROR(check_ranks(from, to));
  for (const Layout* layout : {&from, &to}) {
    const Mesh& mesh = layout->mesh();
    if (mesh.size() <= kMaxPlannedDevices) continue;
    return absl::InvalidArgumentError(absl::StrCat("mesh ", axes_to_string(mesh.axes()), " has ",
                                                   mesh.size(),
                                                   " devices; relayouts are planned for at most ",
                                                   kMaxPlannedDevices, ", use a smaller mesh"));
  }
  TESSERA_RETURN_IF_ERROR(from.validate_shape(shape));
  TESSERA_RETURN_IF_ERROR(validate_shape(shape, dtype));
  for (const Layout* layout : {&from, &to}) {
    if (!layout->is_partial()) continue;
    TESSERA_RETURN_IF_ERROR(with_context(validate_reduction(*layout->partial_op(), dtype),
                                         absl::StrCat("layout ", layout->to_string())));
  }
  return absl::OkStatus();
}

int64_t lower_bound(const RelayoutPlan::Rep& rep) {
  if (rep.steps.empty()) return 0;
  const __int128 elements = least_received_elements(rep.from, rep.goal, rep.reduced, rep.shape);
  return saturated(elements * dtype_size(rep.dtype));
}

template <class Fn>
uint64_t once(RelayoutPlan::Rep::Lazy& lazy, Fn compute) {
  std::call_once(lazy.once, [&] { lazy.value = compute(); });
  return lazy.value;
}

bool same_steps(absl::Span<const PlanStep> a, absl::Span<const PlanStep> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const PlanStep& left, const PlanStep& right) {
                      return left.kind() == right.kind() && left.from() == right.from() &&
                             left.to() == right.to() && left.shape() == right.shape();
                    });
}

// "reduce_scatter{x}, all_gather{y}".
std::string step_names(absl::Span<const PlanStep> steps) {
  if (steps.empty()) return "nothing to do";
  return absl::StrJoin(steps, ", ", [](std::string* out, const PlanStep& step) {
    absl::StrAppend(out, step_kind_name(step.kind()));
    if (!step.axes().empty()) absl::StrAppend(out, "{", absl::StrJoin(step.axes(), ","), "}");
  });
}

}  // namespace
}  // namespace internal

Status check_ranks(const Layout& from, const Layout& to) {
  if (from.rank() == to.rank()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("relayout to ", to.to_string(), ": the layout has ", to.rank(),
                   to.rank() == 1 ? " dim" : " dims", ", the tensor under ", from.to_string(),
                   " has ", from.rank(), "; relayout keeps the rank"));
}

// In this order: validate; return no steps if no value moves; split the partial axes into those
// that stay, are reduced and are added; let PlanCandidates find the steps to the goal without the
// added ones; append the expansion, which is local; check the cap.
StatusOr<RelayoutPlan> plan_relayout(const Layout& from, const LayoutArg& to_arg,
                                     const Shape& shape, DType dtype, const PlanOptions& options) {
  if (!from.valid()) return internal::empty_handle("plan_relayout()", "Layout");
  TESSERA_ASSIGN_OR_RETURN(const Layout to, to_arg.resolve(from.mesh()));
  TESSERA_RETURN_IF_ERROR(internal::validate(from, to, shape, dtype));
  TESSERA_RETURN_IF_ERROR(internal::validate_devices(from.mesh(), options.topology));
  TESSERA_RETURN_IF_ERROR(internal::validate_devices(to.mesh(), options.topology));
  auto rep = std::make_shared<RelayoutPlan::Rep>(from, to, shape, dtype);
  rep->topology = options.topology;
  if (from == to || equivalent(from, to, shape)) return RelayoutPlan(std::move(rep));

  const internal::Partials partials = internal::split_partials(from, to);
  internal::Tensor tensor{shape, dtype, options.topology};
  rep->goal = internal::goal_before_expansion(from, to, partials);
  rep->reduced = partials.reduced;
  const std::optional<int64_t> cap = options.memory_cap_bytes;
  internal::CandidateOptions candidate_options{
      cap, internal::hosts_of_terms(from, partials, dtype, options)};
  if (candidate_options.hosts.has_value() && internal::order_shows(*from.partial_op(), dtype)) {
    // The choice of the faster plan decides on the order of addition, and must not depend on how
    // the devices of a host are dealt to processes.
    tensor.topology = options.topology.without_processes();
  }
  internal::Choice choice =
      internal::PlanCandidates(from, rep->goal, partials, tensor, candidate_options).choose();
  rep->steps = std::move(choice.steps);
  rep->schedules = std::move(choice.schedules);
  rep->candidates = std::move(choice.candidates);
  rep->chosen_candidate = choice.chosen_candidate;
  if (!partials.added.empty()) {
    rep->steps.push_back(internal::make_expansion(rep->goal, to, partials.added, tensor));
    if (cap.has_value()) {
      choice.least_peak = std::max(choice.least_peak, internal::peak_bytes(rep->steps));
    }
  }
  for (PlanStep& step : rep->steps) step = internal::with_topology(step, options.topology);
  RelayoutPlan plan(std::move(rep));
  if (cap.has_value()) TESSERA_RETURN_IF_ERROR(internal::validate_cap(plan, choice, *cap));
  return plan;
}

const Layout& RelayoutPlan::from() const { return rep_->from; }
const Layout& RelayoutPlan::to() const { return rep_->to; }
const Shape& RelayoutPlan::shape() const { return rep_->shape; }
DType RelayoutPlan::dtype() const { return rep_->dtype; }
absl::Span<const PlanStep> RelayoutPlan::steps() const { return rep_->steps; }

int64_t RelayoutPlan::received_bytes(int64_t position) const {
  const std::optional<int> device = rep_->to.mesh().device_at(position);
  return device.has_value() ? internal::received_bytes(rep_->steps, *device) : 0;
}

int64_t RelayoutPlan::max_received_bytes() const {
  return static_cast<int64_t>(internal::once(
      rep_->max_received, [this] { return internal::max_received_bytes(rep_->steps); }));
}

int64_t RelayoutPlan::lower_bound_bytes() const {
  return static_cast<int64_t>(internal::once(rep_->lower_bound, [this] {
    // A direct batch attains the bound: each device receives exactly the elements that it lacks. On
    // small meshes the bound is computed separately all the same, which checks this claim.
    constexpr int64_t kSmallMesh = int64_t{1} << 16;
    const bool is_direct =
        rep_->steps.size() == 1 && rep_->reduced.empty() && rep_->steps[0].to() == rep_->goal;
    if (is_direct && rep_->goal.mesh().size() > kSmallMesh) return max_received_bytes();
    return internal::lower_bound(*rep_);
  }));
}

int64_t RelayoutPlan::peak_bytes() const {
  return static_cast<int64_t>(internal::once(rep_->peak, [this] {
    // No device holds more than the first: shard 0 of every dim is a largest one.
    if (rep_->steps.empty()) return num_bytes(rep_->from.box(rep_->shape, 0).sizes, rep_->dtype);
    return internal::peak_bytes(rep_->steps);
  }));
}

int64_t RelayoutPlan::step_peak_bytes(size_t step) const {
  if (step >= rep_->steps.size()) return 0;
  return internal::step_peak_bytes(rep_->steps, step);
}

absl::Duration RelayoutPlan::predicted_time() const {
  return absl::Seconds(internal::predicted_seconds(rep_->steps));
}

absl::Duration RelayoutPlan::step_predicted_time(size_t step) const {
  if (step >= rep_->steps.size()) return absl::ZeroDuration();
  return absl::Seconds(internal::predicted_seconds({rep_->steps[step]}));
}

std::vector<Alternative> RelayoutPlan::alternatives() const {
  if (rep_->steps.empty() || !rep_->schedules.empty()) return rep_->schedules;
  if (!rep_->candidates.empty()) {
    std::vector<Alternative> candidates;
    for (std::vector<PlanStep> steps : rep_->candidates) {
      // They were compared without processes.
      for (PlanStep& step : steps) step = internal::with_topology(step, rep_->topology);
      const double seconds = internal::predicted_seconds(steps);
      candidates.push_back({internal::step_names(steps), absl::Seconds(seconds),
                            internal::max_received_bytes(steps), internal::peak_bytes(steps),
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
    // The bytes of a single step are known, or found for good.
    const int64_t received =
        rep_->steps.size() == 1 ? max_received_bytes() : internal::max_received_bytes({step});
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
    return stable_hash(text);
  });
}

bool operator==(const RelayoutPlan& a, const RelayoutPlan& b) {
  // Planning is a function of these and the cap, which may only choose another of the schedules.
  return a.rep_ == b.rep_ || (a.from() == b.from() && a.to() == b.to() && a.shape() == b.shape() &&
                              a.dtype() == b.dtype() && a.topology() == b.topology() &&
                              internal::same_steps(a.steps(), b.steps()));
}

}  // namespace tessera
