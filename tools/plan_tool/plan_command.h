// SPDX-License-Identifier: Apache-2.0
//
// The report of tools/plan on a relayout, without flags and files: texts in, a report and a picture
// out.
#ifndef TESSERA_TOOLS_PLAN_TOOL_PLAN_COMMAND_H_
#define TESSERA_TOOLS_PLAN_TOOL_PLAN_COMMAND_H_

#include <cstdint>
#include <string>

#include "base/status.h"
#include "tools/plan_tool/command_texts.h"

namespace tessera {

// The texts of the command line.
struct PlanCommand {
  std::string mesh;     // "{node=2, gpu=4}"
  std::string mesh_to;  // Empty: the same mesh.
  std::string from;     // "[(node,gpu)]"
  std::string to;       // "[-]"
  std::string shape;    // "268435456", "1024,512"; empty for rank 0.
  std::string dtype;    // "f32"
  MachineTexts machine = {};
};

struct PlanReport {
  std::string text;  // Lines, for a terminal.
  std::string svg;   // The data flow; empty unless asked for.
};

enum class PlanPicture : uint8_t { kNone, kSvg };

// Fails with InvalidArgument that names the flag ("--from: ...") or the topology file and its
// field, and with the errors of plan_relayout() and visualize_svg().
StatusOr<PlanReport> report_plan(const PlanCommand& command, PlanPicture picture);

}  // namespace tessera

#endif  // TESSERA_TOOLS_PLAN_TOOL_PLAN_COMMAND_H_
