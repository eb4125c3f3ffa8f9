// SPDX-License-Identifier: Apache-2.0
//
// The representation of a PlanStep. Internal to relayout/.
#ifndef TESSERA_RELAYOUT_PLAN_STEP_REP_H_
#define TESSERA_RELAYOUT_PLAN_STEP_REP_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/dtype.h"
#include "base/public.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "layout/layout.h"
#include "relayout/pull_routing.h"
#include "relayout/shard_grid.h"
#include "relayout/step_kind.h"
#include "relayout/sub_axes.h"
#include "relayout/tensor.h"
#include "relayout/topology.h"

namespace tessera::internal {

struct TESSERA_INTERNAL PlanStepRep {
  PlanStepRep(StepKind kind, const Layout& from, const Layout& to, const Tensor& tensor)
      : kind(kind),
        from(from, tensor.shape),
        to(to, tensor.shape),
        dtype(tensor.dtype),
        topology(tensor.topology) {}

  StepKind kind;
  ShardGrid from;
  ShardGrid to;
  DType dtype;
  Topology topology;
  std::optional<ReduceOp> op;  // of reductions and expansions
  std::vector<std::string> axes;
  int64_t group_size = 1;
  std::optional<PullRouting> routing;  // Exactly in moves.
  Digits group_digits;                 // kAllGather, kAllToAll and reductions: tell members apart.
  Digits zero_digits;                  // kExpand: devices with these all zero hold the value.

  // The components of kPermute and kExchange, found when a group is first asked for.
  mutable std::once_flag components_once;
  mutable std::vector<std::vector<int>> components;
  mutable absl::flat_hash_map<int, size_t> component_of_device;

  // The positions of the group of a position, ascending. Requires group_digits.
  std::vector<int64_t> members(int64_t position) const;
  const std::vector<int>* component(int device_id) const;
};

// The members of a group reduce equal chunks of a box of `elements`.
inline int64_t chunk_elements(int64_t elements, int64_t members, int64_t member) {
  const auto [first, end] = shard_interval(elements, members, member);
  return end - first;
}

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_PLAN_STEP_REP_H_
