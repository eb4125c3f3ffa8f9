// SPDX-License-Identifier: Apache-2.0
//
// StepKind: what a step of a relayout does (PlanStep).
#ifndef TESSERA_RELAYOUT_STEP_KIND_H_
#define TESSERA_RELAYOUT_STEP_KIND_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/public.h"

namespace TESSERA_PUBLIC tessera {

// For moves (the first five) pulls() says where each element of a new box comes from. For
// reductions terms() says whose terms are added. Expansions are local.
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

}  // namespace tessera

#endif  // TESSERA_RELAYOUT_STEP_KIND_H_
