// SPDX-License-Identifier: Apache-2.0
//
// Costs of steps and of lists of steps: bytes by link, the device that receives most, peak memory
// and predicted time. Internal to relayout/.
#ifndef TESSERA_RELAYOUT_STEP_COSTS_H_
#define TESSERA_RELAYOUT_STEP_COSTS_H_

#include <cstdint>
#include <limits>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/make_step.h"
#include "relayout/plan_step.h"
#include "relayout/schedule.h"
#include "relayout/topology.h"

namespace tessera::internal {

// How many devices a question about the worst of them asks: every one, or as many as it takes to
// compare two plans (ShardGrid::spread_positions).
inline constexpr int64_t kEveryDevice = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kComparedDevices = 128;

// What the device receives that takes longest, by the links it comes over. Exact where all links
// are of one class, in moves that have a FactoredView, in reductions along axes that processes and
// hosts cut at digits, and on at most 256 devices; else all bytes count as the farthest link's.
Traffic traffic_of(const PlanStep& step, int64_t most_devices = kEveryDevice);

// A device that receives as many bytes in the step as any does. See most_received.h for the cost.
int device_that_receives_most(const PlanStep& step);

// What a device receives over all steps.
int64_t received_over(absl::Span<const PlanStep> steps, int device_id);
// The most bytes that any device receives over all steps.
int64_t most_received(absl::Span<const PlanStep> steps);
// See RelayoutPlan::peak_bytes(), for these steps from `from` to `to`.
int64_t peak(const Layout& from, const Layout& to, const Tensor& tensor,
             absl::Span<const PlanStep> steps);
// What of that a device holds during one of the steps. Requires step < steps.size().
int64_t step_peak(const Layout& from, const Layout& to, const Tensor& tensor,
                  absl::Span<const PlanStep> steps, size_t step);
// See RelayoutPlan::predicted_time(). Stops adding steps once the sum is at least
// `stop_above_seconds`.
double predicted_seconds(absl::Span<const PlanStep> steps, const Topology& topology,
                         int64_t most_devices = kEveryDevice,
                         double stop_above_seconds = std::numeric_limits<double>::infinity());

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_STEP_COSTS_H_
