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

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "layout/layout.h"

namespace tessera {

namespace internal {
struct PlanStepAccess;  // plan_step_rep.h
}  // namespace internal

// Moves (the first five) say by pulls() where each element of a new box comes from; reductions by
// terms() whose terms it adds; expansions are local.
enum class StepKind : uint8_t {
  kSlice,          // nothing is remote: each device copies a part of its own box
  kAllGather,      // each device of a group ends with the boxes of all of it
  kAllToAll,       // every pair of a group exchanges blocks of equal size
  kPermute,        // each new box is one old box of some device
  kExchange,       // any boxes between any devices
  kReduceScatter,  // members of a group want disjoint parts of the reduction
  kAllReduce,      // members of a group want the same part of it
  kExpand,         // the value becomes terms: own part, and the identity of op() elsewhere
};
// "slice", "all_gather", "all_to_all", "permute", "exchange", "reduce_scatter", "all_reduce",
// "expand".
absl::string_view step_kind_name(StepKind kind);
// kReduceScatter and kAllReduce.
bool is_reduction(StepKind kind);

// One copy of a move: `box` out of the buffer of `source_device`, which holds `source_box`. The
// source may be the device itself. Boxes are in global indices and not empty.
struct Pull {
  int source_device;
  Box source_box;
  Box box;

  friend bool operator==(const Pull& a, const Pull& b) {
    return a.source_device == b.source_device && a.source_box == b.source_box && a.box == b.box;
  }
};

// One step of a plan: collective over the groups of its devices. Devices are given by id; a device
// that neither layout knows has no rows, receives nothing and is alone. Immutable, cheap to copy,
// safe to read from any thread.
class PlanStep {
 public:
  StepKind kind() const;
  // What the devices hold before and after. A partial layout on both sides of a move means that
  // terms move as they are, between devices with equal coordinates along the partial axes.
  const Layout& from() const;
  const Layout& to() const;
  // What the boxes of this step index: the shape of the tensor or, where a move takes several
  // steps, one of higher rank with the same elements in the same order. A dim of n elements that
  // digits of sizes 2 and 4 split is [2, 4, n / 8] there, so that layouts between the steps may
  // hold strided blocks of the tensor. A device's buffer is the same under both.
  const Shape& shape() const;
  DType dtype() const;
  // The mesh axes along which something happens, in mesh order, sub-axes as "x:(2)2"; empty where
  // the meshes differ.
  absl::Span<const std::string> axes() const;
  // The most devices that one group can have: the product of the sizes of axes(), or all devices
  // where the meshes differ (O(devices)).
  int64_t group_size() const;
  // The reduction of kReduceScatter and kAllReduce, and the one whose identity fills kExpand;
  // nothing of other steps. kAvg is the sum of the terms divided once by their number.
  std::optional<ReduceOp> op() const;

  // What a device holds before and after; nothing where it does not belong to that mesh.
  std::optional<Box> old_box(int device_id) const;
  std::optional<Box> new_box(int device_id) const;
  // How many elements these are; 0 where there is no box.
  int64_t old_elements(int device_id) const;
  int64_t new_elements(int device_id) const;

  // Moves: disjoint boxes that tile the new box of the device, its own part included, in row-major
  // order of their sources' boxes. kExpand: at most one, from the device itself; what it does not
  // cover is the identity of op(). Reductions: none.
  std::vector<Pull> pulls(int device_id) const;
  // True: pulls() is one list for all devices of a group. False of moves where that is not known.
  bool has_common_pulls() const;
  // Reductions: the devices whose terms the new value of this device adds, in the order of
  // addition (itself included), equal on all devices of the group. Each holds its old_box(), which
  // contains the new_box() of this one. Empty where the new box is. Others: none.
  std::vector<int> terms(int device_id) const;
  // The devices that run this step together with this one, itself included, ascending by position
  // (in from().mesh(), then those of to().mesh() alone): the same list on all of them. Where
  // nothing is remote for the device, it is alone. Moves: the connected component; devices of
  // different components never wait for each other.
  std::vector<int> group(int device_id) const;

  // Bytes that the device must get from others, and give to others. An all-reduce counts as a
  // reduce-scatter and an all-gather of chunks: 2(n-1)/n of the box, for n terms.
  int64_t received_bytes(int device_id) const;
  int64_t sent_bytes(int device_id) const;

  // "all_to_all{x} [x, -] -> [-, x]".
  std::string to_string() const;

  // A value, of which a move is a copy.
  PlanStep(const PlanStep&) = default;
  PlanStep& operator=(const PlanStep&) = default;

  struct Rep;  // Internal.

 private:
  friend struct internal::PlanStepAccess;
  explicit PlanStep(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const Rep> rep_;
};

}  // namespace tessera

#endif  // TESSERA_RELAYOUT_PLAN_STEP_H_
