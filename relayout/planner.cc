// SPDX-License-Identifier: Apache-2.0
//
// plan_relayout: from two layouts to the steps between them.
//
// Partial axes fall into those that both layouts have (kept: terms move as they are), those that
// go (reduced) and those that come (added). The order is: slice, reduce, move, expand; without
// partials one move is all.
//
//   [-] sum{x} -> [-] on {x=4, z=2}, S bytes: the ways to reduce        received      steps
//
//     all-reduce along x, by each copy of the terms (z)                   1.5 S           1
//     reduce-scatter along x to parts for x and z, all-gather them       1.25 S           2
//
// All ways are built, and the fastest that keeps the cap is taken.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/math.h"
#include "base/reduce_op.h"
#include "relayout/components.h"
#include "relayout/digits.h"
#include "relayout/plan.h"
#include "relayout/plan_rep.h"
#include "relayout/plan_step.h"
#include "relayout/schedule.h"

namespace tessera {
namespace internal {
namespace {

struct Partials {
  Parts kept;
  Parts reduced;
  Parts added;
};

Partials split_partials(const Layout& from, const Layout& to) {
  const bool comparable = from.mesh() == to.mesh() && from.partial_op() == to.partial_op();
  if (!comparable || !from.is_partial() || !to.is_partial()) {
    return {{},
            {from.partial_axes().begin(), from.partial_axes().end()},
            {to.partial_axes().begin(), to.partial_axes().end()}};
  }
  const Cuts cuts(from, to);
  const Parts before = cuts.cut(from.partial_axes());
  const Parts after = cuts.cut(to.partial_axes());
  Partials result;
  for (const SubAxis& part : before) {
    (contains_part(after, part) ? result.kept : result.reduced).push_back(part);
  }
  for (const SubAxis& part : after) {
    if (!contains_part(before, part)) result.added.push_back(part);
  }
  return result;
}

std::vector<Parts> dims_of(const Layout& layout) {
  return {layout.dim_axes().begin(), layout.dim_axes().end()};
}

// Where the tensor must be before the expansion: under `to` without the axes added. A dim that is
// only split further along axes added may stay so: its parts, with the identity elsewhere, are
// terms. Not for avg, where the parts would have to be scaled.
Layout goal_before_expansion(const Layout& from, const Layout& to, const Partials& partials) {
  std::vector<Parts> dims = dims_of(to);
  const bool absorbs =
      !partials.added.empty() && from.mesh() == to.mesh() && to.partial_op() != ReduceOp::kAvg;
  if (absorbs) {
    const Cuts cuts(from, to);
    const Parts added = cuts.cut(partials.added);
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      const Parts before = cuts.cut(from.dim_axes()[dim]);
      const Parts after = cuts.cut(to.dim_axes()[dim]);
      if (!is_prefix(after, before)) continue;
      const bool only_added =
          std::all_of(before.begin() + after.size(), before.end(),
                      [&](const SubAxis& part) { return contains_part(added, part); });
      if (only_added) dims[dim] = from.dim_axes()[dim];
    }
  }
  return make_layout(to.mesh(), dims, partials.kept, to.partial_op());
}

// What was chosen, and out of what.
struct Choice {
  std::vector<PlanStep> steps;
  // See RelayoutPlan::Rep.
  std::vector<Alternative> schedules;
  std::vector<std::vector<PlanStep>> ways;
  size_t chosen_way = 0;
  int64_t least_peak = 0;  // Of all ways; only known where there is a cap.
};

class Planner {
 public:
  Planner(const Layout& from, const Layout& goal, const Partials& partials, const Tensor& tensor,
          std::optional<int64_t> memory_cap_bytes)
      : from_(from), goal_(goal), partials_(partials), tensor_(tensor), cap_(memory_cap_bytes) {}

  // The steps from `from` to `goal`. Of the ways to reduce, one that keeps the cap if there is any;
  // of these the fastest, by what some of the devices of a large mesh receive.
  Choice choose() const {
    if (partials_.reduced.empty()) {
      Choice choice;
      choice.steps = moves(from_, &choice.schedules);
      if (cap_.has_value()) choice.least_peak = peak(from_, goal_, tensor_, choice.steps);
      return choice;
    }
    return best_of(ways());
  }

