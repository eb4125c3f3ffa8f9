// SPDX-License-Identifier: Apache-2.0
//
// The command line of tessera_ckpt.
//
//   {"show", "run/step-0000000100", "--tensor", "w", "--json"}
//     -> command "show", paths {"run/step-0000000100"}, tensor "w", json
//
// A value follows its flag, or "=": --threads 4, --threads=4. Flags stand anywhere; after "--" all
// texts are paths.
#ifndef TESSERA_TOOLS_CKPT_TOOL_ARGUMENTS_H_
#define TESSERA_TOOLS_CKPT_TOOL_ARGUMENTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"

namespace tessera::ckpt_tool {

enum class Command { kHelp, kVersion, kList, kShow, kVerify, kConvert, kClean };

// What convert writes.
enum class Format { kTessera, kSafetensors, kNpy };

struct Arguments {
  Command command = Command::kHelp;
  std::vector<std::string> paths;     // as many as the command takes
  bool json = false;                  // the output is one JSON value
  bool yes = false;                   // clean: do not ask
  bool pieces = false;                // show: where the pieces of each tensor are
  std::optional<std::string> tensor;  // show: a name; convert: a pattern of tensor_names.h
  int threads = 0;                    // verify; 0: as checkpoint::verify()
  Format to = Format::kTessera;       // convert; without --to by the end of the second path
  int64_t max_file_bytes = 0;         // convert; 0: no limit
};

// InvalidArgument for a command line that is no call of the program, with what is wrong.
StatusOr<Arguments> parse_arguments(absl::Span<const std::string> texts);

// The text of --help.
std::string usage_text();

}  // namespace tessera::ckpt_tool

#endif  // TESSERA_TOOLS_CKPT_TOOL_ARGUMENTS_H_
