// SPDX-License-Identifier: Apache-2.0
//
// Runs every program of this folder by the command in its first comment, and compares its output
// with the output in the comment.
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace {

constexpr char kFolder[] = "examples/groups";
constexpr int kTimeLimitSeconds = 60;

using Lines = std::vector<std::string>;

// The lines of `text`, sorted, because clients print in any order.
Lines sorted_lines(const std::string& text) {
  Lines lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  std::sort(lines.begin(), lines.end());
  return lines;
}

// The first comment of a program: the command, and the lines that it prints.
struct Header {
  std::string command;
  std::string output;
};

Header read_header(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  Header header;
  bool in_output = false;
  for (std::string line; std::getline(file, line) && absl::StartsWith(line, "//");) {
    absl::string_view text = line;
    if (absl::StartsWith(text, "// Output")) in_output = true;
    if (!absl::ConsumePrefix(&text, "//   ")) continue;
    if (in_output) {
      absl::StrAppend(&header.output, text, "\n");
    } else {
      header.command = std::string(text);
    }
  }
  return header;
}

// The command with the programs' paths in the runfiles.
std::string in_runfiles(const std::string& command) {
  const std::string prefix = absl::StrCat("bazel run //", kFolder, ":");
  return absl::StrReplaceAll(command, {{prefix, absl::StrCat(kFolder, "/")}, {"bazel-bin/", ""}});
}

class GroupsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GroupsTest, PrintsWhatItsCommentShows) {
  const Header header = read_header(GetParam());
  ASSERT_FALSE(header.command.empty());
  ASSERT_FALSE(header.output.empty());
  const std::string command = absl::StrCat("timeout -k 5 ", kTimeLimitSeconds, " ",
                                           in_runfiles(header.command), " 2>&1 < /dev/null");
  std::FILE* const pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr) << command;
  std::string output;
  char chunk[4096];
  while (const size_t count = std::fread(chunk, 1, sizeof chunk, pipe)) {
    output.append(chunk, count);
  }
  const int status = pclose(pipe);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command << "\n" << output;
  EXPECT_EQ(sorted_lines(output), sorted_lines(header.output)) << command << "\n" << output;
}

std::vector<std::string> programs() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".cc") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

INSTANTIATE_TEST_SUITE_P(Programs, GroupsTest, ::testing::ValuesIn(programs()),
                         [](const auto& info) {
                           return std::filesystem::path(info.param).stem().string();
                         });

// The list comes from the runfiles, and an empty one would pass.
TEST(GroupsListTest, HasAllPrograms) { EXPECT_EQ(programs().size(), 14u); }

}  // namespace