 private:
  // The ways to reduce and then move. Never empty.
  std::vector<std::vector<PlanStep>> ways() const {
    std::vector<std::vector<PlanStep>> ways;
    if (!goal_splits_reduced()) ways.push_back(by_all_reduce());
    const bool only_reduces = !ways.empty() && ways[0].back().kind() == StepKind::kAllReduce;
    Parts left = not_placed();
    if (!only_reduces) add_scatters(left, ways);
    // Copies of a term would all do the same reduction: each does a part of it.
    const Parts copies = copies_of_terms();
    left.insert(left.end(), copies.begin(), copies.end());
    if (!copies.empty() && links_are_dear()) add_scatters(left, ways);
    TESSERA_CHECK(!ways.empty(), "a scalar is reduced everywhere, anything else can be scattered");
    return ways;
  }

  // Whether bytes over links cost more than bytes of the own memory. They do not where devices map
  // each other's memory: there a second pass over the tensor costs what the first one saves.
  bool links_are_dear() const {
    const std::optional<LinkClass> link = tensor_.topology.only_link();
    return !link.has_value() || *link == LinkClass::kNetwork;
  }

  // By a reduce-scatter with what is left behind each of the dims for which it makes a difference.
  void add_scatters(const Parts& left, std::vector<std::vector<PlanStep>>& ways) const {
    if (left.empty()) {
      ways.push_back(by_scatter(left, 0));
      return;
    }
    // Where the gather that follows gives everything back, all dims cost the same.
    const bool refines = equivalent(with_kept(refined_dims()), goal_, tensor_.shape);
    const int longest = longest_dim();
    for (int dim = 0; dim < from_.rank(); ++dim) {
      if (!refines || dim == longest) ways.push_back(by_scatter(left, dim));
    }
  }

  // To the goal, unless everything is there: in one batch or, where links differ, in those that the
  // scheduler finds cheapest. `alternatives`, where given, gets the schedules compared.
  std::vector<PlanStep> moves(const Layout& current,
                              std::vector<Alternative>* alternatives = nullptr) const {
    if (current == goal_ || equivalent(current, goal_, tensor_.shape)) return {};
    if (!tensor_.topology.only_link().has_value()) {
      const std::optional<DigitView> view =
          DigitView::create(current, goal_, tensor_.shape, tensor_.topology);
      if (view.has_value() && view->components().size() > 1) {
        return scheduled(*view, current, alternatives);
      }
    }
    return {make_move(current, goal_, tensor_)};
  }

  std::vector<PlanStep> scheduled(const DigitView& view, const Layout& current,
                                  std::vector<Alternative>* alternatives) const {
    const bool is_source = current == from_;
    const Scheduler::Sizes sizes{first_bytes(current), is_source ? 0 : first_bytes(from_)};
    const Scheduler scheduler(view.components(), sizes, tensor_.topology.costs());
    const Schedule direct = scheduler.direct();
    // Where not even the direct batch keeps the cap nothing does.
    const Schedule cheapest = scheduler.cheapest(cap_).value_or(direct);
    if (alternatives != nullptr) {
      const std::pair<const char*, Schedule> named[] = {
          {"direct", direct},
          {"far_links_first", scheduler.far_links_first()},
          {"near_links_first", scheduler.near_links_first()},
          {"cheapest", cheapest}};
      bool chosen = false;
      for (const auto& [name, schedule] : named) {
        const bool same = !chosen && schedule.batches == cheapest.batches;
        chosen |= same;
        if (same || schedule.batches != cheapest.batches) {
          alternatives->push_back({name, absl::Seconds(schedule.seconds), schedule.received_bytes,
                                   schedule.peak_bytes, same});
        }
      }
    }
    if (cheapest.batches.size() == 1) return {make_move(current, goal_, tensor_)};
    const Tensor viewed{view.shape(), tensor_.dtype, tensor_.topology};
    std::vector<PlanStep> steps;
    Batch done = 0;
    for (const Batch batch : cheapest.batches) {
      steps.push_back(make_move(view.layout(done), view.layout(done | batch), viewed));
      done |= batch;
    }
    return steps;
  }

  // No device holds more than the first: shard 0 of every dim is the largest.
  int64_t first_bytes(const Layout& layout) const {
    return layout.box(tensor_.shape, 0).num_elements() * dtype_size(tensor_.dtype);
  }

