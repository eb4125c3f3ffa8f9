// SPDX-License-Identifier: Apache-2.0
//
// Costs of steps and of the steps of one plan: bytes by link, the most that a device receives, peak
// memory and predicted time. Pure. Internal to relayout/.
#ifndef TESSERA_RELAYOUT_STEP_COSTS_H_
#define TESSERA_RELAYOUT_STEP_COSTS_H_

#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/types/span.h"
#include "relayout/plan_step.h"
#include "relayout/schedule.h"

namespace tessera::internal {

// The number of devices that a question about the worst device looks at: all devices, or enough to
// compare two plans (ShardGrid::spread_positions).
inline constexpr int64_t kEveryDevice = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kComparedDevices = 128;

// The bytes received by the device whose transfers take longest, by link class. Exact in these
// cases, otherwise all bytes count as bytes of the farthest link:
// - all links are of one class;
// - moves that have a FactoredView;
// - reductions along axes that processes and hosts cut at digits;
// - at most 256 devices.
Traffic traffic_of(const PlanStep& step, int64_t most_devices = kEveryDevice);

// The bytes that a device receives over all steps.
int64_t received_bytes(absl::Span<const PlanStep> steps, int device_id);
// The most bytes that any device receives. See most_received.h for the cost.
int64_t max_received_bytes(absl::Span<const PlanStep> steps);
// See RelayoutPlan::peak_bytes(). 0 where there are no steps.
int64_t peak_bytes(absl::Span<const PlanStep> steps);
// The peak bytes during one step. Requires step < steps.size().
int64_t step_peak_bytes(absl::Span<const PlanStep> steps, size_t step);
// See RelayoutPlan::predicted_time(). Stops adding steps once the sum is at least
// `stop_above_seconds`.
double predicted_seconds(absl::Span<const PlanStep> steps, int64_t most_devices = kEveryDevice,
                         double stop_above_seconds = std::numeric_limits<double>::infinity());

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_STEP_COSTS_H_
