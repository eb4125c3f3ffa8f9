// SPDX-License-Identifier: Apache-2.0
//
// Patterns of names, and names of files.
#include "tools/ckpt_tool/tensor_names.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::ckpt_tool {
namespace {

using ::tessera::testing::IsOkAndHolds;
using ::tessera::testing::StatusIs;
using ::testing::HasSubstr;

struct PatternCase {
  const char* pattern;
  absl::string_view name;
  bool matches;
};

constexpr PatternCase kPatterns[] = {
    {"w", "w", true},
    {"w", "ww", false},
    {"", "", true},
    {"", "w", false},
    {"*", "", true},
    {"*", "layers/0/w", true},
    {"layers.*.w", "layers.0.attention.w", true},
    {"layers.*.w", "layers.w", false},
    {"*.w", "a.w.b", false},
    {"*ab*ab", "ababab", true},
    {"*ab*ab", "ab", false},
    {"?", "w", true},
    {"?", "", false},
    {"a?c*", "abc", true},
    {"**", "x", true},
    {"a*", absl::string_view("a\0b", 3), true},
    {"a", absl::string_view("a\0b", 3), false},
    {"[ab]", "a", false},
};

TEST(TensorNamesTest, PatternsMatchWholeNames) {
  for (const PatternCase& row : kPatterns) {
    EXPECT_EQ(matches_pattern(row.pattern, row.name), row.matches)
        << row.pattern << " " << row.name;
  }
  // A pattern of many stars takes no exponential time.
  std::string pattern;
  for (int i = 0; i < 50; ++i) pattern += "a*";
  EXPECT_FALSE(matches_pattern(pattern + "b", std::string(10'000, 'a')));
}

TEST(TensorNamesTest, NamesOfFilesHoldNoPath) {
  EXPECT_THAT(npy_file_name("layers.0.w"), IsOkAndHolds("layers.0.w.npy"));
  EXPECT_THAT(npy_file_name("../../x"), IsOkAndHolds("%2E.%2F..%2Fx.npy"));
  EXPECT_THAT(npy_file_name("/etc/passwd"), IsOkAndHolds("%2Fetc%2Fpasswd.npy"));
  EXPECT_THAT(npy_file_name(".hidden"), IsOkAndHolds("%2Ehidden.npy"));
  EXPECT_THAT(npy_file_name("a%2Fb"), IsOkAndHolds("a%252Fb.npy"));
  EXPECT_THAT(npy_file_name(absl::string_view("a\0b", 3)), IsOkAndHolds("a%00b.npy"));
  EXPECT_THAT(npy_file_name("\xc3\xa9"), IsOkAndHolds("%C3%A9.npy"));
  EXPECT_THAT(npy_file_name(std::string(251, 'a')), IsOkAndHolds(std::string(251, 'a') + ".npy"));
}

TEST(TensorNamesTest, NamesOfFilesDiffer) {
  std::set<std::string> files;
  for (int a = 0; a < 256; ++a) {
    for (const char* const end : {"", "%", "2F", "."}) {
      const std::string name = absl::StrCat(std::string(1, static_cast<char>(a)), end);
      EXPECT_TRUE(files.insert(npy_file_name(name).value_or("")).second) << a << end;
    }
  }
}

TEST(TensorNamesTest, NamesWithoutAFileNameAreRefused) {
  EXPECT_THAT(npy_file_name(""),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tensor \"\" has no name")));
  EXPECT_THAT(npy_file_name(std::string(252, 'a')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("needs a file name of 256 bytes, and 255 are possible")));
}

}  // namespace
}  // namespace tessera::ckpt_tool