  // Slices to what the goal needs of each term, adds them everywhere, moves the sum.
  std::vector<PlanStep> by_all_reduce() const {
    const Layout finer = with_terms(refined_dims());
    const bool cuts_nothing = equivalent(finer, from_, tensor_.shape);
    const Layout& sliced = cuts_nothing ? from_ : finer;
    const Layout reduced = arrived(with_kept(refined_dims()));
    std::vector<PlanStep> steps;
    if (!cuts_nothing) steps.push_back(make_move(from_, sliced, tensor_));
    steps.push_back(
        make_reduction(StepKind::kAllReduce, sliced, reduced, partials_.reduced, tensor_));
    append(steps, moves(reduced));
    return steps;
  }

  // Each device of a group reduces a part of its own, where possible the one that the goal wants
  // there; what the goal does not place, `left`, goes behind dim `dim`.
  std::vector<PlanStep> by_scatter(const Parts& left, int dim) const {
    std::vector<Parts> dims = refined_dims();
    if (!left.empty()) dims[dim].insert(dims[dim].end(), left.begin(), left.end());
    const Layout reduced = arrived(with_kept(dims));
    std::vector<PlanStep> steps = {
        make_reduction(StepKind::kReduceScatter, from_, reduced, partials_.reduced, tensor_)};
    append(steps, moves(reduced));
    return steps;
  }

  Choice best_of(std::vector<std::vector<PlanStep>> ways) const {
    Choice choice;
    if (ways.size() == 1 && !cap_.has_value()) {
      choice.steps = std::move(ways[0]);
      return choice;
    }
    double least_cost = 0;
    bool best_fits = false;
    for (size_t i = 0; i < ways.size(); ++i) {
      const double cost = seconds_of_way(ways[i]);
      const int64_t way_peak = cap_.has_value() ? peak(from_, goal_, tensor_, ways[i]) : 0;
      const bool fits = !cap_.has_value() || way_peak <= *cap_;
      choice.least_peak = i == 0 ? way_peak : std::min(choice.least_peak, way_peak);
      const bool better = i == 0 || (fits && (!best_fits || cost < least_cost));
      if (!better) continue;
      choice.chosen_way = i;
      least_cost = cost;
      best_fits = fits;
    }
    choice.steps = ways[choice.chosen_way];
    choice.ways = std::move(ways);
    return choice;
  }

  // Where all links are alike, by the device that receives most over all steps; another device may
  // be that in each of them.
  double seconds_of_way(const std::vector<PlanStep>& steps) const {
    const std::optional<LinkClass> link = tensor_.topology.only_link();
    if (!link.has_value()) return predicted_seconds(steps, tensor_.topology, kComparedDevices);
    const LinkCost cost = tensor_.topology.cost(*link);
    const auto remote = std::count_if(steps.begin(), steps.end(), [](const PlanStep& step) {
      return step.kind() != StepKind::kSlice;
    });
    return static_cast<double>(remote) * cost.latency_s +
           static_cast<double>(most_received(steps, kComparedDevices)) * cost.seconds_per_byte;
  }

  bool goal_splits_reduced() const {
    if (!(from_.mesh() == goal_.mesh())) return false;
    const Parts parts = all_dim_parts(goal_);
    return std::any_of(parts.begin(), parts.end(),
                       [&](const SubAxis& part) { return overlaps_any(part, partials_.reduced); });
  }

  // The atoms of the reduced axes that refined_dims() does not use.
  Parts not_placed() const {
    const Parts placed = all_of(refined_dims());
    Parts atoms = partials_.reduced;
    if (from_.mesh() == goal_.mesh()) atoms = Cuts(from_, goal_).cut(atoms);
    Parts result;
    for (const SubAxis& atom : atoms) {
      if (!overlaps_any(atom, placed)) result.push_back(atom);
    }
    return result;
  }

  // What tells copies of one term apart, as far as refined_dims() does not use it.
  Parts copies_of_terms() const {
    Parts used(from_.partial_axes().begin(), from_.partial_axes().end());
    for (const SubAxis& part : all_of(refined_dims())) {
      if (!overlaps_any(part, from_.partial_axes())) used.push_back(part);
    }
    return complement(from_.mesh(), used);
  }

  static Parts all_of(const std::vector<Parts>& dims) {
    Parts all;
    for (const Parts& parts : dims) all.insert(all.end(), parts.begin(), parts.end());
    return all;
  }

