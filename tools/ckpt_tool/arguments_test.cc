// SPDX-License-Identifier: Apache-2.0
//
// Command lines: what each says, and each refusal.
#include "tools/ckpt_tool/arguments.h"

#include <string>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::ckpt_tool {
namespace {

using ::tessera::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ArgumentsTest, CommandsHavePathsAndFlags) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Arguments list, parse_arguments({"list", "run"}));
  EXPECT_EQ(list.command, Command::kList);
  EXPECT_THAT(list.paths, ElementsAre("run"));
  EXPECT_FALSE(list.json);

  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Arguments show, parse_arguments({"--json", "show", "--tensor", "w", "a", "--pieces"}));
  EXPECT_EQ(show.command, Command::kShow);
  EXPECT_THAT(show.paths, ElementsAre("a"));
  EXPECT_EQ(show.tensor, "w");
  EXPECT_TRUE(show.pieces);
  EXPECT_TRUE(show.json);

  TESSERA_ASSERT_OK_AND_ASSIGN(const Arguments verify,
                               parse_arguments({"verify", "a", "b", "--threads=3"}));
  EXPECT_EQ(verify.command, Command::kVerify);
  EXPECT_THAT(verify.paths, ElementsAre("a", "b"));
  EXPECT_EQ(verify.threads, 3);

  TESSERA_ASSERT_OK_AND_ASSIGN(const Arguments clean, parse_arguments({"clean", "run", "--yes"}));
  EXPECT_EQ(clean.command, Command::kClean);
  EXPECT_TRUE(clean.yes);
}

TEST(ArgumentsTest, HelpIsGivenWhateverElseIsThere) {
  for (const std::vector<std::string>& texts : std::vector<std::vector<std::string>>{
           {"--help"}, {"-h"}, {"list", "--help"}, {"--help", "--none"}}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Arguments arguments, parse_arguments(texts));
    EXPECT_EQ(arguments.command, Command::kHelp);
  }
  for (const char* const command : {"list", "show", "verify", "convert", "clean", "--json"}) {
    EXPECT_THAT(usage_text(), HasSubstr(command));
  }
}

TEST(ArgumentsTest, TheVersionNeedsNoCommand) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Arguments arguments, parse_arguments({"--version"}));
  EXPECT_EQ(arguments.command, Command::kVersion);
}

TEST(ArgumentsTest, TheEndOfTheTargetSaysTheFormat) {
  struct Case {
    const char* target;
    Format format;
  };
  for (const Case& row : {Case{"b", Format::kTessera}, Case{"b.safetensors", Format::kSafetensors},
                          Case{"b.npy", Format::kNpy}}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Arguments arguments,
                                 parse_arguments({"convert", "a", row.target}));
    EXPECT_EQ(arguments.to, row.format) << row.target;
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const Arguments named,
                               parse_arguments({"convert", "a.npy", "b.npy", "--to", "safetensors",
                                                "--max-file-bytes", "5000000000", "--tensor=*.w"}));
  EXPECT_EQ(named.to, Format::kSafetensors);
  EXPECT_EQ(named.max_file_bytes, 5'000'000'000);
  EXPECT_EQ(named.tensor, "*.w");
}

TEST(ArgumentsTest, TextsAfterTwoDashesArePaths) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Arguments arguments,
                               parse_arguments({"verify", "-", "--", "--json", "-h"}));
  EXPECT_THAT(arguments.paths, ElementsAre("-", "--json", "-h"));
  EXPECT_FALSE(arguments.json);
}

struct RefusedCase {
  const char* name;
  std::vector<std::string> texts;
  const char* message;
};

TEST(ArgumentsTest, EachOtherCommandLineIsRefused) {
  const std::vector<RefusedCase> refused = {
      {"no_command", {}, "a command is missing; --help lists them"},
      {"only_a_flag", {"--json"}, "a command is missing"},
      {"other_command",
       {"lst", "a"},
       "command \"lst\" is none of \"list\", \"show\", \"verify\", \"convert\", \"clean\"; did you "
       "mean \"list\""},
      {"no_root", {"list"}, "list takes one path, ROOT, not 0"},
      {"two_roots", {"list", "a", "b"}, "list takes one path, ROOT, not 2"},
      {"no_path_to_show", {"show"}, "show takes one path, not 0"},
      {"no_path_to_verify", {"verify"}, "verify takes one path or more, not 0"},
      {"no_target", {"convert", "a"}, "convert takes two paths, FROM and TO, not 1"},
      {"empty_path", {"show", ""}, "a path is empty"},
      {"other_flag",
       {"show", "a", "--piece"},
       "show has no flag \"--piece\"; did you mean \"--pieces\""},
      {"flag_of_another_command", {"list", "a", "--yes"}, "list has no flag \"--yes\""},
      {"no_value", {"show", "a", "--tensor"}, "--tensor needs a value"},
      {"value_too_many", {"list", "a", "--json=1"}, "--json takes no value"},
      {"threads_negative",
       {"verify", "a", "--threads", "-1"},
       "--threads: \"-1\" should be a whole number between 0 and 1024"},
      {"threads_of_letters", {"verify", "a", "--threads", "all"}, "--threads: \"all\""},
      {"bytes_0",
       {"convert", "a", "b", "--max-file-bytes=0"},
       "--max-file-bytes: \"0\" should be a whole number between 1 and 9223372036854775807"},
      {"bytes_with_unit", {"convert", "a", "b", "--max-file-bytes=5GB"}, "\"5GB\""},
      {"other_format",
       {"convert", "a", "b", "--to", "np"},
       "--to: format \"np\" is none of \"tessera\", \"safetensors\", \"npy\"; did you mean "
       "\"npy\""},
      {"npy_in_parts",
       {"convert", "a", "b", "--to", "npy", "--max-file-bytes", "9"},
       "--max-file-bytes is given with --to npy"},
  };
  for (const RefusedCase& row : refused) {
    EXPECT_THAT(parse_arguments(row.texts),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(row.message)))
        << row.name;
  }
}

}  // namespace
}  // namespace tessera::ckpt_tool
