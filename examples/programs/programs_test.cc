// SPDX-License-Identifier: Apache-2.0
//
// Runs every program of this folder by the command in its first comment, and compares its output
// with the output in the comment. Compares the lengths of the cores with the table of README.md.
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "examples/head_comment.h"
#include "gtest/gtest.h"

namespace {

constexpr char kFolder[] = "examples/programs";

std::vector<std::string> programs() { return tessera::examples::programs_in(kFolder); }

std::string name_of(const std::string& program) {
  return std::filesystem::path(program).stem().string();
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Lines of code between the two comments.
int lines_of_core(const std::string& program) {
  bool in_core = false;
  int count = 0;
  for (const std::string& line : lines_of(program)) {
    const absl::string_view code = absl::StripAsciiWhitespace(line);
    if (code == "// The core.") in_core = true;
    if (code == "// The end of the core.") in_core = false;
    if (in_core && !code.empty() && !absl::StartsWith(code, "//")) ++count;
  }
  return count;
}

struct Lengths {
  int core = 0;
  int on_paper = 0;
};

// The rows "| [name](name.cc) | what | 5 | 9 |" of the table.
std::map<std::string, Lengths> lengths_in_table() {
  std::map<std::string, Lengths> lengths;
  for (const std::string& line : lines_of(std::string(kFolder) + "/README.md")) {
    absl::string_view row = line;
    if (!absl::ConsumePrefix(&row, "| [")) continue;
    const std::vector<absl::string_view> cells = absl::StrSplit(row, '|');
    Lengths& of_program = lengths[std::string(row.substr(0, row.find(']')))];
    EXPECT_TRUE(cells.size() > 3 && absl::SimpleAtoi(cells[2], &of_program.core) &&
                absl::SimpleAtoi(cells[3], &of_program.on_paper))
        << line;
  }
  return lengths;
}

class ProgramsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ProgramsTest, PrintsWhatItsCommentShows) {
  tessera::examples::expect_output_of_comment(GetParam());
}

TEST_P(ProgramsTest, CoreIsAsShortAsTheTableSays) {
  const Lengths lengths = lengths_in_table()[name_of(GetParam())];
  EXPECT_EQ(lines_of_core(GetParam()), lengths.core);
  EXPECT_LT(lengths.core, lengths.on_paper);
}

INSTANTIATE_TEST_SUITE_P(Programs, ProgramsTest, ::testing::ValuesIn(programs()),
                         [](const auto& info) { return name_of(info.param); });

// The list comes from the runfiles, and an empty one would pass.
TEST(ProgramsListTest, HasAllPrograms) { EXPECT_EQ(programs().size(), 11u); }

}  // namespace
