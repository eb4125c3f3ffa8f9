// SPDX-License-Identifier: Apache-2.0
//
// Reads digits.csv, and checks every message about a malformed file.
#include "examples/digits_csv.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::examples {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StrEq;

// `pixel`,`pixel`,...,`label`
std::string line(int pixel, int label) {
  std::string text;
  for (int64_t i = 0; i < kNumPixels; ++i) absl::StrAppend(&text, pixel, ",");
  return absl::StrCat(text, label);
}

TEST(DigitsCsvTest, TheFileInTheTreeHas1797Images) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Digits digits, read_digits("examples/data/digits.csv"));
  EXPECT_EQ(digits.num_images(), 1797);
  EXPECT_EQ(digits.pixels.size(), static_cast<size_t>(1797 * kNumPixels));
  EXPECT_EQ(digits.pixels[2], 5);
  EXPECT_EQ(digits.labels[1], 1);
  EXPECT_EQ(digits.labels.back(), 8);
}

TEST(DigitsCsvTest, LineEndsOfEverySystemAreFine) {
  const std::string text = line(3, 4) + "\r\n" + line(5, 6);
  TESSERA_ASSERT_OK_AND_ASSIGN(Digits digits, parse_digits(text, "d.csv"));
  EXPECT_EQ(digits.labels, (std::vector<uint8_t>{4, 6}));
  EXPECT_EQ(digits.pixels[kNumPixels], 5);
}

struct MalformedCase {
  const char* name;
  std::string text;
  const char* message;
};

class MalformedTest : public ::testing::TestWithParam<MalformedCase> {};

TEST_P(MalformedTest, NamesFileLineAndColumn) {
  EXPECT_THAT(parse_digits(GetParam().text, "d.csv"),
              StatusIs(absl::StatusCode::kInvalidArgument, StrEq(GetParam().message)));
}

const std::string kGood = line(3, 4) + "\n";  // NOLINT: rows below are made of it

INSTANTIATE_TEST_SUITE_P(
    DigitsCsv, MalformedTest,
    ::testing::Values(
        MalformedCase{
            "empty", "",
            "\"d.csv\", line 1, column 1: the file is empty; expected one image per line"},
        MalformedCase{"word", kGood + "1,2,three,4\n",
                      "\"d.csv\", line 2, column 5: field 3 is \"three\"; a pixel is a whole number"
                      " from 0 to 16"},
        MalformedCase{"nothing_between_commas", "1,,3\n",
                      "\"d.csv\", line 1, column 3: field 2 is \"\"; a pixel is a whole number from"
                      " 0 to 16"},
        MalformedCase{"pixel_too_large", kGood + kGood + "17,0\n",
                      "\"d.csv\", line 3, column 1: field 1 is \"17\"; a pixel is a whole number"
                      " from 0 to 16"},
        MalformedCase{"negative", "0,-1\n",
                      "\"d.csv\", line 1, column 3: field 2 is \"-1\"; a pixel is a whole number"
                      " from 0 to 16"},
        MalformedCase{"not_whole", "0.5\n",
                      "\"d.csv\", line 1, column 1: field 1 is \"0.5\"; a pixel is a whole number"
                      " from 0 to 16"},
        MalformedCase{"no_digit", line(0, 10),
                      "\"d.csv\", line 1, column 129: field 65 is \"10\"; the digit is a whole"
                      " number from 0 to 9"},
        MalformedCase{"too_short", kGood + "1,2,3\n" + kGood,
                      "\"d.csv\", line 2, column 6: the line ends after 3 fields; a line is 64"
                      " pixels and the digit"},
        MalformedCase{"too_long", line(0, 1) + ",2\n",
                      "\"d.csv\", line 1, column 131: more than 65 fields; a line is 64 pixels and"
                      " the digit"},
        MalformedCase{"blank_line", kGood + "\n" + kGood,
                      "\"d.csv\", line 2, column 1: field 1 is \"\"; a pixel is a whole number from"
                      " 0 to 16"},
        MalformedCase{"not_text",
                      std::string("\x7f"
                                  "ELF\x02\n"),
                      "\"d.csv\", line 1, column 1: field 1 is \"\\x7f\\x45LF\\x02\"; a pixel is a"
                      " whole number from 0 to 16"},
        MalformedCase{"long_text_is_cut", "<!DOCTYPE html PUBLIC \"-//W3C//DTD\">\n",
                      "\"d.csv\", line 1, column 1: field 1 is \"<!DOCTYPE html PUBLI...\"; a pixel"
                      " is a whole number from 0 to 16"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(DigitsCsvTest, AMalformedFileIsNamedByItsPath) {
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/bad.csv");
  std::ofstream(path) << kGood << "x\n";
  EXPECT_THAT(read_digits(path), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr(path + "\", line 2, column 1: ")));
}

}  // namespace
}  // namespace tessera::examples
