// SPDX-License-Identifier: Apache-2.0
#include "tools/plan_tool/plan_command.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/format.h"
#include "base/shape.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/plan.h"
#include "visualize/plan_flow.h"

namespace tessera {
namespace {

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
  TESSERA_ASSIGN_OR_RETURN(const PlanOptions options, read_plan_options(command.machine));
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
  // Differs by more than the last digits of equal sums.
  if (chosen > fastest + absl::Nanoseconds(1)) {
    absl::StrAppend(&text,
                    "  chosen as if each device were a process: the order of addition does not "
                    "depend on processes\n");
  }
  return text;
}

}  // namespace

StatusOr<PlanReport> report_plan(const PlanCommand& command, PlanPicture picture) {
  TESSERA_ASSIGN_OR_RETURN(const RelayoutPlan plan, plan_of(command));
  PlanReport report;
  report.text = absl::StrCat(topology_text(command.machine, plan.topology()), plan.explain());
  if (!plan.steps().empty()) {
    absl::StrAppend(&report.text, "  it takes ", format_prediction(plan.predicted_time()));
    if (plan.steps().size() > 1) {
      for (size_t i = 0; i < plan.steps().size(); ++i) {
        absl::StrAppend(&report.text, i == 0 ? " = " : " + ",
                        format_prediction(plan.step_predicted_time(i)));
      }
    }
    absl::StrAppend(&report.text, ", predicted; compared with\n",
                    alternatives_text(plan, command.machine.memory_cap_bytes));
  }
  if (picture == PlanPicture::kSvg) {
    TESSERA_ASSIGN_OR_RETURN(report.svg, visualize_svg(plan));
  }
  return report;
}

}  // namespace tessera
