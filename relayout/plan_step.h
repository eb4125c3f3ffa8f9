// SPDX-License-Identifier: Apache-2.0
//
// PlanStep: one step of a RelayoutPlan (plan.h), as a value: a collective over groups of devices,
// with the rows of single devices made on demand.
//
//   all_to_all{x} [x, -] -> [-, x]      pulls(0): {device 0, its own part}, {device 1, its part}
//                                       group(0): 0, 1        received_bytes(0): 16
#ifndef TESSERA_RELAYOUT_PLAN_STEP_H_
#define TESSERA_RELAYOUT_PLAN_STEP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/public.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "layout/layout.h"
#include "relayout/pull.h"
#include "relayout/step_kind.h"

namespace TESSERA_PUBLIC tessera {

namespace internal {
struct PlanStepRep;
struct PlanStepAccess;
}  // namespace internal

// One step of a plan: a collective over the groups of its devices. Devices are given by id. A
// device in neither layout has no rows, receives nothing and is alone in its group. Immutable,
// cheap to copy, safe to read from any thread.
class PlanStep {
 public:
  StepKind kind() const;
  // The layouts before and after. A partial layout on both sides of a move means that terms move as
  // they are, between devices with equal coordinates along the partial axes.
  const Layout& from() const;
  const Layout& to() const;
  // The shape that the boxes of this step index: the shape of the tensor or, where a move takes
  // several steps, a shape of higher rank with the same elements in the same order. A dim of n
  // elements that digits of sizes 2 and 4 split is [2, 4, n / 8] there, so that layouts between the
  // steps may hold strided blocks of the tensor. A device's buffer is the same under both.
  const Shape& shape() const;
  DType dtype() const;
  // The mesh axes along which the step moves or reduces, in mesh order, sub-axes as "x:(2)2"; empty
  // where the meshes differ.
  absl::Span<const std::string> axes() const;
  // The most devices that one group can have: the product of the sizes of axes(), or all devices
  // where the meshes differ (O(devices)).
  int64_t group_size() const;
  // The reduction of kReduceScatter and kAllReduce, and the reduction whose identity fills kExpand;
  // nothing for other steps. kAvg is the sum of the terms divided once by their number.
  std::optional<ReduceOp> op() const;

  // The boxes of a device before and after; nothing where it does not belong to that mesh.
  std::optional<Box> old_box(int device_id) const;
  std::optional<Box> new_box(int device_id) const;
  // The numbers of elements of these boxes; 0 where there is no box.
  int64_t old_elements(int device_id) const;
  int64_t new_elements(int device_id) const;

  // Moves: disjoint boxes that tile the new box of the device, its own part included, in row-major
  // order of their sources' boxes. kExpand: at most one, from the device itself; what it does not
  // cover is the identity of op(). Reductions: none.
  std::vector<Pull> pulls(int device_id) const;
  // True: pulls() is one list for all devices of a group. False for moves where that is not known.
  bool has_common_pulls() const;
  // Reductions: the devices whose terms the new value of this device adds, in the order of
  // addition (itself included), equal on all devices of the group. Each holds its old_box(), which
  // contains the new_box() of this one. Empty where the new box is. Others: none.
  std::vector<int> terms(int device_id) const;
  // The devices that run this step together with this device, itself included: the same list on all
  // of them. Ascending by position in from().mesh(), then by position in to().mesh() for devices
  // that only to() has. A device that exchanges nothing is alone. For moves it is the connected
  // component; devices of different components never wait for each other.
  std::vector<int> group(int device_id) const;

  // Bytes that the device must get from others, and give to others. An all-reduce counts as a
  // reduce-scatter and an all-gather of chunks: 2(n-1)/n of the box, for n terms.
  int64_t received_bytes(int device_id) const;
  int64_t sent_bytes(int device_id) const;

  // "all_to_all{x} [x, -] -> [-, x]".
  std::string to_string() const;

  // A value: a move is a copy.
  PlanStep(const PlanStep&) = default;
  PlanStep& operator=(const PlanStep&) = default;

 private:
  friend struct internal::PlanStepAccess;
  explicit PlanStep(std::shared_ptr<const internal::PlanStepRep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const internal::PlanStepRep> rep_;
};

}  // namespace tessera

#endif  // TESSERA_RELAYOUT_PLAN_STEP_H_
