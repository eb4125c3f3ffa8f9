// SPDX-License-Identifier: Apache-2.0
//
// The C++ of the README is cut from an example that is built and run.
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace {

std::string read_file(const char* path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The body of a function, moved to the margin.
std::string without_indent(const std::string& text) {
  std::string result;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::StrAppend(&result, line.substr(0, 2) == "  " ? line.substr(2) : line, "\n");
  }
  return result;
}

TEST(ReadmeTest, ItsExampleIsCutFromTheQuickstart) {
  const std::string readme = read_file("README.md");
  const std::string fence = "```cpp\n";
  const size_t begin = readme.find(fence);
  ASSERT_NE(begin, std::string::npos);
  const size_t end = readme.find("```", begin + fence.size());
  ASSERT_NE(end, std::string::npos);
  const std::string block = readme.substr(begin + fence.size(), end - begin - fence.size());
  EXPECT_GT(block.size(), 500u);
  EXPECT_THAT(without_indent(read_file("examples/01_quickstart.cc")), ::testing::HasSubstr(block));
  EXPECT_EQ(readme.find(fence, end), std::string::npos) << "a second block would go unchecked";
}

}  // namespace
