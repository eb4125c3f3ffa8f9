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
// A plan depends on its arguments alone, so every client makes the same one. Rows of single devices
// are made on demand, so a plan for kMaxPlannedDevices is as cheap as one for 2. Functions marked
// O(devices) below take that time in few plans only, and take no memory for the devices.
//
// Every plan has these properties:
//   1. The identity (equivalent layouts, equal partials) has no steps.
//   2. Without partials, where all links between the devices are of one class, there is at most one
//      step. In it each device receives exactly the elements of its new box that its old box lacks,
//      each once: the lower bound. Where links differ a plan may have several steps, if the
//      topology's costs make that cheaper; each step obeys the same rule from the layout that the
//      step before left.
//   3. Each step starts from the `to` of the step before; the first starts from from(). The last
//      ends in to(): the same layout, or a layout under which every device holds the same elements
//      in the same order, perhaps under another shape() of as many elements (see PlanStep).
//   4. Reductions precede moves where they shrink them. Terms are added in ascending position of
//      their devices, which is ascending partial index. With ReductionOrder::kByHost the plan may
//      add the sums of hosts, each of the host's own terms, in the order of the first term of each
//      host.
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
#include "base/public.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "layout/layout.h"
#include "relayout/alternative.h"
#include "relayout/plan_step.h"
#include "relayout/topology.h"

namespace TESSERA_PUBLIC tessera {

// The most devices of a mesh for which relayouts are planned: some plans look at each device to
// find the worst one.
inline constexpr int64_t kMaxPlannedDevices = int64_t{1} << 24;

// How to plan. Equal on all clients that run the plan.
struct PlanOptions {
  // The links between the devices: they decide how many batches a plan has, and which holders send.
  Topology topology = {};
  // The most that peak_bytes() may be. Nothing: no cap.
  std::optional<int64_t> memory_cap_bytes = {};
  ReductionOrder reduction_order = ReductionOrder::kByHost;
};

class RelayoutPlan;
bool operator==(const RelayoutPlan& a, const RelayoutPlan& b);

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
  // The most bytes that any device of either mesh receives, over all steps. Mostly O(rank);
  // O(devices) in plans between meshes that differ, and in plans where uneven dims take axes from
  // each other. Computed once.
  int64_t max_received_bytes() const;
  // The least max_received_bytes() of any plan. A reduction of n terms must receive 2(n-1)/n of the
  // tensor where n devices end with whole copies, and n-1 times the size of a shard where they end
  // with shards. Takes as long as max_received_bytes().
  int64_t lower_bound_bytes() const;
  // The most bytes that a device holds at once: source, target and, between two steps, the
  // intermediate tensor. relayout() of a source that is kept holds less where the target shares its
  // memory. O(devices) where the meshes begin with different devices. Computed once.
  int64_t peak_bytes() const;
  // The most bytes that a device holds during a step of steps(); 0 where there is no such step.
  // Takes as long as peak_bytes().
  int64_t step_peak_bytes(size_t step) const;
  // The time of the steps by the costs of the topology that the plan was made for.
  // - A step takes the latency of the farthest link that it uses, and seconds for each byte that
  //   the worst placed device receives (see Topology). Local copies and the arithmetic of
  //   reductions take no time.
  // - Where terms could be added by host and the order shows in the bits (see ReductionOrder), a
  //   link within a process counts as a link of the host, and senders are chosen accordingly.
  // - In a reduction among more than 256 devices that are listed individually, all links count as
  //   links between hosts.
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
  // check that they run the same relayout.
  uint64_t hash() const;
  friend bool operator==(const RelayoutPlan& a, const RelayoutPlan& b);
  template <typename H>
  friend H AbslHashValue(H h, const RelayoutPlan& plan) {
    return H::combine(std::move(h), plan.hash());
  }
  friend std::ostream& operator<<(std::ostream& out, const RelayoutPlan& plan) {
    return out << plan.to_string();
  }

  // A value: a move is a copy.
  RelayoutPlan(const RelayoutPlan&) = default;
  RelayoutPlan& operator=(const RelayoutPlan&) = default;

  struct Rep;  // Internal.

 private:
  friend StatusOr<RelayoutPlan> plan_relayout(const Layout& from, const LayoutArg& to,
                                              const Shape& shape, DType dtype,
                                              const PlanOptions& options);
  explicit RelayoutPlan(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const Rep> rep_;
};

// InvalidArgument where the layouts are of different ranks: "relayout to [x]: the layout has 1 dim,
// the tensor under [x, -] has 2; relayout keeps the rank".
Status check_ranks(const Layout& from, const Layout& to);

// Plans the relayout of a tensor of `shape`. Pure, and the same on every client. Moves pull boxes
// to their places without staging: a plan of one batch needs only the memory of source and target,
// the least that a move can need. Batches are not cut into chunks. Errors:
// - the error that `to` carries; text of `to` is read on the mesh of `from`;
// - InvalidArgument for ranks that differ, a bad shape, and a reduction that the dtype does not
//   have: avg of integers; any but min and max of bool;
// - InvalidArgument for a device that the topology does not list, and for a mesh of more than
//   kMaxPlannedDevices;
// - ResourceExhausted where no plan keeps the cap; it names the need, the cap and the least
//   feasible cap.
StatusOr<RelayoutPlan> plan_relayout(const Layout& from, const LayoutArg& to, const Shape& shape,
                                     DType dtype, const PlanOptions& options = {});

}  // namespace tessera

#endif  // TESSERA_RELAYOUT_PLAN_H_
