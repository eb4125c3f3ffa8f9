// SPDX-License-Identifier: Apache-2.0
//
// plan_relayout: from two layouts to the steps between them.
//
// Partial axes fall into those that both layouts have (kept: terms move as they are), those that
// go (reduced) and those that come (added). The order is: slice, reduce, move, expand; without
// partials one move is all. plan_candidates.h finds the steps before the expansion.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/reduce_op.h"
#include "relayout/plan.h"
#include "relayout/plan_candidates.h"
#include "relayout/plan_rep.h"
#include "relayout/plan_step.h"
#include "relayout/sub_axes.h"

namespace tessera {
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

bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

// Whether the result of a reduction depends on the order of its terms.
bool order_shows(ReduceOp op, DType dtype) {
  const bool is_float = is_half(dtype) || dtype == DType::kFloat32 || dtype == DType::kFloat64;
  return is_float && (op == ReduceOp::kSum || op == ReduceOp::kProd || op == ReduceOp::kAvg);
}

// By which parts hosts may add their own terms first; nothing where they may not, or where one host
// or each device by itself has them all. Sums of hosts would be rounded between two steps, and
// averages divided.
std::optional<HostAxes> hosts_of_terms(const Layout& from, const Partials& partials, DType dtype,
                                       const PlanOptions& options) {
  if (options.reduction_order == ReductionOrder::kFlat || partials.reduced.empty()) {
    return std::nullopt;
  }
  const ReduceOp op = from.partial_op();
  if (op == ReduceOp::kAvg || (is_half(dtype) && order_shows(op, dtype))) return std::nullopt;
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
  const int64_t least = std::max(choice.least_peak, int64_t{0});
  return absl::ResourceExhaustedError(absl::StrCat(
      "relayout ", plan.to_string(), " needs ", plan.peak_bytes(),
      " bytes on a device, the memory cap is ", cap, " bytes; the least feasible cap is ", least));
}

Status validate(const Layout& from, const Layout& to, const Shape& shape, DType dtype) {
  TESSERA_RETURN_IF_ERROR(from.check_not_moved_from());
  TESSERA_RETURN_IF_ERROR(to.check_not_moved_from());
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
    TESSERA_RETURN_IF_ERROR(with_context(validate_reduction(layout->partial_op(), dtype),
                                         absl::StrCat("layout ", layout->to_string())));
  }
  return absl::OkStatus();
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
StatusOr<RelayoutPlan> plan_relayout(const Layout& from, LayoutArg to_or, const Shape& shape,
                                     DType dtype, const PlanOptions& options) {
  TESSERA_RETURN_IF_ERROR(to_or);
  const Layout& to = *to_or;
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
  if (candidate_options.hosts.has_value() && internal::order_shows(from.partial_op(), dtype)) {
    // What is faster decides on the order of addition, and must not depend on how the devices of a
    // host are dealt to processes.
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
      choice.least_peak = std::max(choice.least_peak, internal::peak(from, to, tensor, rep->steps));
    }
  }
  for (PlanStep& step : rep->steps) step = internal::with_topology(step, options.topology);
  RelayoutPlan plan(std::move(rep));
  if (cap.has_value()) TESSERA_RETURN_IF_ERROR(internal::validate_cap(plan, choice, *cap));
  return plan;
}

}  // namespace tessera
