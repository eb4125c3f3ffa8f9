// SPDX-License-Identifier: Apache-2.0
//
// Names, suggestions, and the cursor that both text forms are read with.
#include "base/text.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(NameTest, IsALetterThenLettersOrDigits) {
  for (const char* name : {"x", "batch", "_", "_1", "A9_b"}) EXPECT_TRUE(is_name(name)) << name;
  for (const char* name : {"", "2x", "a-b", "a b", " a", "a\n", "\xc3\xa9"}) {
    EXPECT_FALSE(is_name(name)) << name;
  }
}

TEST(QuotedTest, EscapesWhatWouldHideInAMessage) {
  EXPECT_EQ(in_quotes("x"), "\"x\"");
  EXPECT_EQ(in_quotes("a\"b\\c\n"), "\"a\\\"b\\\\c\\n\"");
  EXPECT_EQ(in_quotes("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 it's"),
            "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 it's\"");
  const std::pair<std::string, const char*> hidden[] = {
      {std::string(1, '\0'), "\\x00"},
      {"\x1b[31m", "\\x1b[31m"},
      {"\r\t\x7f", "\\r\\t\\x7f"},
      {"\xc2\x85", "\\xc2\\x85"},                    // a control of 8 bits
      {"\xc2\xa0", "\\xc2\\xa0"},                    // a blank that does not break
      {"\xc2\xad", "\\xc2\\xad"},                    // a soft hyphen
      {"\xe2\x80\x8b", "\\xe2\\x80\\x8b"},           // of no width
      {"\xe2\x80\xae", "\\xe2\\x80\\xae"},           // from right to left
      {"\xef\xbb\xbf", "\\xef\\xbb\\xbf"},           // a byte order mark
      {"\xf3\xa0\x81\x81", "\\xf3\\xa0\\x81\\x81"},  // a tag
      {"\xff\xfe", "\\xff\\xfe"},                    // no UTF-8
      {"\xe9t\xe9", "\\xe9t\\xe9"},                  // Latin-1
      {"\xc0\x80", "\\xc0\\x80"},                    // a zero in two bytes
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},           // half a pair of UTF-16
      {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},  // beyond the last character
      {"\xe2\x82", "\\xe2\\x82"},                    // cut off
  };
  for (const auto& [text, shown] : hidden) {
    EXPECT_EQ(tessera::in_quotes(text), std::string("\"") + shown + "\"");
    EXPECT_EQ(tessera::in_quotes("1" + text + "a"), std::string("\"1") + shown + "a\"");
  }
  EXPECT_EQ(quoted_list({"batch", "model"}), "\"batch\", \"model\"");
  EXPECT_EQ(quoted_list({}), "");
}

TEST(QuotedTest, ShortensLongTexts) {
  const std::string kept(200, 'a');
  EXPECT_EQ(tessera::in_quotes(kept), "\"" + kept + "\"");
  EXPECT_EQ(tessera::in_quotes(kept + "b"), "\"" + kept + "...\" (201 bytes)");
  // Characters of two bytes begin at even places and at odd ones: none is cut in two.
  for (const std::string start : {"", "a"}) {
    std::string text = start;
    while (text.size() < 1000) text += "\xc3\xa9";
    const std::string shown = tessera::in_quotes(text);
    EXPECT_LT(shown.size(), 230u);
    const size_t end = shown.find("...");
    EXPECT_EQ(shown[end - 1], '\xa9') << shown;
  }
}

