// SPDX-License-Identifier: Apache-2.0
#include "tools/ckpt_tool/output.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "files/json_reader.h"

namespace tessera::ckpt_tool {

std::string table(const std::vector<std::vector<std::string>>& rows,
                  absl::Span<const Align> alignments) {
  std::vector<size_t> widths(alignments.size(), 0);
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string lines;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string blanks(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&line, i == 0 ? "" : "  ", alignments[i] == Align::kRight ? blanks : "",
                      row[i], alignments[i] == Align::kLeft ? blanks : "");
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&lines, line, "\n");
  }
  return lines;
}

std::string counted(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string json_text(absl::string_view text) {
  std::string valid;
  while (true) {
    const size_t good = utf8_prefix(text);
    valid.append(text.data(), good);
    text.remove_prefix(good);
    if (text.empty()) break;
    valid += "\xef\xbf\xbd";
    text.remove_prefix(1);
  }
  std::string json;
  files::append_json_text(valid, &json);
  return json;
}

std::string json_array(const std::vector<std::string>& values) {
  return absl::StrCat("[", absl::StrJoin(values, ","), "]");
}

std::string json_array(absl::Span<const int64_t> values) {
  return absl::StrCat("[", absl::StrJoin(values, ","), "]");
}

std::string json_object(const std::vector<std::pair<std::string, std::string>>& members) {
  return absl::StrCat("{",
                      absl::StrJoin(members, ",",
                                    [](std::string* out, const auto& member) {
                                      absl::StrAppend(out, json_text(member.first), ":",
                                                      member.second);
                                    }),
                      "}");
}

}  // namespace tessera::ckpt_tool
