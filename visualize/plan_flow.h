// SPDX-License-Identifier: Apache-2.0
//
// The data flow of a plan: how many bytes each device receives from each other one in each step; as
// numbers and as a picture.
//
//   [x, -] -> [-, x] on {x=2}, f32 [4, 4]      0 -> 1  16 bytes     1 -> 0  16 bytes
//
// Found from the rows of all devices alone, without the planner's own estimates: O(devices * rows).
// The planner does not use it. As text a plan is RelayoutPlan::explain().
//
// Pure; safe from any thread.
#ifndef TESSERA_VISUALIZE_PLAN_FLOW_H_
#define TESSERA_VISUALIZE_PLAN_FLOW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "relayout/plan.h"

namespace tessera {

// The most devices of a readable picture: of both meshes of a plan together.
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
// sum up to step.received_bytes(device); in a reduction each other term gives an equal share.
std::vector<Flow> flows_of(const PlanStep& step);

// An SVG 1.1 document: for each step the devices before it on the left and after it on the right,
// with the boxes that they hold, and an arrow for each flow. InvalidArgument for more than
// kMaxPlanPictureDevices devices.
StatusOr<std::string> visualize_svg(const RelayoutPlan& plan);

}  // namespace tessera

#endif  // TESSERA_VISUALIZE_PLAN_FLOW_H_
