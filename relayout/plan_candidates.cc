// SPDX-License-Identifier: Apache-2.0
#include "relayout/plan_candidates.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/time/time.h"
#include "base/check.h"
#include "base/math.h"
#include "relayout/make_step.h"
#include "relayout/schedule.h"
#include "relayout/step_costs.h"

namespace tessera::internal {
namespace {

template <class T>
void append(std::vector<T>& list, std::vector<T> more) {
  for (T& item : more) list.push_back(std::move(item));
}

}  // namespace

PlanCandidates::PlanCandidates(const Layout& from, const Layout& goal, const Partials& partials,
                               const Tensor& tensor, const CandidateOptions& options)
    : source_(from),
      from_(from),
      goal_(goal),
      partials_(partials),
      tensor_(tensor),
      options_(options),
      cuts_(from, from.mesh() == goal.mesh() ? goal : from, partials.reduced),
      refined_(refined_dims()),
      rest_dims_(from.rank()) {
  std::iota(rest_dims_.begin(), rest_dims_.end(), 0);
}

PlanCandidates::PlanCandidates(const PlanCandidates& before, const Layout& from,
                               const Partials& partials)
    : source_(before.source_),
      from_(from),
      goal_(before.goal_),
      partials_(partials),
      tensor_(before.tensor_),
      options_(before.options_),
      cuts_(from, from.mesh() == goal_.mesh() ? goal_ : from, partials.reduced),
      refined_(refined_dims()),
      rest_dims_(before.rest_dims_),
      tries_every_dim_(false) {}

// Without reductions: one move, in the batches that the scheduler finds. With reductions: the
// candidates of flat() and by_host(), each under the view of the shape that places more parts of
// the reduced axes where the goal wants them, and best_of() these.
Choice PlanCandidates::choose() const {
  if (partials_.reduced.empty()) {
    Choice choice;
    choice.steps = moves(from_, &choice.schedules);
    if (options_.memory_cap_bytes.has_value()) {
      choice.least_peak = peak_bytes(choice.steps);
    }
    return choice;
  }
  // Under a view of the shape more parts of the reduction may find the places that the goal wants
  // them in.
  SubAxes borders;
  if (options_.hosts.has_value()) borders = options_.hosts->intra_host;
  const auto view = FactoredView::of_reduction(from_, goal_, tensor_.shape, borders);
  if (!view.has_value()) {
    std::vector<Steps> candidates = flat();
    append(candidates, by_host());
    return best_of(std::move(candidates));
  }
  const Layout from = view->layout(0);
  const Layout goal = view->target();
  const Tensor viewed{view->shape(), tensor_.dtype, tensor_.topology};
  PlanCandidates in_view(from, goal, partials_, viewed, options_);
  in_view.rest_dims_ = view->rest_dims();
  std::vector<Steps> candidates = in_view.num_placed() > num_placed() ? in_view.flat() : flat();
  const bool hosts_place = in_view.num_placed_by_host() > num_placed_by_host();
  append(candidates, hosts_place ? in_view.by_host() : by_host());
  return best_of(std::move(candidates));
}

// Reduces all terms in one level, then moves. Never empty.
std::vector<Steps> PlanCandidates::flat() const {
  std::vector<Steps> candidates;
  if (!goal_splits_reduced()) candidates.push_back(by_all_reduce());
  const bool only_reduces =
      !candidates.empty() && candidates[0].back().kind() == StepKind::kAllReduce;
  SubAxes left = not_placed();
  if (!only_reduces) add_scatters(left, candidates);
  // Copies of a term would all do the same reduction: each does a part of it.
  const SubAxes copies = copies_of_terms();
  left.insert(left.end(), copies.begin(), copies.end());
  if (!copies.empty() && links_are_expensive()) add_scatters(left, candidates);
  TESSERA_CHECK(!candidates.empty(),
                "a scalar is reduced everywhere, anything else can be scattered");
  return candidates;
}

// Reduces each host's terms first, by a reduce-scatter among its devices. Then only the host's sum
// crosses the network, and each device sends a part of it.
std::vector<Steps> PlanCandidates::by_host() const {
  std::vector<Steps> candidates;
  if (!may_add_by_host()) return candidates;
  const SubAxes& near = options_.hosts->intra_host;
  const Partials of_terms = partials_of_terms();
  const Partials of_sums = partials_of_sums();
  const PlanCandidates first(*this, from_, of_terms);
  const auto go_on = [&](const Layout& sums, const Steps& before) {
    for (Steps& rest : PlanCandidates(*this, sums, of_sums).flat()) {
      candidates.push_back(before);
      append(candidates.back(), std::move(rest));
    }
  };
  SubAxes left = first.not_placed();
  const auto add_candidates = [&] {
    const HostStart start = start_by_host(first, left);
    Steps steps = {make_reduction(StepKind::kReduceScatter, from_, start.sums, near, tensor_)};
    go_on(start.sums, steps);
    if (!start.cleared.has_value()) return;
    steps.push_back(make_move(start.sums, *start.cleared, tensor_));
    go_on(*start.cleared, steps);
  };
  add_candidates();
  // Copies of a term on one host would all send its sum.
  const SubAxes copies =
      split_by_host(from_.mesh(), first.copies_of_terms(), tensor_.topology).intra_host;
  left.insert(left.end(), copies.begin(), copies.end());
  if (!copies.empty()) add_candidates();
  return candidates;
}

// `first` adds the terms of each host, with `left` behind the longest dim.
PlanCandidates::HostStart PlanCandidates::start_by_host(const PlanCandidates& first,
                                                        const SubAxes& left) const {
  const Partials of_sums = partials_of_sums();
  HostStart start{first.with_kept(first.refined_and(left, first.longest_dim())), std::nullopt, 0};
  int64_t placed = PlanCandidates(*this, start.sums, of_sums).num_placed();
  const Layout cleared = first.cleared(start.sums);
  const int64_t placed_then = PlanCandidates(*this, cleared, of_sums).num_placed();
  if (placed_then > placed) {
    start.cleared = cleared;
    placed = placed_then;
  }
  start.num_placed = first.num_placed() * placed;
  return start;
}

// The sums of hosts, moved inside the hosts so that they are not split where the goal wants parts
// of the reduction between hosts: [a] sum{node} becomes [-, a] sum{node} for [node, -].
Layout PlanCandidates::cleared(const Layout& sums) const {
  if (!(sums.mesh() == goal_.mesh())) return sums;
  const Cuts cuts(sums, goal_, partials_.reduced);
  if (!cuts.all_aligned()) return sums;
  const auto stays_on_host = [&](const SubAxis& part) {
    return is_intra_host(sums.mesh(), digits_of(sums.mesh(), {part})[0], tensor_.topology);
  };
  // A dim that is split between hosts stays as it is.
  std::vector<SubAxes> dims(sums.rank());
  std::vector<bool> stays(sums.rank(), false);
  SubAxes movable;
  for (int dim = 0; dim < sums.rank(); ++dim) {
    const SubAxes before = cuts.cut(sums.dim_axes()[dim]);
    stays[dim] = !std::all_of(before.begin(), before.end(), stays_on_host);
    SubAxes& after = stays[dim] ? dims[dim] : movable;
    after.insert(after.end(), before.begin(), before.end());
  }
  for (int dim = 0; dim < sums.rank(); ++dim) {
    for (const SubAxis& part : cuts.cut(goal_.dim_axes()[dim])) {
      if (stays[dim] || !contains_sub_axis(movable, part)) break;
      dims[dim].push_back(part);
    }
  }
  SubAxes& longest = dims[longest_dim()];
  const SubAxes placed = all_sub_axes(dims);
  for (const SubAxis& part : movable) {
    if (!contains_sub_axis(placed, part)) longest.push_back(part);
  }
  return with_kept(dims);
}

// Whether sub-axes within hosts can be compared with the axes of the layouts, and there is a dim.
bool PlanCandidates::may_add_by_host() const {
  return options_.hosts.has_value() && from_.rank() > 0 && cuts_.all_aligned();
}

// While hosts add their terms the parts that tell hosts apart stay partial.
Partials PlanCandidates::partials_of_terms() const {
  Partials partials{partials_.kept, options_.hosts->intra_host, {}};
  const SubAxes& far = options_.hosts->inter_host;
  partials.kept.insert(partials.kept.end(), far.begin(), far.end());
  return partials;
}

// The sums of hosts, with what tells the devices of a host apart no longer partial.
Partials PlanCandidates::partials_of_sums() const {
  return {partials_.kept, options_.hosts->inter_host, {}};
}

// How many parts the reduction can leave where the goal wants them.
int64_t PlanCandidates::num_placed() const {
  return num_values(digits_of(from_.mesh(), all_sub_axes(refined_)));
}

// As num_placed(), for both reductions of by_host().
int64_t PlanCandidates::num_placed_by_host() const {
  if (!may_add_by_host()) return 0;
  const Partials of_terms = partials_of_terms();
  const PlanCandidates first(*this, from_, of_terms);
  return start_by_host(first, first.not_placed()).num_placed;
}

// Whether a byte over a link costs more than a byte of the own memory. It does not where devices
// map each other's memory: a second pass over the tensor then costs as much as the first one saves.
bool PlanCandidates::links_are_expensive() const {
  const std::optional<LinkClass> link = tensor_.topology.only_link();
  return !link.has_value() || *link == LinkClass::kNetwork;
}

// Adds candidates that reduce-scatter, with the rest (`left`) behind each of the dims for which
// that makes a difference.
void PlanCandidates::add_scatters(const SubAxes& left, std::vector<Steps>& candidates) const {
  if (left.empty()) {
    candidates.push_back(by_scatter(left, 0));
    return;
  }
  // Where the gather that follows gives everything back, all dims cost the same.
  const bool refines = equivalent(with_kept(refined_), goal_, tensor_.shape);
  const int longest = longest_dim();
  for (const int dim : rest_dims_) {
    const bool tries = tries_every_dim_ && !refines;
    if (tries || dim == longest) candidates.push_back(by_scatter(left, dim));
  }
}

// Moves to the goal, unless everything is there: in one batch or, where links differ, in the
// batches that the scheduler finds cheapest. `alternatives`, where given, gets the schedules
// compared.
Steps PlanCandidates::moves(const Layout& current, std::vector<Alternative>* alternatives) const {
  if (current == goal_ || equivalent(current, goal_, tensor_.shape)) return {};
  if (!tensor_.topology.only_link().has_value()) {
    const std::optional<FactoredView> view =
        FactoredView::create(current, goal_, tensor_.shape, tensor_.topology);
    if (view.has_value() && view->components().size() > 1) {
      return scheduled(*view, current, alternatives);
    }
  }
  return {make_move(current, goal_, tensor_)};
}

Steps PlanCandidates::scheduled(const FactoredView& view, const Layout& current,
                                std::vector<Alternative>* alternatives) const {
  const bool is_source = current == source_;
  const Scheduler::Sizes sizes{first_bytes(current), is_source ? 0 : first_bytes(source_)};
  const Scheduler scheduler(view.components(), sizes, tensor_.topology.costs());
  const Schedule direct = scheduler.direct();
  // Where not even the direct batch keeps the cap nothing does.
  const Schedule cheapest = scheduler.cheapest(options_.memory_cap_bytes).value_or(direct);
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
  Steps steps;
  Batch done = 0;
  for (const Batch batch : cheapest.batches) {
    steps.push_back(make_move(view.layout(done), view.layout(done | batch), viewed));
    done |= batch;
  }
  return steps;
}

// No device holds more than the first: shard 0 of every dim is the largest.
int64_t PlanCandidates::first_bytes(const Layout& layout) const {
  return num_bytes(layout.box(tensor_.shape, 0).sizes, tensor_.dtype);
}

// Slices to the part of each term that the goal needs, adds the parts everywhere, moves the sum.
Steps PlanCandidates::by_all_reduce() const {
  const Layout finer = with_terms(refined_);
  const bool cuts_nothing = equivalent(finer, from_, tensor_.shape);
  const Layout& sliced = cuts_nothing ? from_ : finer;
  const Layout reduced = arrived(with_kept(refined_));
  Steps steps;
  if (!cuts_nothing) steps.push_back(make_move(from_, sliced, tensor_));
  steps.push_back(
      make_reduction(StepKind::kAllReduce, sliced, reduced, partials_.reduced, tensor_));
  append(steps, moves(reduced));
  return steps;
}

// Each device of a group reduces a part of its own, where possible the part that the goal wants
// there; parts that the goal does not place, `left`, go behind dim `dim`.
Steps PlanCandidates::by_scatter(const SubAxes& left, int dim) const {
  const Layout reduced = arrived(with_kept(refined_and(left, dim)));
  Steps steps = {
      make_reduction(StepKind::kReduceScatter, from_, reduced, partials_.reduced, tensor_)};
  append(steps, moves(reduced));
  return steps;
}

// The fastest of those within the cap. If none is, the first one, so that the caller can report the
// least peak of all.
Choice PlanCandidates::best_of(std::vector<Steps> candidates) const {
  Choice choice;
  if (candidates.size() == 1 && !options_.memory_cap_bytes.has_value()) {
    choice.steps = std::move(candidates[0]);
    return choice;
  }
  double least_cost = 0;
  bool best_fits = false;
  for (size_t i = 0; i < candidates.size(); ++i) {
    bool fits = true;
    if (options_.memory_cap_bytes.has_value()) {
      const int64_t needed = peak_bytes(candidates[i]);
      fits = needed <= *options_.memory_cap_bytes;
      choice.least_peak = i == 0 ? needed : std::min(choice.least_peak, needed);
    }
    if (i > 0 && !fits) continue;
    // A candidate that is slower already need not be evaluated to its end.
    const double stop_above_seconds =
        best_fits ? least_cost : std::numeric_limits<double>::infinity();
    const double cost = predicted_seconds(candidates[i], kComparedDevices, stop_above_seconds);
    const bool better = i == 0 || !best_fits || cost < least_cost;
    if (!better) continue;
    choice.chosen_candidate = i;
    least_cost = cost;
    best_fits = fits;
  }
  choice.steps = candidates[choice.chosen_candidate];
  choice.candidates = std::move(candidates);
  return choice;
}

bool PlanCandidates::goal_splits_reduced() const {
  if (!(from_.mesh() == goal_.mesh())) return false;
  const SubAxes parts = all_sub_axes(goal_.dim_axes());
  return std::any_of(parts.begin(), parts.end(),
                     [&](const SubAxis& part) { return overlaps_any(part, partials_.reduced); });
}

// The atoms of the reduced axes that refined_ does not use.
SubAxes PlanCandidates::not_placed() const {
  const SubAxes placed = all_sub_axes(refined_);
  SubAxes result;
  for (const SubAxis& atom : cuts_.cut(partials_.reduced)) {
    if (!overlaps_any(atom, placed)) result.push_back(atom);
  }
  return result;
}

// The sub-axes that tell copies of one term apart, as far as refined_ does not use them.
SubAxes PlanCandidates::copies_of_terms() const {
  SubAxes used(from_.partial_axes().begin(), from_.partial_axes().end());
  for (const SubAxis& part : all_sub_axes(refined_)) {
    if (!overlaps_any(part, from_.partial_axes())) used.push_back(part);
  }
  return complement(from_.mesh(), used);
}

// The dim that is longest on a device under refined_.
int PlanCandidates::longest_dim() const {
  if (rest_dims_.empty()) return 0;
  const Layout layout = with_kept(refined_);
  const auto extent = [&](int dim) {
    return ceil_mul_div(1, tensor_.shape[dim], layout.num_shards(dim));
  };
  int longest = rest_dims_[0];
  for (const int dim : rest_dims_) {
    if (extent(dim) > extent(longest)) longest = dim;
  }
  return longest;
}

// See refined_.
std::vector<SubAxes> PlanCandidates::refined_dims() const {
  std::vector<SubAxes> dims = dims_of(from_);
  if (!(from_.mesh() == goal_.mesh())) return dims;
  const SubAxes reduced = cuts_.cut(partials_.reduced);
  SubAxes busy = all_sub_axes(from_.dim_axes());
  busy.insert(busy.end(), from_.partial_axes().begin(), from_.partial_axes().end());
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    const SubAxes before = cuts_.cut(from_.dim_axes()[dim]);
    const SubAxes after = cuts_.cut(goal_.dim_axes()[dim]);
    if (!is_prefix(before, after)) continue;
    for (size_t i = before.size(); i < after.size(); ++i) {
      if (!contains_sub_axis(reduced, after[i]) && overlaps_any(after[i], busy)) break;
      dims[dim].push_back(after[i]);
    }
  }
  return dims;
}

// With `left` behind dim `dim`.
std::vector<SubAxes> PlanCandidates::refined_and(const SubAxes& left, int dim) const {
  std::vector<SubAxes> dims = refined_;
  if (!left.empty()) dims[dim].insert(dims[dim].end(), left.begin(), left.end());
  return dims;
}

Layout PlanCandidates::with_terms(const std::vector<SubAxes>& dims) const {
  const SubAxes partial(from_.partial_axes().begin(), from_.partial_axes().end());
  return make_layout(from_.mesh(), dims, partial, from_.partial_op());
}
Layout PlanCandidates::with_kept(const std::vector<SubAxes>& dims) const {
  return make_layout(from_.mesh(), dims, partials_.kept, from_.partial_op());
}
// The goal itself where nothing is missing, so that steps join and no empty move is left.
Layout PlanCandidates::arrived(const Layout& layout) const {
  const bool there = layout.mesh() == goal_.mesh() && equivalent(layout, goal_, tensor_.shape);
  return there ? goal_ : layout;
}

}  // namespace tessera::internal
