// SPDX-License-Identifier: Apache-2.0
//
// How steps of a plan are made. Internal to relayout/.
#ifndef TESSERA_RELAYOUT_PLAN_STEP_H_
#define TESSERA_RELAYOUT_PLAN_STEP_H_

#include <cstdint>
#include <limits>

#include "base/dtype.h"
#include "base/shape.h"
#include "layout/layout.h"
#include "relayout/plan.h"
#include "relayout/schedule.h"
#include "relayout/sub_axes.h"
#include "relayout/topology.h"

namespace tessera::internal {

// What the steps of one plan have in common: the tensor, under its own shape or a view of it (see
// FactoredView), and the links between the devices.
struct Tensor {
  Shape shape;
  DType dtype;
  Topology topology;
};

// A move between layouts with the same partial axes, called by what it turns out to be.
PlanStep make_move(const Layout& from, const Layout& to, const Tensor& tensor);
// The reduction over `reduced`, partial axes of `from` that `to` (on the same mesh) does not have.
// kReduceScatter: the devices of a group get disjoint boxes; kAllReduce: the same box.
PlanStep make_reduction(StepKind kind, const Layout& from, const Layout& to, const SubAxes& reduced,
                        const Tensor& tensor);
// The expansion along `added`, partial axes of `to` (on the same mesh) that `from` does not have.
PlanStep make_expansion(const Layout& from, const Layout& to, const SubAxes& added,
                        const Tensor& tensor);

// The same step where links between the devices are others.
PlanStep with_topology(const PlanStep& step, const Topology& topology);

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

// The devices of both meshes, those that they share counted once. O(devices of b).
int64_t num_devices(const Mesh& a, const Mesh& b);

// Within int64, or its largest value: bytes are reported, never used as sizes of memory.
int64_t saturated(__int128 value);

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_PLAN_STEP_H_
