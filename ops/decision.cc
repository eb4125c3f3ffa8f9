// SPDX-License-Identifier: Apache-2.0
#include "ops/decision.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/format.h"
#include "base/shape.h"

namespace tessera::ops {
namespace {

Status check_out(const char* name, const OpPlan& plan, const Layout& out) {
  if (out.rank() != static_cast<int>(plan.shape.size())) {
    return refusal(name, "the result ", shape_to_string(plan.shape), " has rank ",
                   plan.shape.size(), ", and out ", out.to_string(), " rank ", out.rank());
  }
  if (!out.is_partial()) return absl::OkStatus();
  return with_context(validate_reduction(*out.partial_op(), plan.dtype),
                      absl::StrCat(name, ": out ", out.to_string()));
}

// One line about the fetch of a tensor.
std::string explain_fetch(const Fetch& fetch) {
  return absl::StrCat(fetch.from().to_string(),
                      ", of which each device fetches what it needs: ", "predicted ",
                      format_prediction(fetch.predicted_time()), ", ",
                      format_bytes(fetch.max_received_bytes()), " to a device at most\n");
}

// A tensor that is moved, or is not.
StatusOr<std::string> explain_move(const Operand& operand, const Layout& to,
                                   const PlanOptions& options) {
  if (to == operand.layout) return absl::StrCat(to.to_string(), " as it is\n");
  TESSERA_ASSIGN_OR_RETURN(const RelayoutPlan plan, plan_relayout(operand.layout, to, operand.shape,
                                                                  operand.dtype, options));
  return absl::StrCat(plan.to_string(), ", predicted ", format_prediction(plan.predicted_time()),
                      ", ", format_bytes(plan.max_received_bytes()), " to a device at most\n");
}

StatusOr<std::string> explain(const char* name, const OpPlan& plan,
                              absl::Span<const Operand> operands, const Assignment& assignment,
                              const std::optional<Layout>& out, const PlanOptions& options) {
  std::string text = absl::StrCat("  by ", name, ": ", plan.rule.to_string(), "\n");
  for (size_t i = 0; i < operands.size(); ++i) {
    const Layout& to = assignment.operands[i];
    const Fetch* const fetch = assignment.fetches[i].get();
    absl::StrAppend(&text, "  operand ", i, ": ");
    if (to != operands[i].layout || fetch == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(const std::string move, explain_move(operands[i], to, options));
      absl::StrAppend(&text, move);
      if (fetch != nullptr) absl::StrAppend(&text, "    then ");
    }
    if (fetch != nullptr) absl::StrAppend(&text, explain_fetch(*fetch));
  }
  if (assignment.is_contested) {
    absl::StrAppend(&text, "  the best of ", assignment.num_alternatives, " assignments of axes",
                    assignment.is_limited ? " that were tried" : "", ", predicted ",
                    format_prediction(assignment.predicted_time), "\n");
  }
  if (!out.has_value()) return text;
  TESSERA_ASSIGN_OR_RETURN(
      const std::string move,
      explain_move({assignment.result, plan.shape, plan.dtype}, *out, options));
  return absl::StrCat(text, "  result: ", move);
}

}  // namespace

StatusOr<LayoutDecision> decide_layouts(const char* name, const OpPlan& plan,
                                        absl::Span<const Operand> operands,
                                        const std::optional<Layout>& out,
                                        const PlanOptions& options, absl::string_view attributes) {
  TESSERA_RETURN_IF_ERROR(with_context(validate_shape(plan.shape, plan.dtype), name));
  std::vector<Shape> shapes;
  for (const Operand& operand : operands) shapes.push_back(operand.shape);
  TESSERA_RETURN_IF_ERROR(plan.rule.validate(shapes, plan.shape));
  if (out.has_value()) TESSERA_RETURN_IF_ERROR(check_out(name, plan, *out));
  TESSERA_ASSIGN_OR_RETURN(Assignment assignment,
                           infer(plan.rule, operands, plan.shape, plan.dtype, out, options,
                                 absl::StrCat(name, "(", attributes, ")")));
  TESSERA_ASSIGN_OR_RETURN(std::string explanation,
                           explain(name, plan, operands, assignment, out, options));
  return LayoutDecision{std::move(assignment), std::move(explanation)};
}

}  // namespace tessera::ops
