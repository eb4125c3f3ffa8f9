// SPDX-License-Identifier: Apache-2.0
//
// What a RelayoutPlan holds. Internal to relayout/.
#ifndef TESSERA_RELAYOUT_PLAN_REP_H_
#define TESSERA_RELAYOUT_PLAN_REP_H_

#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "layout/layout.h"
#include "relayout/plan.h"
#include "relayout/plan_step.h"
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
  // What was compared; both empty where only one plan was looked at. Schedules of moves come with
  // their numbers; those of candidates that reduce are found when asked for.
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

// The most bytes that any device receives over all steps.
int64_t most_received(absl::Span<const PlanStep> steps);
// See RelayoutPlan::peak_bytes(), for these steps from `from` to `to`.
int64_t peak(const Layout& from, const Layout& to, const Tensor& tensor,
             absl::Span<const PlanStep> steps);
// See RelayoutPlan::predicted_time(). Stops adding steps once the sum is at least
// `stop_above_seconds`.
double predicted_seconds(absl::Span<const PlanStep> steps, const Topology& topology,
                         int64_t most_devices = kEveryDevice,
                         double stop_above_seconds = std::numeric_limits<double>::infinity());
// "reduce_scatter{x}, all_gather{y}".
std::string step_names(absl::Span<const PlanStep> steps);

}  // namespace internal
}  // namespace tessera

#endif  // TESSERA_RELAYOUT_PLAN_REP_H_
