// SPDX-License-Identifier: Apache-2.0
#include "examples/head_comment.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

namespace tessera {
namespace examples {
namespace {

constexpr int kTimeLimitSeconds = 60;

using Lines = std::vector<std::string>;

Lines sorted_lines(const std::string& text) {
  Lines lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  std::sort(lines.begin(), lines.end());
  return lines;
}

struct HeadComment {
  std::string command;
  std::string output;
};

HeadComment read_head_comment(const std::string& source) {
  std::ifstream file(source);
  EXPECT_TRUE(file.good()) << source;
  HeadComment comment;
  bool in_output = false;
  for (std::string line; std::getline(file, line) && absl::StartsWith(line, "//");) {
    absl::string_view text = line;
    if (absl::StartsWith(text, "// Output")) in_output = true;
    if (!absl::ConsumePrefix(&text, "//   ")) continue;
    if (in_output) {
      absl::StrAppend(&comment.output, text, "\n");
    } else {
      comment.command = std::string(text);
    }
  }
  return comment;
}

// "bazel run //examples/groups:order" and "bazel-bin/job/tessera_run ...", as paths in the runfiles
// of a test of that folder.
std::string in_runfiles(const std::string& command, const std::string& source) {
  const std::string folder = std::filesystem::path(source).parent_path().string();
  return absl::StrReplaceAll(
      command, {{absl::StrCat("bazel run //", folder, ":"), folder + "/"}, {"bazel-bin/", ""}});
}

}  // namespace

std::vector<std::string> programs_in(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".cc") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

void expect_output_of_comment(const std::string& source) {
  const HeadComment comment = read_head_comment(source);
  ASSERT_FALSE(comment.command.empty());
  ASSERT_FALSE(comment.output.empty());
  const std::string command =
      absl::StrCat("timeout -k 5 ", kTimeLimitSeconds, " ", in_runfiles(comment.command, source),
                   " 2>&1 < /dev/null");
  std::FILE* const pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr) << command;
  std::string output;
  char chunk[4096];
  while (const size_t count = std::fread(chunk, 1, sizeof chunk, pipe)) {
    output.append(chunk, count);
  }
  const int status = pclose(pipe);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command << "\n" << output;
  const Lines expected = sorted_lines(comment.output);
  Lines lines = sorted_lines(output);
  for (size_t i = 0; i < std::min(lines.size(), expected.size()); ++i) {
    absl::string_view begin = expected[i];
    if (absl::ConsumeSuffix(&begin, "...") && absl::StartsWith(lines[i], begin)) {
      lines[i] = expected[i];
    }
  }
  EXPECT_EQ(lines, expected) << command << "\n" << output;
}

}  // namespace examples
}  // namespace tessera
