// SPDX-License-Identifier: Apache-2.0
//
// The report of tools/plan on an operation, without flags and files: texts in, a report out.
#ifndef TESSERA_TOOLS_PLAN_TOOL_OP_COMMAND_H_
#define TESSERA_TOOLS_PLAN_TOOL_OP_COMMAND_H_

#include <string>

#include "base/status.h"
#include "tools/plan_tool/command_texts.h"

namespace tessera {

// The texts of the command line. Lists have an entry for each operand, separated by ";".
struct OpCommand {
  std::string mesh;        // "{batch=4, model=2}"
  std::string op;          // "matmul [batch, -] [-, model]": a name, and a layout for each operand
  std::string shapes;      // "1024,512; 512,2048"
  std::string dtypes;      // "f32; i32", or one for all: "f32"
  std::string attributes;  // "dims=[1]; keep_dims"
  std::string out;         // The layout of the result; empty: inferred.
  MachineTexts machine = {};
};

// The report has these lines: the result and its layout, the rule, how each operand is moved with
// bytes and predicted time, and how many assignments of axes were compared. Fails with
// InvalidArgument that names the flag ("--op: ...") or the topology file and its field, and with
// the errors of plan_operation() and decide_layouts().
StatusOr<std::string> report_operation(const OpCommand& command);

// A Markdown table of the rules of all operations, for docs/internals/ops.md.
std::string operations_table();

}  // namespace tessera

#endif  // TESSERA_TOOLS_PLAN_TOOL_OP_COMMAND_H_
