// SPDX-License-Identifier: Apache-2.0
//
// The C++ of the README and of the pages that teach is cut from examples that are built and run,
// and the output that a page shows is output of these programs.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace {

constexpr int kTimeLimitSeconds = 60;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The text with two spaces removed from each line, as for the body of a function.
std::string without_indent(const std::string& text) {
  std::string result;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::ConsumePrefix(&line, "  ");
    absl::StrAppend(&result, line, "\n");
  }
  return result;
}

// All programs, each as it is and with two spaces removed from each line.
std::vector<std::string> programs() {
  std::vector<std::string> texts;
  for (const char* folder : {"examples", "examples/groups", "examples/guide"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".cc") continue;
      texts.push_back(read_file(entry.path().string()));
      texts.push_back(without_indent(texts.back()));
    }
  }
  return texts;
}

// The fenced blocks of a page in one language, such as "cpp".
std::vector<std::string> blocks_in(const std::string& page, absl::string_view language) {
  std::vector<std::string> blocks;
  const std::vector<std::string> fences = absl::StrSplit(page, "```");
  for (size_t i = 1; i < fences.size(); i += 2) {
    absl::string_view block = fences[i];
    if (absl::ConsumePrefix(&block, absl::StrCat(language, "\n"))) blocks.emplace_back(block);
  }
  return blocks;
}

// What a command writes to stdout and stderr.
std::string output_of(const std::string& command) {
  const std::string bounded =
      absl::StrCat("timeout -k 5 ", kTimeLimitSeconds, " ", command, " 2>&1 < /dev/null");
  std::FILE* const pipe = popen(bounded.c_str(), "r");
  EXPECT_NE(pipe, nullptr) << command;
  std::string output;
  char chunk[4096];
  while (const size_t count = std::fread(chunk, 1, sizeof chunk, pipe)) {
    output.append(chunk, count);
  }
  const int status = pclose(pipe);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command << "\n" << output;
  return output;
}

// Finds a block of a page in an output from `begin` on, and returns the position behind it; npos if
// it is not there. "..." in the block stands for any text.
size_t find_block(absl::string_view output, absl::string_view block, size_t begin) {
  for (const absl::string_view piece : absl::StrSplit(block, "...")) {
    const size_t found = output.find(piece, begin);
    if (found == absl::string_view::npos) return found;
    begin = found + piece.size();
  }
  return begin;
}

// The code in the columns "is saved by" and "is restored by" of the guide's table of what a run
// holds.
std::vector<std::string> code_of_saving(const std::string& guide) {
  const size_t begin = guide.find("| what | is saved by | is restored by |");
  const std::string table = guide.substr(begin, guide.find("\n\n", begin) - begin);
  std::vector<std::string> codes;
  for (const absl::string_view line : absl::StrSplit(table, '\n')) {
    const std::vector<std::string> columns = absl::StrSplit(line, '|');
    for (size_t column = 2; column < columns.size() && column < 4; ++column) {
      const std::vector<std::string> pieces = absl::StrSplit(columns[column], '`');
      for (size_t i = 1; i < pieces.size(); i += 2) codes.push_back(pieces[i]);
    }
  }
  return codes;
}

TEST(GuideTest, CodeOfSavingIsCutFromExamples) {
  const std::vector<std::string> texts = programs();
  const std::vector<std::string> codes = code_of_saving(read_file("docs/guide/6_saving.md"));
  EXPECT_GE(codes.size(), 14u);
  for (const std::string& code : codes) {
    EXPECT_TRUE(absl::c_any_of(
        texts, [&](const std::string& text) { return absl::StrContains(text, code); }))
        << "no example has this code: " << code;
  }
}

struct PageCase {
  const char* name;
  const char* path;
  size_t min_blocks;
  std::vector<std::string> commands = {};  // their outputs, one after another, have the page's
};

class PagesTest : public ::testing::TestWithParam<PageCase> {};

