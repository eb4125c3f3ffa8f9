// SPDX-License-Identifier: Apache-2.0
//
// PlanCandidates: the lists of steps that lead a tensor, first its terms and then its value, to the
// goal of a plan, and the choice among them. Internal to relayout/.
//
//   [-] sum{x} -> [-] on {x=4, z=2}, S bytes: candidates                received      steps
//
//     all-reduce along x, by each copy of the terms (z)                   1.5 S           1
//     reduce-scatter along x to parts for x and z, all-gather them       1.25 S           2
//
// Where devices of several hosts hold terms, there are also candidates by host: a reduce-scatter
// along the sub-axes of the reduced axes that stay within hosts (host_axes.h), then any reduction
// of the rest. Each candidate is made under a view of the shape with a dim for each place
// (factored_view.h), where that view puts more sub-axes at their goal at once.
//
// All candidates are built, and the fastest that keeps the cap is chosen. Without reductions there
// is one candidate: a move in the batches that the scheduler finds cheapest.
#ifndef TESSERA_RELAYOUT_PLAN_CANDIDATES_H_
#define TESSERA_RELAYOUT_PLAN_CANDIDATES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "layout/layout.h"
#include "relayout/alternative.h"
#include "relayout/factored_view.h"
#include "relayout/host_axes.h"
#include "relayout/plan_step.h"
#include "relayout/sub_axes.h"
#include "relayout/tensor.h"

namespace tessera::internal {

// The partial axes of two layouts: of both, of the old one alone, and of the new one alone.
struct Partials {
  SubAxes kept;
  SubAxes reduced;
  SubAxes added;
};

using Steps = std::vector<PlanStep>;

// The chosen steps, and the alternatives.
struct Choice {
  Steps steps;
  // The alternatives; both empty where only one plan was possible. Schedules of moves, with their
  // numbers; candidates that reduce, whose costs are computed on demand.
  std::vector<Alternative> schedules;
  std::vector<Steps> candidates;
  size_t chosen_candidate = 0;
  int64_t least_peak = 0;  // Over all candidates; only known where there is a cap.
};

// Limits of the candidates.
struct CandidateOptions {
  std::optional<int64_t> memory_cap_bytes = {};
  // The partial axes that are reduced, by host, where each host's terms may be added first.
  std::optional<HostAxes> hosts = {};
};

class PlanCandidates {
 public:
  // The arguments must outlive it. `goal` has the partial axes that are kept.
  PlanCandidates(const Layout& from, const Layout& goal, const Partials& partials,
                 const Tensor& tensor, const CandidateOptions& options);

  // The steps from `from` to `goal`. Among candidates that reduce it chooses the fastest within the
  // cap, or the first candidate if none is within it. In a large mesh the times of candidates come
  // from a sample of the devices.
  Choice choose() const;

 private:
  // The result of a reduction among the devices of each host.
  struct HostStart {
    Layout sums;
    std::optional<Layout> cleared;  // under the view, where that places more parts
    int64_t num_placed;             // In both reductions.
  };

  // For a second reduction: from another layout, or over other partial axes, to the same goal. The
  // arguments, and the arguments of `before`, must outlive this object.
  PlanCandidates(const PlanCandidates& before, const Layout& from, const Partials& partials);
  std::vector<Steps> flat() const;
  std::vector<Steps> by_host() const;
  Layout cleared(const Layout& sums) const;
  bool may_add_by_host() const;
  Partials partials_of_terms() const;
  Partials partials_of_sums() const;
  HostStart start_by_host(const PlanCandidates& first, const SubAxes& left) const;
  int64_t num_placed_by_host() const;
  bool links_are_expensive() const;
  void add_scatters(const SubAxes& left, std::vector<Steps>& candidates) const;
  Steps by_all_reduce() const;
  Steps by_scatter(const SubAxes& left, int dim) const;
  Steps moves(const Layout& current, std::vector<Alternative>* alternatives = nullptr) const;
  Steps scheduled(const FactoredView& view, const Layout& current,
                  std::vector<Alternative>* alternatives) const;
  Choice best_of(std::vector<Steps> candidates) const;

  int64_t first_bytes(const Layout& layout) const;
  bool goal_splits_reduced() const;
  SubAxes not_placed() const;
  SubAxes copies_of_terms() const;
  int longest_dim() const;
  int64_t num_placed() const;
  std::vector<SubAxes> refined_dims() const;
  std::vector<SubAxes> refined_and(const SubAxes& left, int dim) const;
  Layout with_terms(const std::vector<SubAxes>& dims) const;
  Layout with_kept(const std::vector<SubAxes>& dims) const;
  Layout arrived(const Layout& layout) const;

  const Layout& source_;  // the layout that the devices hold all the time
  const Layout& from_;
  const Layout& goal_;
  const Partials& partials_;
  const Tensor& tensor_;
  const CandidateOptions& options_;
  // Borders of the layouts and of the reduced axes. Borders of hosts may be in the middle of an
  // axis.
  const Cuts cuts_;
  // The dims of `from`, each split further as the goal has it, as far as the axes for that are
  // free: replicated, or being reduced.
  const std::vector<SubAxes> refined_;
  std::vector<int> rest_dims_;  // Behind which the parts go that have no other place.
  // Whether a candidate is made for each of rest_dims_, or for the longest alone. The second of two
  // reductions has enough candidates with the longest.
  bool tries_every_dim_ = true;
};

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_PLAN_CANDIDATES_H_
