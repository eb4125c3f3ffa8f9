// SPDX-License-Identifier: Apache-2.0
//
// The C++ of the README and of the pages that teach is cut from examples that are built and run.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
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
  for (const char* folder : {"examples", "examples/groups"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".cc") continue;
      texts.push_back(read_file(entry.path().string()));
      texts.push_back(without_indent(texts.back()));
    }
  }
  return texts;
}

// The blocks of C++ of a page.
std::vector<std::string> cpp_blocks(const std::string& page) {
  std::vector<std::string> blocks;
  const std::vector<std::string> fences = absl::StrSplit(page, "```");
  for (size_t i = 1; i < fences.size(); i += 2) {
    absl::string_view block = fences[i];
    if (absl::ConsumePrefix(&block, "cpp\n")) blocks.emplace_back(block);
  }
  return blocks;
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
  const std::vector<std::string> codes = code_of_saving(read_file("docs/guide.md"));
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
};

class PagesTest : public ::testing::TestWithParam<PageCase> {};

TEST_P(PagesTest, CodeIsCutFromExamples) {
  const std::vector<std::string> texts = programs();
  ASSERT_GT(texts.size(), 20u);
  const std::vector<std::string> blocks = cpp_blocks(read_file(GetParam().path));
  EXPECT_GE(blocks.size(), GetParam().min_blocks);
  for (const std::string& block : blocks) {
    EXPECT_TRUE(absl::c_any_of(
        texts, [&](const std::string& text) { return absl::StrContains(text, block); }))
        << GetParam().path << " shows code that is in no example:\n"
        << block;
  }
}

INSTANTIATE_TEST_SUITE_P(Pages, PagesTest,
                         ::testing::Values(PageCase{"readme", "README.md", 1},
                                           PageCase{"guide", "docs/guide.md", 10},
                                           PageCase{"groups", "docs/groups.md", 5}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
