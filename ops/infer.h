// SPDX-License-Identifier: Apache-2.0
//
// Layout inference: which layouts an operation moves its operands to, and which its result has.
//
//   matmul [m, k] [k, n] -> [m, n]
//     [x, -] [-, y]   agreed: the result is [x, y], and nothing is sent
//     [-, x] [x, -]   agreed: the result is [-, -] sum{x}
//     [x, -] [-, x]   contested: x is wanted for m and for n. The assignment of axes to
//                     factors with the least predicted time wins.
//
// What holds for every assignment:
//   1. a factor has one list of axes, which every operand and the result split it by; no axis is in
//      two lists. A moved dim of an operand keeps its own axes instead, as many as its operand uses
//      for nothing else, and each device fetches what it needs;
//   2. nothing is split that no operand splits, or `out` asks for;
//   3. operands that agree are not moved: an operand that splits a factor by a prefix of its list,
//      or not at all, is sliced, and nothing is sent;
//   4. where they disagree, no assignment of prefixes of their lists takes less predicted time;
//      among equals the nearest to the earlier operands is taken. Where there are more than
//      most_alternatives() assignments, so many are compared, and then assignments that differ from
//      the best in one factor, as long as one of them is better;
//   5. it depends on the arguments alone, so it is the same on every client.
//
// Pure: abstract meshes will do. Costs are of plan_relayout(), of the arithmetic of a device
// (Rule::seconds_per_point), of fetches, and of the reduction of a partial result to shards.
#ifndef TESSERA_OPS_INFER_H_
#define TESSERA_OPS_INFER_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "layout/layout.h"
#include "ops/rule.h"
#include "relayout/fetch.h"
#include "relayout/plan.h"

namespace tessera::ops {

// The facts about a tensor that inference uses. References to the caller's.
struct Operand {
  const Layout& layout;
  const Shape& shape;
  DType dtype;
};

// Each alternative costs a prediction for each operand. Two operands on six axes have 729 at most.
inline int most_alternatives(size_t num_operands) {
  return std::max(64, static_cast<int>(2000 / num_operands));
}

struct Assignment {
  // The layout that each operand is moved to before the kernels run.
  std::vector<Layout> operands;
  // The fetch of each operand after that; null where each device has the elements it needs.
  std::vector<std::shared_ptr<const Fetch>> fetches;
  // The layout that the kernels make.
  Layout result;
  // Whether operands disagreed, or `out` is not what they agreed on.
  bool is_contested = false;
  // For a contested assignment: how many assignments were compared, whether there are more, and the
  // predicted time of the one taken.
  int num_alternatives = 1;
  bool is_limited = false;
  absl::Duration predicted_time;
};

// `call` says what the call is beside rule and operands, and becomes part of the text of fetches.
// Requires a rule that validate() accepts for these shapes, and operands on one mesh; `out`, if
// there is one, has that mesh and the rank of the result. Errors are those of plan_relayout().
StatusOr<Assignment> infer(const Rule& rule, absl::Span<const Operand> operands,
                           const Shape& result_shape, DType result_dtype,
                           const std::optional<Layout>& out, const PlanOptions& options = {},
                           absl::string_view call = "");

}  // namespace tessera::ops

#endif  // TESSERA_OPS_INFER_H_
