// SPDX-License-Identifier: Apache-2.0
//
// Output of tessera_ckpt: tables for a terminal, and JSON.
//
//   table({{"step", "path"}, {"100", "run/a"}}, {Align::kRight, Align::kLeft})
//     step  path
//      100  run/a
//   json_object({{"path", json_text("run/a")}, {"step", "100"}})
//     {"path":"run/a","step":100}
#ifndef TESSERA_TOOLS_CKPT_TOOL_OUTPUT_H_
#define TESSERA_TOOLS_CKPT_TOOL_OUTPUT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera::ckpt_tool {

enum class Align : uint8_t { kLeft, kRight };

// Lines with two blanks between columns, without blanks at the end. Requires rows as long as
// `alignments`.
std::string table(const std::vector<std::vector<std::string>>& rows,
                  absl::Span<const Align> alignments);

// "1 tensor", "3 tensors".
std::string counted(int64_t count, absl::string_view noun);

// A text in quotes. Bytes that are no UTF-8, as a path may have, become U+FFFD.
std::string json_text(absl::string_view text);
// An array or an object, whose values are JSON already.
std::string json_array(const std::vector<std::string>& values);
std::string json_array(absl::Span<const int64_t> values);
std::string json_object(const std::vector<std::pair<std::string, std::string>>& members);

}  // namespace tessera::ckpt_tool

#endif  // TESSERA_TOOLS_CKPT_TOOL_OUTPUT_H_
