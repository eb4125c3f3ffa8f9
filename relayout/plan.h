// SPDX-License-Identifier: Apache-2.0
//
// RelayoutPlan: how a tensor gets from one Layout to another, as a value.
//
//   4 x 4 i32 on {x=2}, [x, -] to [-, x]: one step, all_to_all over x
//
//     device 0 holds  a a b b        device 0 pulls  a a  from itself   and  c c  from device 1
//                     a a b b                        a a                     c c
//     device 1 holds  c c d d        device 1 pulls  d d  from itself   and  b b  from device 0
//                     c c d d                        d d                     b b
//
// A plan is made from its arguments alone, so every client makes the same one, and rows of single
// devices are made on demand, so a plan for kMaxPlannedDevices is as cheap as one for 2. Functions
// that are O(devices) below are so in few plans, and take no memory for the devices.
//
// Every plan has these properties:
//   1. The identity (equivalent layouts, equal partials) has no steps.
//   2. Without partials, where all links between the devices are of one class, there is at most one
//      step, and each device receives exactly the elements of its new box that its old box lacks,
//      each once: the lower bound. Where links differ there may be several, each by that rule from
//      where the one before left the tensor, if the topology's costs make that cheaper.
//   3. Each step starts from the `to` of the one before; the first from from(), the last ends in
//      to(): the same layout, or one under which every device holds the same elements in the same
//      order, perhaps under another shape() of as many elements (see PlanStep).
//   4. Reductions come before moves where they shrink them, and terms are added in ascending
//      position of their devices, which is ascending partial index; with ReductionOrder::kByHost
//      perhaps the sums of hosts, each of its own terms, in the order of the first of them.
//
// Plans are immutable values: cheap to copy, safe to read from any thread, with == and a hash that
// is the same in every process.
#ifndef TESSERA_RELAYOUT_PLAN_H_
#define TESSERA_RELAYOUT_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "layout/layout.h"
#include "relayout/alternative.h"
#include "relayout/plan_step.h"
#include "relayout/topology.h"

namespace tessera {

// The most devices of a mesh that relayouts are planned for: in some plans the worst of all devices
// is found by a look at each.
inline constexpr int64_t kMaxPlannedDevices = int64_t{1} << 24;

// How to plan. Equal on all clients that run the plan.
struct PlanOptions {
  // The links between the devices: they decide how many batches a plan has, and which holders send.
  Topology topology = {};
  // The most that peak_bytes() may be. Nothing: no cap.
  std::optional<int64_t> memory_cap_bytes = {};
  ReductionOrder reduction_order = ReductionOrder::kByHost;
};

class RelayoutPlan {
 public:
  const Layout& from() const;
  const Layout& to() const;
  const Shape& shape() const;
  DType dtype() const;
  absl::Span<const PlanStep> steps() const;

  // Bytes that the device at a position of to().mesh() receives, over all steps; 0 where there is
  // no such position.
  int64_t received_bytes(int64_t position) const;
  // The most that any device of either mesh receives, over all steps. O(rank) where a device is
  // found that receives as much as any can, O(devices) in few other plans: between meshes that
  // differ, and where uneven dims take axes from each other. Computed once.
  int64_t max_received_bytes() const;
  // No plan has max_received_bytes() below this. A reduction of n terms: 2(n-1)/n of the tensor to
  // whole copies on n devices, n-1 times the size of a shard to shards. Costs as
  // max_received_bytes() does.
  int64_t lower_bound_bytes() const;
  // The most bytes that a device holds at once: source, target and, between two steps, what is in
  // between. relayout() of a source that is kept holds less where the target shares its memory.
  // O(devices) where the meshes begin with different devices. Computed once.
  int64_t peak_bytes() const;
  // The most bytes that a device holds during one of the steps(); 0 where there is no such step.
  // It costs as peak_bytes() does.
  int64_t step_peak_bytes(size_t step) const;
  // The time of the steps by the costs of the topology that the plan was made for: a step takes the
  // latency of the farthest link that it uses, and seconds for each byte that the worst placed
  // device receives (see Topology). Local copies and the arithmetic of reductions count nothing.
  // Where terms could be added by host and the order shows in the bits (see ReductionOrder), links
  // within a process count as those of its host, and senders are chosen so. In a reduction among
  // many devices that are listed one by one all links may count as between hosts.
  absl::Duration predicted_time() const;
  absl::Duration step_predicted_time(size_t step) const;
  // The plans that were compared, the chosen one among them, in an order that is the same on every
  // client. Empty for the identity.
  std::vector<Alternative> alternatives() const;
  const Topology& topology() const;

  // For a terminal: layouts, one line per step, bytes against the lower bound.
  std::string explain() const;
  // "[x, -] -> [-, x] on {x=2}, i32 [4, 4]: all_to_all{x}".
  std::string to_string() const;

  // Covers the relayout, the steps, and the topology. Equal in every process: clients compare it to
  // see that they mean the same relayout.
  uint64_t hash() const;
  friend bool operator==(const RelayoutPlan& a, const RelayoutPlan& b);
  template <typename H>
  friend H AbslHashValue(H h, const RelayoutPlan& plan) {
    return H::combine(std::move(h), plan.hash());
  }
  friend std::ostream& operator<<(std::ostream& out, const RelayoutPlan& plan) {
    return out << plan.to_string();
  }

  // A value, of which a move is a copy.
  RelayoutPlan(const RelayoutPlan&) = default;
  RelayoutPlan& operator=(const RelayoutPlan&) = default;

  struct Rep;  // Internal.

 private:
  friend StatusOr<RelayoutPlan> plan_relayout(const Layout& from, LayoutArg to, const Shape& shape,
                                              DType dtype, const PlanOptions& options);
  explicit RelayoutPlan(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const Rep> rep_;
};

// InvalidArgument where the layouts are of different ranks: "relayout to [x]: the layout has 1 dim,
// the tensor under [x, -] has 2; relayout keeps the rank".
Status check_ranks(const Layout& from, const Layout& to);

// Plans the relayout of a tensor of `shape`. Pure, and the same on every client. InvalidArgument
// for the error that `to` carries, ranks that differ, a bad shape, and a reduction that the dtype
// does not have: avg of integers; any but min and max of bool. InvalidArgument for a device that
// the topology does not list, and for a mesh of more than kMaxPlannedDevices, too.
// ResourceExhausted names the need, the cap and the least feasible cap. Moves pull boxes to where
// they belong, with no staging: source and target together are the least that a move can need, and
// plans of one batch need no more; batches are not cut into chunks.
StatusOr<RelayoutPlan> plan_relayout(const Layout& from, LayoutArg to, const Shape& shape,
                                     DType dtype, const PlanOptions& options = {});

}  // namespace tessera

#endif  // TESSERA_RELAYOUT_PLAN_H_
