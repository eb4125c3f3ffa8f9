// SPDX-License-Identifier: Apache-2.0
#include "relayout/step_kind.h"

namespace tessera {

absl::string_view step_kind_name(StepKind kind) {
  switch (kind) {
    case StepKind::kSlice:
      return "slice";
    case StepKind::kAllGather:
      return "all_gather";
    case StepKind::kAllToAll:
      return "all_to_all";
    case StepKind::kPermute:
      return "permute";
    case StepKind::kExchange:
      return "exchange";
    case StepKind::kReduceScatter:
      return "reduce_scatter";
    case StepKind::kAllReduce:
      return "all_reduce";
    case StepKind::kExpand:
      return "expand";
  }
  return "unknown";
}

bool is_reduction(StepKind kind) {
  return kind == StepKind::kReduceScatter || kind == StepKind::kAllReduce;
}

}  // namespace tessera
