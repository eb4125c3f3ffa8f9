// SPDX-License-Identifier: Apache-2.0
#include "tools/plan_tool/plan_command.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/format.h"
#include "base/shape.h"
#include "base/text.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/plan.h"
#include "relayout/topology.h"
#include "tools/plan_tool/topology_json.h"
#include "visualize/plan_flow.h"

namespace tessera {
namespace {

// "1024,512", also in brackets as messages write it; "" and "[]" for rank 0.
StatusOr<Shape> read_shape(const std::string& text) {
  TextCursor cursor("shape", text);
  const bool has_bracket = cursor.consume('[');
  const auto is_over = [&] { return has_bracket ? cursor.next_is(']') : cursor.at_end(); };
  Shape shape;
  while (!is_over()) {
    if (!shape.empty() && !cursor.consume(',')) return cursor.expected("\",\" or the end");
    const std::optional<int64_t> size = cursor.read_integer();
    if (!size.has_value()) return cursor.expected("the size of a dim, as in 1024,512");
    shape.push_back(*size);
  }
  if (has_bracket) cursor.consume(']');
  if (!cursor.at_end()) return cursor.expected("the end");
  TESSERA_RETURN_IF_ERROR(validate_shape(shape));
  return shape;
}

StatusOr<DType> read_dtype(const std::string& text) {
  std::vector<std::string> names;
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType dtype = static_cast<DType>(i);
    if (text == dtype_name(dtype)) return dtype;
    names.push_back(std::string(dtype_name(dtype)));
  }
  return absl::InvalidArgumentError(absl::StrCat("dtype ", tessera::quoted(text), " is none of ",
                                                 quoted_list(names), did_you_mean(text, names)));
}

StatusOr<ReductionOrder> read_order(const std::string& text) {
  if (text == "by_host") return ReductionOrder::kByHost;
  if (text == "flat") return ReductionOrder::kFlat;
  return absl::InvalidArgumentError(absl::StrCat("order ", tessera::quoted(text), " is neither ",
                                                 quoted_list({"by_host", "flat"})));
}

// The error of a flag begins with its name.
template <class T>
StatusOr<T> of_flag(const char* flag, StatusOr<T> result) {
  if (result.ok()) return result;
  return with_context(result.status(), flag);
}

StatusOr<RelayoutPlan> plan_of(const PlanCommand& command) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, of_flag("--mesh", Mesh::parse(command.mesh)));
  Mesh mesh_to = mesh;
  if (!command.mesh_to.empty()) {
    TESSERA_ASSIGN_OR_RETURN(mesh_to, of_flag("--mesh_to", Mesh::parse(command.mesh_to)));
  }
  TESSERA_ASSIGN_OR_RETURN(const Layout from, of_flag("--from", Layout::parse(mesh, command.from)));
  TESSERA_ASSIGN_OR_RETURN(const Layout to, of_flag("--to", Layout::parse(mesh_to, command.to)));
  TESSERA_ASSIGN_OR_RETURN(const Shape shape, of_flag("--shape", read_shape(command.shape)));
  TESSERA_ASSIGN_OR_RETURN(const DType dtype, of_flag("--dtype", read_dtype(command.dtype)));
  PlanOptions options;
  options.memory_cap_bytes = command.memory_cap_bytes;
  if (command.memory_cap_bytes.value_or(1) < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--memory_cap: ", *command.memory_cap_bytes,
                                                   " bytes hold nothing; give at least 1"));
  }
  TESSERA_ASSIGN_OR_RETURN(options.reduction_order,
                           of_flag("--reduction_order", read_order(command.reduction_order)));
  if (command.topology_json.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(options.topology,
                             parse_topology(*command.topology_json, command.topology_file));
  }
  return plan_relayout(from, to, shape, dtype, options);
}

std::string cost_line(absl::string_view mark, absl::string_view name, size_t name_width,
                      const Alternative& alternative) {
  return absl::StrFormat(
      "  %-8s  %-*s  %9s  receives %9s  holds %9s\n", mark, static_cast<int>(name_width), name,
      format_prediction(alternative.predicted_time), format_bytes(alternative.received_bytes),
      format_bytes(alternative.peak_bytes));
}

std::string alternatives_text(const RelayoutPlan& plan,
                              const std::optional<int64_t>& memory_cap_bytes) {
  const std::vector<Alternative> alternatives = plan.alternatives();
  size_t width = 0;
  for (const Alternative& alternative : alternatives) {
    width = std::max(width, alternative.name.size());
  }
  std::string text;
  absl::Duration chosen = absl::ZeroDuration();
  absl::Duration fastest = absl::InfiniteDuration();
  for (const Alternative& alternative : alternatives) {
    const bool too_large =
        memory_cap_bytes.has_value() && alternative.peak_bytes > *memory_cap_bytes;
    const char* const mark = alternative.chosen ? "chosen" : too_large ? "over cap" : "rejected";
    absl::StrAppend(&text, cost_line(mark, alternative.name, width, alternative));
    if (alternative.chosen) chosen = alternative.predicted_time;
    if (!too_large) fastest = std::min(fastest, alternative.predicted_time);
  }
  // Other than by the last digits of equal sums.
  if (chosen > fastest + absl::Nanoseconds(1)) {
    absl::StrAppend(&text,
                    "  chosen as if each device were a process: the order of addition does not "
                    "depend on processes\n");
  }
  return text;
}

std::string topology_text(const PlanCommand& command, const Topology& topology) {
  if (!command.topology_json.has_value()) {
    return absl::StrCat("topology by default: ", topology.to_string(), "\n");
  }
  return absl::StrCat("topology ", command.topology_file, ": ", topology.to_string(), "\n");
}

}  // namespace

StatusOr<PlanReport> report_plan(const PlanCommand& command, PlanPicture picture) {
  TESSERA_ASSIGN_OR_RETURN(const RelayoutPlan plan, plan_of(command));
  PlanReport report;
  report.text = absl::StrCat(topology_text(command, plan.topology()), plan.explain());
  if (!plan.steps().empty()) {
    absl::StrAppend(&report.text, "  it takes ", format_prediction(plan.predicted_time()));
    if (plan.steps().size() > 1) {
      for (size_t i = 0; i < plan.steps().size(); ++i) {
        absl::StrAppend(&report.text, i == 0 ? " = " : " + ",
                        format_prediction(plan.step_predicted_time(i)));
      }
    }
    absl::StrAppend(&report.text, ", predicted; compared with\n",
                    alternatives_text(plan, command.memory_cap_bytes));
  }
  if (picture == PlanPicture::kSvg) {
    TESSERA_ASSIGN_OR_RETURN(report.svg, visualize_svg(plan));
  }
  return report;
}

}  // namespace tessera