TEST_P(PagesTest, CodeIsCutFromExamples) {
  const std::vector<std::string> texts = programs();
  ASSERT_GT(texts.size(), 20u);
  const std::vector<std::string> blocks = blocks_in(read_file(GetParam().path), "cpp");
  EXPECT_GE(blocks.size(), GetParam().min_blocks);
  for (const std::string& block : blocks) {
    EXPECT_TRUE(absl::c_any_of(
        texts, [&](const std::string& text) { return absl::StrContains(text, block); }))
        << GetParam().path << " shows code that is in no example:\n"
        << block;
  }
}

TEST_P(PagesTest, OutputIsOutputOfItsPrograms) {
  std::string output;
  for (const std::string& command : GetParam().commands) output += output_of(command);
  size_t begin = 0;
  for (const std::string& block : blocks_in(read_file(GetParam().path), "text")) {
    const size_t end = find_block(output, block, begin);
    ASSERT_NE(end, std::string::npos)
        << GetParam().path << " shows output that its programs do not print, or in another order:\n"
        << block << "\nThey print from there on:\n"
        << output.substr(begin);
    begin = end;
  }
}

// The commands of docs/pictures/README.md, each a picture and the arguments of tools/plan.
std::map<std::string, std::string> picture_commands(const std::string& page) {
  std::map<std::string, std::string> commands;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    const std::vector<std::string> pieces = absl::StrSplit(line, '`');
    if (pieces.size() != 3 || !absl::StartsWith(pieces[1], "tools/plan ")) continue;
    const std::pair<std::string, std::string> parts = absl::StrSplit(pieces[1], " --svg ");
    commands[parts.second] = parts.first.substr(sizeof "tools/plan");
  }
  return commands;
}

TEST(PicturesTest, CommandsOfThePageMakeThem) {
  const std::map<std::string, std::string> commands =
      picture_commands(read_file("docs/pictures/README.md"));
  EXPECT_FALSE(commands.empty());
  const std::string made = absl::StrCat(std::getenv("TEST_TMPDIR"), "/picture.svg");
  for (const auto& [picture, arguments] : commands) {
    output_of(absl::StrCat("tools/plan_tool/plan_tool ", arguments, " --svg ", made));
    EXPECT_EQ(read_file(made), read_file(picture)) << "run the command in docs/pictures/README.md";
  }
}

const PageCase kPages[] = {
    {"readme", "README.md", 1, {"examples/01_quickstart"}},
    {"mesh", "docs/guide/1_mesh.md", 7, {"examples/guide/1_mesh"}},
    {"tensors", "docs/guide/2_tensors.md", 9, {"examples/guide/2_tensors"}},
    {"operations", "docs/guide/3_operations.md", 9, {"examples/guide/3_operations"}},
    {"training", "docs/guide/4_training.md", 7, {"examples/guide/4_training"}},
    {"data", "docs/guide/5_data.md", 6, {"examples/guide/5_data"}},
    {"saving", "docs/guide/6_saving.md", 9, {"examples/guide/6_saving"}},
    {"groups_of_guide", "docs/guide/7_groups.md", 4, {"examples/guide/7_groups"}},
    {"errors", "docs/guide/8_errors.md", 5, {"examples/guide/8_errors"}},
    {"strategies", "docs/strategies.md", 6, {"examples/guide/strategies"}},
    {"parameter_servers", "docs/parameter_servers.md", 5, {"examples/10_parameter_server"}},
    {"recipes", "docs/recipes.md", 10, {"examples/guide/recipes"}},
    {"coming_from", "docs/coming_from.md", 5, {"examples/guide/coming_from"}},
    {"layouts", "docs/layouts.md", 0, {"examples/guide/layouts"}},
    {"groups", "docs/groups.md", 5},
    {"order", "docs/order.md", 1},
};

INSTANTIATE_TEST_SUITE_P(Pages, PagesTest, ::testing::ValuesIn(kPages),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
