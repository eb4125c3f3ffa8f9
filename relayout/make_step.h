// SPDX-License-Identifier: Apache-2.0
//
// How the steps of a plan are made. Internal to relayout/.
#ifndef TESSERA_RELAYOUT_MAKE_STEP_H_
#define TESSERA_RELAYOUT_MAKE_STEP_H_

#include <memory>
#include <utility>

#include "layout/layout.h"
#include "relayout/plan_step.h"
#include "relayout/step_kind.h"
#include "relayout/sub_axes.h"
#include "relayout/tensor.h"
#include "relayout/topology.h"

namespace tessera::internal {

struct PlanStepAccess {
  static const PlanStepRep& rep(const PlanStep& step) { return *step.rep_; }
  static PlanStep step(std::shared_ptr<const PlanStepRep> rep) { return PlanStep(std::move(rep)); }
};

// A move between layouts with the same partial axes. Its kind follows from the axes that move.
PlanStep make_move(const Layout& from, const Layout& to, const Tensor& tensor);
// The reduction over `reduced`, partial axes of `from` that `to` (on the same mesh) does not have.
// kReduceScatter: the devices of a group get disjoint boxes; kAllReduce: the same box.
PlanStep make_reduction(StepKind kind, const Layout& from, const Layout& to, const SubAxes& reduced,
                        const Tensor& tensor);
// The expansion along `added`, partial axes of `to` (on the same mesh) that `from` does not have.
PlanStep make_expansion(const Layout& from, const Layout& to, const SubAxes& added,
                        const Tensor& tensor);

// Recomputes the links of the step for another topology.
PlanStep with_topology(const PlanStep& step, const Topology& topology);

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_MAKE_STEP_H_
