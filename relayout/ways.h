// SPDX-License-Identifier: Apache-2.0
//
// Ways: the lists of steps that lead a tensor, first its terms and then its value, to where a plan
// wants it, and the choice among them. Internal to relayout/.
//
//   [-] sum{x} -> [-] on {x=4, z=2}, S bytes: the ways to reduce        received      steps
//
//     all-reduce along x, by each copy of the terms (z)                   1.5 S           1
//     reduce-scatter along x to parts for x and z, all-gather them       1.25 S           2
//
// Where devices of several hosts hold terms, by host too: a reduce-scatter along the parts of the
// reduced axes that stay within hosts (host_parts.h), then any way to reduce the rest. All under a
// view of the shape with a dim for each place, where that lets more parts go where the goal wants
// them at once.
//
// All ways are built, and the fastest that keeps the cap is taken. Without reductions there is one:
// a move in the batches that the scheduler finds cheapest.
#ifndef TESSERA_RELAYOUT_WAYS_H_
#define TESSERA_RELAYOUT_WAYS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "layout/layout.h"
#include "relayout/components.h"
#include "relayout/digits.h"
#include "relayout/host_parts.h"
#include "relayout/plan.h"
#include "relayout/plan_step.h"

namespace tessera::internal {

// The partial axes of two layouts: those that both have, those that go and those that come.
struct Partials {
  Parts kept;
  Parts reduced;
  Parts added;
};

using Steps = std::vector<PlanStep>;

// What was chosen, and out of what.
struct Choice {
  Steps steps;
  // See RelayoutPlan::Rep.
  std::vector<Alternative> schedules;
  std::vector<Steps> ways;
  size_t chosen_way = 0;
  int64_t least_peak = 0;  // Of all ways; only known where there is a cap.
};

// What the ways may be.
struct WayOptions {
  std::optional<int64_t> memory_cap_bytes = {};
  // Where each host's terms may be added first: the partial axes that are reduced, by host.
  std::optional<HostParts> hosts = {};
};

class Ways {
 public:
  // The arguments must outlive it. `goal` has the partial axes that are kept.
  Ways(const Layout& from, const Layout& goal, const Partials& partials, const Tensor& tensor,
       const WayOptions& options);

  // The steps from `from` to `goal`. Of the ways to reduce, one that keeps the cap if there is any;
  // of these the fastest, by what some of the devices of a large mesh receive.
  Choice choose() const;

 private:
  // Where a reduction among the devices of each host leads.
  struct HostStart {
    Layout sums;
    std::optional<Layout> cleared;  // Where that places more parts.
    int64_t num_placed;             // Of both reductions.
  };

  // The same way to go on from another layout, or with other partial axes to reduce. These must
  // outlive it, and so must what `before` refers to.
  Ways(const Ways& before, const Layout& from, const Partials& partials);
  std::vector<Steps> all() const;
  std::vector<Steps> by_host() const;
  Layout cleared(const Layout& sums) const;
  bool may_add_by_host() const;
  Partials partials_of_terms() const;
  Partials partials_of_sums() const;
  HostStart start_by_host(const Ways& first, const Parts& left) const;
  int64_t num_placed_by_host() const;
  bool links_are_expensive() const;
  void add_scatters(const Parts& left, std::vector<Steps>& ways) const;
  Steps by_all_reduce() const;
  Steps by_scatter(const Parts& left, int dim) const;
  Steps moves(const Layout& current, std::vector<Alternative>* alternatives = nullptr) const;
  Steps scheduled(const DigitView& view, const Layout& current,
                  std::vector<Alternative>* alternatives) const;
  Choice best_of(std::vector<Steps> ways) const;

  int64_t first_bytes(const Layout& layout) const;
  bool goal_splits_reduced() const;
  Parts not_placed() const;
  Parts copies_of_terms() const;
  int longest_dim() const;
  int64_t num_placed() const;
  std::vector<Parts> refined_dims() const;
  std::vector<Parts> refined_and(const Parts& left) const;
  Layout with_terms(const std::vector<Parts>& dims) const;
  Layout with_kept(const std::vector<Parts>& dims) const;
  Layout arrived(const Layout& layout) const;

  const Layout& source_;  // What the devices hold all the time.
  const Layout& from_;
  const Layout& goal_;
  const Partials& partials_;
  const Tensor& tensor_;
  const WayOptions& options_;
  // Borders of the layouts, and of what is reduced: those of hosts may be in the midst of an axis.
  const Cuts cuts_;
  // The dims of `from`, each split further as the goal has it, as far as the axes for that are
  // free: replicated, or being reduced.
  const std::vector<Parts> refined_;
  std::vector<int> rest_dims_;  // Behind which the parts go that have no other place.
  // Each of these in turn, or the longest alone: the second of two reductions has ways enough.
  bool tries_every_dim_ = true;
};

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_WAYS_H_