TEST(Utf8PrefixTest, EndsBeforeTheFirstByteThatIsNoUtf8) {
  const std::pair<std::string, size_t> cases[] = {
      {"", 0},
      {std::string("a\0\x7f", 3), 3},
      {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9},
      {"ab\xff", 2},
      {"a\xc0\x80", 1},          // overlong
      {"a\xed\xa0\x80", 1},      // a surrogate
      {"a\xf4\x90\x80\x80", 1},  // beyond 10FFFF
      {"\xc3\xa9\xe2\x82", 2},   // cut off
      {"\x80", 0},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(utf8_prefix(text), expected) << text;
}

TEST(TextCursorTest, ANumberThatIsTooLargeSaysSo) {
  TextCursor cursor("mesh", "{x=9223372036854775808}");
  cursor.consume('{');
  cursor.read_name();
  cursor.consume('=');
  EXPECT_EQ(cursor.read_integer(), std::nullopt);
  EXPECT_THAT(cursor.expected("a size"),
              StatusIs(kInvalid,
                       "mesh \"{x=9223372036854775808}\" has \"9223372036854775808\" at character "
                       "4, where a size should be; the number is too large for 64 bits, use a "
                       "smaller one"));
}

struct NearestRow {
  const char* name;
  const char* written;
  std::optional<std::string> nearest;  // of "batch", "model", "tp", "x"
};
class NearestNameTest : public ::testing::TestWithParam<NearestRow> {};

TEST_P(NearestNameTest, IsTheLikelySlip) {
  const std::vector<std::string> candidates = {"batch", "model", "tp", "x"};
  EXPECT_EQ(nearest_name(GetParam().written, candidates), GetParam().nearest);
  EXPECT_EQ(did_you_mean(GetParam().written, candidates),
            GetParam().nearest.has_value() ? "; did you mean \"" + *GetParam().nearest + "\"" : "");
}
INSTANTIATE_TEST_SUITE_P(Rows, NearestNameTest,
                         ::testing::Values(NearestRow{"swapped", "modle", "model"},
                                           NearestRow{"left_out", "bach", "batch"},
                                           NearestRow{"added", "modell", "model"},
                                           NearestRow{"changed", "nodel", "model"},
                                           NearestRow{"plural", "batches", "batch"},
                                           NearestRow{"other_case", "X", "x"},
                                           NearestRow{"shortened", "mod", "model"},
                                           NearestRow{"two_letters", "dp", "tp"},
                                           NearestRow{"one_letter_is_no_slip", "z", std::nullopt},
                                           NearestRow{"far", "expert", std::nullopt},
                                           NearestRow{"empty", "", std::nullopt}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(NearestNameTest, LongTextsAreNotCompared) {
  EXPECT_EQ(nearest_name(std::string(1 << 20, 'x'), {"x"}), std::nullopt);
  EXPECT_EQ(nearest_name("x", {std::string(1 << 20, 'x')}), std::nullopt);
  EXPECT_EQ(nearest_name("x", {}), std::nullopt);
}

struct HexRow {
  const char* name;
  absl::string_view hex;
  std::optional<std::string> bytes;
};

class BytesOfHexTest : public ::testing::TestWithParam<HexRow> {};

TEST_P(BytesOfHexTest, ReadsPairsOfDigits) {
  EXPECT_EQ(bytes_of_hex(GetParam().hex), GetParam().bytes);
}

INSTANTIATE_TEST_SUITE_P(Rows, BytesOfHexTest,
                         ::testing::Values(HexRow{"empty", "", ""}, HexRow{"digits", "3039", "09"},
                                           HexRow{"both_cases", "4a4B", "JK"},
                                           HexRow{"zero_and_high", "00ff",
                                                  std::string("\0\xff", 2)},
                                           HexRow{"half_a_pair", "303", std::nullopt},
                                           HexRow{"no_digit", "3g", std::nullopt},
                                           HexRow{"blank", "30 31 ", std::nullopt},
                                           HexRow{"prefix", "0x30", std::nullopt},
                                           HexRow{"high_byte", "3\xb0", std::nullopt}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(BytesOfHexTest, InvertsBytesToHexString) {
  std::string all(256, '\0');
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<char>(i);
  EXPECT_EQ(bytes_of_hex(absl::BytesToHexString(all)), all);
}

TEST(TextCursorTest, ReadsFromLeftToRight) {
  TextCursor cursor("mesh", " {ab1 = -12,9} rest ");
  EXPECT_FALSE(cursor.consume('}'));
  EXPECT_TRUE(cursor.next_is('{'));
  EXPECT_TRUE(cursor.consume('{'));
  EXPECT_EQ(cursor.read_integer(), std::nullopt);
  EXPECT_EQ(cursor.read_name(), "ab1");
  EXPECT_EQ(cursor.read_name(), "");
  EXPECT_TRUE(cursor.consume('='));
  EXPECT_EQ(cursor.read_integer(), -12);
  EXPECT_TRUE(cursor.consume(','));
  EXPECT_EQ(cursor.read_integer(), 9);
  EXPECT_TRUE(cursor.consume('}'));
  EXPECT_FALSE(cursor.at_end());
  EXPECT_EQ(cursor.rest(), "rest ");
  EXPECT_EQ(cursor.read_name(), "rest");
  EXPECT_TRUE(cursor.at_end());
  EXPECT_FALSE(cursor.next_is('x'));
  EXPECT_EQ(cursor.rest(), "");
}

TEST(TextCursorTest, IntegersPast64BitsAreNone) {
  EXPECT_EQ(TextCursor("n", "9223372036854775807").read_integer(), 9223372036854775807);
  EXPECT_EQ(TextCursor("n", "9223372036854775808").read_integer(), std::nullopt);
  EXPECT_EQ(TextCursor("n", "-").read_integer(), std::nullopt);
  EXPECT_EQ(TextCursor("n", "").read_integer(), std::nullopt);
}

TEST(TextCursorTest, SaysWhatIsWhere) {
  TextCursor cursor("mesh", "{ batch4!");
  EXPECT_THAT(
      cursor.expected("a name"),
      StatusIs(kInvalid, "mesh \"{ batch4!\" has \"{\" at character 1, where a name should be"));
  cursor.consume('{');
  EXPECT_THAT(cursor.expected("\"}\""),
              StatusIs(kInvalid,
                       "mesh \"{ batch4!\" has \"batch4\" at character 3, where \"}\" should be"));
  cursor.read_name();
  cursor.consume('!');
  EXPECT_THAT(cursor.expected("\"}\""),
              StatusIs(kInvalid, "mesh \"{ batch4!\" ends where \"}\" should follow"));
}

}  // namespace
}  // namespace tessera
