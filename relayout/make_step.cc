// SPDX-License-Identifier: Apache-2.0
//
// Steps of a plan, made from two layouts: what a move turns out to be.
#include "relayout/make_step.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "relayout/plan_step_rep.h"
#include "relayout/pull_routing.h"
#include "relayout/shard_grid.h"

namespace tessera::internal {
namespace {

// The change of the lists of the dims by a move, in common atoms: the common front of each list,
// and the atoms that the move removes and adds behind it.
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

StepKind kind_of_move(const PullRouting& routing, const Difference* change) {
  const Layout& from = routing.from().layout();
  const Layout& to = routing.to().layout();
  if (change != nullptr && change->nothing_goes()) return StepKind::kSlice;
  if (!routing.any_remote()) return StepKind::kSlice;
  if (change != nullptr && change->nothing_comes()) return StepKind::kAllGather;
  if (change != nullptr && is_all_to_all(from, to, *change, routing.from().shape())) {
    return StepKind::kAllToAll;
  }
  return same_grid(from, to) ? StepKind::kPermute : StepKind::kExchange;
}

void set_axes(const Mesh& mesh, const SubAxes& parts, PlanStepRep& rep) {
  const SubAxes ordered = normalised(mesh, parts);
  for (const SubAxis& part : ordered) rep.axes.push_back(sub_axis_name(mesh, part));
  rep.group_digits = digits_of(mesh, ordered);
  rep.group_size = num_values(rep.group_digits);
}

}  // namespace

PlanStep make_move(const Layout& from, const Layout& to, const Tensor& tensor) {
  auto rep = std::make_shared<PlanStepRep>(StepKind::kExchange, from, to, tensor);
  rep->routing.emplace(from, to, tensor.shape, tensor.topology);
  if (from.mesh() == to.mesh()) {
    const Difference change = difference(from, to);
    rep->kind = kind_of_move(*rep->routing, &change);
    set_axes(from.mesh(), change.concerned, *rep);
  } else {
    rep->kind = kind_of_move(*rep->routing, nullptr);
  }
  if (rep->kind == StepKind::kSlice) rep->group_size = 1;
  return PlanStepAccess::step(std::move(rep));
}

PlanStep make_reduction(StepKind kind, const Layout& from, const Layout& to, const SubAxes& reduced,
                        const Tensor& tensor) {
  auto rep = std::make_shared<PlanStepRep>(kind, from, to, tensor);
  rep->op = from.partial_op();
  set_axes(from.mesh(), reduced, *rep);
  return PlanStepAccess::step(std::move(rep));
}

PlanStep make_expansion(const Layout& from, const Layout& to, const SubAxes& added,
                        const Tensor& tensor) {
  auto rep = std::make_shared<PlanStepRep>(StepKind::kExpand, from, to, tensor);
  rep->op = to.partial_op();
  set_axes(to.mesh(), added, *rep);
  rep->group_size = 1;
  // Only the first copy of the value counts in a sum or product; for the other reductions equal
  // terms are the value.
  if (rep->op == ReduceOp::kSum || rep->op == ReduceOp::kProd) {
    const SubAxes split = all_sub_axes(from.dim_axes());
    SubAxes copies;
    for (const SubAxis& part : Cuts(from, to).cut(added)) {
      if (!overlaps_any(part, split)) copies.push_back(part);
    }
    rep->zero_digits = digits_of(to.mesh(), copies);
  }
  return PlanStepAccess::step(std::move(rep));
}

PlanStep with_topology(const PlanStep& step, const Topology& topology) {
  const PlanStepRep& same = PlanStepAccess::rep(step);
  if (same.topology == topology) return step;
  const Tensor tensor{step.shape(), same.dtype, topology};
  if (same.routing.has_value()) return make_move(step.from(), step.to(), tensor);
  auto rep = std::make_shared<PlanStepRep>(same.kind, step.from(), step.to(), tensor);
  rep->op = same.op;
  rep->axes = same.axes;
  rep->group_size = same.group_size;
  rep->group_digits = same.group_digits;
  rep->zero_digits = same.zero_digits;
  return PlanStepAccess::step(std::move(rep));
}

}  // namespace tessera::internal
