// SPDX-License-Identifier: Apache-2.0
//
// The decision about the layouts of an operation, and its explanation as text.
//
//   matmul [x, -] [-, y]   by matmul: [a, b] [b, c] -> [a, c]; b contracted (sum)
//                          operand 0: [x, -] as it is
//                          operand 1: [-, y] as it is
//
// Pure: abstract meshes will do. DTensor::explain() and tools/plan show the same text.
#ifndef TESSERA_OPS_DECISION_H_
#define TESSERA_OPS_DECISION_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "layout/layout.h"
#include "ops/infer.h"
#include "ops/operation.h"
#include "relayout/plan.h"

namespace tessera::ops {

struct LayoutDecision {
  Assignment assignment;
  // Lines: the rule, how each operand is moved, the alternatives, and how the result is moved.
  std::string explanation;
};

// `attributes` are those of the call, as text; all members of a fetch must have equal ones.
// Requires operands and `out` on one mesh. InvalidArgument for an `out` that does not fit the
// result; the errors of Rule::validate() and infer().
StatusOr<LayoutDecision> decide_layouts(const char* name, const OpPlan& plan,
                                        absl::Span<const Operand> operands,
                                        const std::optional<Layout>& out,
                                        const PlanOptions& options,
                                        absl::string_view attributes = "");

}  // namespace tessera::ops

#endif  // TESSERA_OPS_DECISION_H_
