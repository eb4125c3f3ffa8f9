// SPDX-License-Identifier: Apache-2.0
//
// The data flow of a plan: the bytes that each device receives from each other device in each step,
// as numbers and as a picture.
//
//   [x, -] -> [-, x] on {x=2}, f32 [4, 4]      0 -> 1  16 bytes     1 -> 0  16 bytes
//
// Computed from the rows of all devices, without the planner's estimates: O(devices * rows). The
// planner does not use it. RelayoutPlan::explain() gives a plan as text.
//
// Pure; safe from any thread.
#ifndef TESSERA_VISUALIZE_PLAN_FLOW_H_
#define TESSERA_VISUALIZE_PLAN_FLOW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/public.h"
#include "base/status.h"
#include "relayout/plan.h"

namespace TESSERA_PUBLIC tessera {

// The most devices of a readable picture, counted over both meshes of a plan.
inline constexpr int64_t kMaxPlanPictureDevices = 64;

struct Flow {
  int source_device;
  int device;
  int64_t bytes;

  friend bool operator==(const Flow& a, const Flow& b) {
    return a.source_device == b.source_device && a.device == b.device && a.bytes == b.bytes;
  }
};

// The flows between different devices, ascending by device, then source. The flows into a device
// add up to step.received_bytes(device). In a reduction the other terms give equal shares.
std::vector<Flow> flows_of(const PlanStep& step);

// An SVG 1.1 document. Each step shows the devices before it on the left and after it on the right,
// with their boxes, and an arrow for each flow. InvalidArgument for more than
// kMaxPlanPictureDevices devices.
StatusOr<std::string> visualize_svg(const RelayoutPlan& plan);

}  // namespace tessera

#endif  // TESSERA_VISUALIZE_PLAN_FLOW_H_
