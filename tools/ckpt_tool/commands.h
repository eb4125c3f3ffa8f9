// SPDX-License-Identifier: Apache-2.0
//
// The commands of tessera_ckpt, with streams instead of a terminal.
//
//   run_ckpt({"list", "run"}, input, output, errors)
//     output:   step  time                  tensors    bytes  state       path
//                100  2026-11-22T13:05:00Z       12  1.5 GiB  complete    run/step-0000000100
//
// An error is one line of `errors`, "tessera_ckpt: " and the message, which says which file, byte
// and tensor. With --json the output is one JSON value in every case but a wrong command line:
// {"error":{"code":"DATA_LOSS","message":"..."}} where a command has no other result.
#ifndef TESSERA_TOOLS_CKPT_TOOL_COMMANDS_H_
#define TESSERA_TOOLS_CKPT_TOOL_COMMANDS_H_

#include <istream>
#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace tessera::ckpt_tool {

inline constexpr int kGoodExitCode = 0;
inline constexpr int kDamagedExitCode = 1;  // or refused, as by the answer to a question
inline constexpr int kUsageExitCode = 2;

// Runs the command of `texts`, the arguments without the name of the program. The answer to a
// question is read from `input`; questions go to `errors`. Returns the exit code.
int run_ckpt(absl::Span<const std::string> texts, std::istream& input, std::ostream& output,
             std::ostream& errors);

}  // namespace tessera::ckpt_tool

#endif  // TESSERA_TOOLS_CKPT_TOOL_COMMANDS_H_