  // The dim that is longest on a device under refined_dims().
  int longest_dim() const {
    const Layout layout = with_kept(refined_dims());
    const auto extent = [&](int dim) {
      return ceil_mul_div(1, tensor_.shape[dim], layout.num_shards(dim));
    };
    int longest = 0;
    for (int dim = 1; dim < layout.rank(); ++dim) {
      if (extent(dim) > extent(longest)) longest = dim;
    }
    return longest;
  }

  // The dims of `from`, each split further as the goal has it, as far as the axes for that are
  // free: replicated, or being reduced.
  std::vector<Parts> refined_dims() const {
    std::vector<Parts> dims = dims_of(from_);
    if (!(from_.mesh() == goal_.mesh())) return dims;
    const Cuts cuts(from_, goal_);
    const Parts reduced = cuts.cut(partials_.reduced);
    Parts busy = all_dim_parts(from_);
    busy.insert(busy.end(), from_.partial_axes().begin(), from_.partial_axes().end());
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      const Parts before = cuts.cut(from_.dim_axes()[dim]);
      const Parts after = cuts.cut(goal_.dim_axes()[dim]);
      if (!is_prefix(before, after)) continue;
      for (size_t i = before.size(); i < after.size(); ++i) {
        if (!contains_part(reduced, after[i]) && overlaps_any(after[i], busy)) break;
        dims[dim].push_back(after[i]);
      }
    }
    return dims;
  }

  Layout with_terms(const std::vector<Parts>& dims) const {
    const Parts partial(from_.partial_axes().begin(), from_.partial_axes().end());
    return make_layout(from_.mesh(), dims, partial, from_.partial_op());
  }
  Layout with_kept(const std::vector<Parts>& dims) const {
    return make_layout(from_.mesh(), dims, partials_.kept, from_.partial_op());
  }
  // The goal itself where nothing is missing, so that steps join and no empty move is left.
  Layout arrived(const Layout& layout) const {
    const bool there = layout.mesh() == goal_.mesh() && equivalent(layout, goal_, tensor_.shape);
    return there ? goal_ : layout;
  }

  static void append(std::vector<PlanStep>& steps, std::vector<PlanStep> more) {
    for (PlanStep& step : more) steps.push_back(std::move(step));
  }

  const Layout& from_;
  const Layout& goal_;
  const Partials& partials_;
  const Tensor& tensor_;
  std::optional<int64_t> cap_;
};

Status validate_devices(const Mesh& mesh, const Topology& topology) {
  if (!topology.num_devices().has_value()) return absl::OkStatus();
  for (int id : mesh.device_ids()) {
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
  if (from.rank() != to.rank()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout ", to.to_string(), " has ", to.rank(), " dims, the tensor under ",
                     from.to_string(), " has ", from.rank(), "; relayout keeps the rank"));
  }
  TESSERA_RETURN_IF_ERROR(from.validate_shape(shape));
  for (const Layout* layout : {&from, &to}) {
    if (!layout->is_partial()) continue;
    TESSERA_RETURN_IF_ERROR(with_context(validate_reduction(layout->partial_op(), dtype),
                                         absl::StrCat("layout ", layout->to_string())));
  }
  Shape bytes = shape;
  bytes.push_back(dtype_size(dtype));
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  if (!empty && !checked_product(bytes).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape ", shape_to_string(shape), " of ", dtype_name(dtype),
                     " has more than 2^63 - 1 bytes; give it fewer elements"));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace internal

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
  const internal::Tensor tensor{shape, dtype, options.topology};
  rep->goal = internal::goal_before_expansion(from, to, partials);
  rep->reduced = partials.reduced;
  std::optional<int64_t> cap = options.memory_cap_bytes;
  internal::Choice choice = internal::Planner(from, rep->goal, partials, tensor, cap).choose();
  rep->steps = std::move(choice.steps);
  rep->schedules = std::move(choice.schedules);
  rep->ways = std::move(choice.ways);
  rep->chosen_way = choice.chosen_way;
  if (!partials.added.empty()) {
    rep->steps.push_back(internal::make_expansion(rep->goal, to, partials.added, tensor));
    if (cap.has_value()) {
      choice.least_peak = std::max(choice.least_peak, internal::peak(from, to, tensor, rep->steps));
    }
  }
  RelayoutPlan plan(std::move(rep));
  if (cap.has_value()) TESSERA_RETURN_IF_ERROR(internal::validate_cap(plan, choice, *cap));
  return plan;
}

}  // namespace tessera
