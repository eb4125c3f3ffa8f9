// SPDX-License-Identifier: Apache-2.0
//
// Strict JSON: values are exact, and every text that two readers could take for two values is
// refused.
#include "files/json_reader.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::files {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::IsOkAndHolds;
using testing::StatusIs;

template <size_t kSize>
std::string bytes_of(const char (&text)[kSize]) {
  return std::string(text, kSize - 1);
}

// The document as text again, without blanks.
std::string format(const JsonValue& value) {
  std::string result;
  if (value.kind() == JsonKind::kArray) {
    for (const JsonValue element : value.elements()) {
      absl::StrAppend(&result, result.empty() ? "" : ",", format(element));
    }
    return absl::StrCat("[", result, "]");
  }
  if (value.kind() == JsonKind::kObject) {
    for (const auto& [name, member] : value.members()) {
      absl::StrAppend(&result, result.empty() ? "" : ",");
      append_json_text(name, &result);
      absl::StrAppend(&result, ":", format(member));
    }
    return absl::StrCat("{", result, "}");
  }
  if (value.kind() == JsonKind::kText) {
    append_json_text(*value.to_text(), &result);
    return result;
  }
  return value.to_string();
}

TEST(JsonReaderTest, ValuesComeInTheOrderOfTheText) {
  for (const char* const text : {
           "null",
           "true",
           "false",
           "\"\"",
           "[]",
           "{}",
           "[[],{},[[[]]],0]",
           "[18446744073709551615,-9223372036854775808,9007199254740993]",
           "[1.0,1e0,-0,18446744073709551616,-9223372036854775809,1E+5]",
           "{\"b\":[1,{\"c\":[2,3]},4],\"a\":{\"d\":null,\"e\":\"f\"},\"\":5}",
       }) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const JsonDocument document, JsonDocument::parse(text));
    EXPECT_EQ(format(document.root()), text);
  }
}

TEST(JsonReaderTest, SizesAndMembers) {
  TESSERA_ASSERT_OK_AND_ASSIGN(JsonDocument made, JsonDocument::parse(" { \"a\" : [1, [2, 3], 4],\n"
                                                                      "\"b\": {\"c\": 5}, \"d\": "
                                                                      "6 }\t\r\n"));
  const JsonDocument document = std::move(made);
  const JsonValue root = document.root();
  EXPECT_EQ(root.size(), 3u);
  EXPECT_EQ(root.find("a")->size(), 3u);
  EXPECT_EQ(root.find("d")->size(), 0u);
  EXPECT_THAT(root.find("d")->to_integer(), IsOkAndHolds(6));
  EXPECT_THAT(root.find("b")->member("c")->to_integer(), IsOkAndHolds(5));
  EXPECT_EQ(root.find("c"), std::nullopt);  // not of an inner object
  EXPECT_THAT(root.member("c"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("\"c\" is missing")));
  EXPECT_THAT(root.find("a")->member("c"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("an array is not an object")));
  for (const JsonValue none : root.find("d")->elements()) FAIL() << none.to_string();
  for (const JsonMember none : root.find("a")->members()) FAIL() << none.name;
}

TEST(JsonReaderTest, TextsAreBytesOfUtf8) {
  struct Case {
    const char* name;
    const char* text;
    std::string expected;
  };
  const Case cases[] = {
      {"escapes", R"("\"\\\/\b\f\n\r\t")", "\"\\/\b\f\n\r\t"},
      {"code_points", R"("\u0041\u00e9\u20ac")", "A\xc3\xa9\xe2\x82\xac"},
      {"surrogate_pair", R"("\ud83d\ude00")", "\xf0\x9f\x98\x80"},
      {"zero", R"("a\u0000b")", bytes_of("a\0b")},
      {"utf8", "\"\xc3\xa9\"", "\xc3\xa9"},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(row.name);
    TESSERA_ASSERT_OK_AND_ASSIGN(const JsonDocument document, JsonDocument::parse(row.text));
    EXPECT_THAT(document.root().to_text(), IsOkAndHolds(row.expected));
    std::string written;
    append_json_text(row.expected, &written);
    TESSERA_ASSERT_OK_AND_ASSIGN(const JsonDocument again, JsonDocument::parse(written));
    EXPECT_THAT(again.root().to_text(), IsOkAndHolds(row.expected));
  }
}

TEST(JsonReaderTest, EveryCharacterIsWrittenAndReadBack) {
  std::string text;
  for (char c = 0; c < 127; ++c) text.push_back(c);
  std::string written;
  append_json_text(text, &written);
  EXPECT_THAT(written, HasSubstr("\\u0000\\u0001"));
  EXPECT_THAT(written, HasSubstr("\\b\\t\\n\\u000b\\f\\r\\u000e"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const JsonDocument document, JsonDocument::parse(written));
  EXPECT_THAT(document.root().to_text(), IsOkAndHolds(text));
}

// Integers of 64 bits are exact; no other number is an integer.
TEST(JsonReaderTest, IntegersAreExact) {
  struct Case {
    const char* text;
    StatusOr<int64_t> expected;
  };
  const Case cases[] = {
      {"0", 0},
      {"-1", -1},
      {"9007199254740993", 9007199254740993},  // 2^53 + 1
      {"9223372036854775807", INT64_MAX},
      {"-9223372036854775808", INT64_MIN},
      {"9223372036854775808", absl::InvalidArgumentError("9223372036854775808 is over 2^63 - 1")},
      {"18446744073709551616",
       absl::InvalidArgumentError(
           "18446744073709551616 is not an integer of 64 bits, written in digits")},
      {"1.0", absl::InvalidArgumentError("1.0 is not an integer of 64 bits, written in digits")},
      {"1e0", absl::InvalidArgumentError("1e0 is not an integer of 64 bits, written in digits")},
      {"-0", absl::InvalidArgumentError("-0 is not an integer of 64 bits, written in digits")},
      {"\"1\"", absl::InvalidArgumentError("\"1\" is not an integer")},
      {"null", absl::InvalidArgumentError("null is not an integer")},
      {"[1]", absl::InvalidArgumentError("an array is not an integer")},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(row.text);
    TESSERA_ASSERT_OK_AND_ASSIGN(const JsonDocument document, JsonDocument::parse(row.text));
    EXPECT_EQ(document.root().to_integer(), row.expected);
  }
}

TEST(JsonReaderTest, OtherKindsNameTheValue) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const JsonDocument document, JsonDocument::parse("32"));
  EXPECT_THAT(document.root().to_text(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("32 is not a string")));
  EXPECT_THAT(document.root().to_elements(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("32 is not an array")));
  EXPECT_THAT(document.root().to_members(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("32 is not an object")));
}

TEST(JsonReaderTest, MalformedTextsNameTheByte) {
  struct Case {
    const char* name;
    std::string text;
    const char* message;
  };
  const Case cases[] = {
      {"empty", "", "it is not JSON: it is empty"},
      {"blank", " ", "at byte 1, at \" \": unexpected end of input"},
      {"cut", "{\"a\":[1", "at byte 7, at \"1\": unexpected end of input"},
      {"text_after", "{}x", "at byte 2, at \"{}x\": invalid literal"},
      {"value_after", "1 2", "at byte 2, at \"2\": unexpected number literal"},
      {"trailing_comma", "[1,]", "at byte 3, at \"1,]\": unexpected ']'"},
      {"comment", "{/*x*/}", "at byte 1, at \"{/\": invalid literal"},
      {"single_quotes", "['a']", "at byte 1, at \"['\": invalid literal"},
      {"nan", "[NaN]", "at byte 1, at \"[N\": invalid literal"},
      {"plus", "+1", "invalid literal"},
      {"leading_zero", "01", "unexpected number literal"},
      {"large_exponent", "1e999", "number overflow parsing '1e999'"},
      {"lone_surrogate", R"(["\ud800"])", "surrogate U+D800..U+DBFF must be followed"},
      {"control_byte", "\"a\x01\"", "control character U+0001 (SOH) must be escaped"},
      {"zero_after", bytes_of("{}\0"), "it is not JSON at byte 2: byte 00"},
      {"zero_inside", bytes_of("\"a\0\""), "it is not JSON at byte 2: byte 00"},
      {"mark", "\xef\xbb\xbf{}", "its JSON begins with byte ef, a byte order mark"},
      {"no_utf8", "\"\xff\"", "it is not UTF-8 at byte 1: ff"},
      {"overlong", "\"\xc0\x80\"", "it is not UTF-8 at byte 1: c0 80"},
      {"utf8_surrogate", "\"\xed\xa0\x80\"", "it is not UTF-8 at byte 1: ed a0 80"},
      {"cut_utf8", "\"\xe2\x82", "it is not UTF-8 at byte 1: e2 82"},
      {"name_twice", "{\"a\":1,\"b\":[],\"a\":2}", "it has the name \"a\" twice in one object"},
      {"name_twice_escaped", R"({"a":1,"\u0061":2})", "it has the name \"a\" twice"},
      {"name_twice_inside", R"([{"b":{"a":1,"a":2}}])", "it has the name \"a\" twice"},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(row.name);
    EXPECT_THAT(JsonDocument::parse(row.text),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(row.message)));
  }
}

TEST(JsonReaderTest, TheFirstByteMayHaveToBeABrace) {
  EXPECT_THAT(JsonDocument::parse("{}  ", JsonStart::kBrace), IsOk());
  EXPECT_THAT(JsonDocument::parse(" {}"), IsOk());
  for (const auto& [text, byte] :
       {std::pair{" {}", "20"}, {"[]", "5b"}, {"\xef\xbb\xbf{}", "ef"}}) {
    EXPECT_THAT(JsonDocument::parse(text, JsonStart::kBrace),
                StatusIs(StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("begins with byte ", byte, ", where \"{\""))));
  }
}

std::string nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(JsonReaderTest, DepthIsLimited) {
  EXPECT_THAT(JsonDocument::parse(nested(JsonDocument::kMaxDepth)), IsOk());
  for (const int depth : {JsonDocument::kMaxDepth + 1, 200, 100'000}) {
    EXPECT_THAT(JsonDocument::parse(nested(depth)),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("in more than 64 levels")));
    std::string objects;
    for (int i = 0; i < depth; ++i) absl::StrAppend(&objects, "{\"a\":");
    EXPECT_THAT(JsonDocument::parse(objects),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("in more than 64 levels")));
  }
}

// An object of many members: the check of names is not quadratic.
TEST(JsonReaderTest, ManyMembers) {
  constexpr int kCount = 200'000;
  std::string text = "{";
  for (int i = 0; i < kCount; ++i) absl::StrAppend(&text, "\"t", i, "\":[", i, "],");
  EXPECT_THAT(JsonDocument::parse(absl::StrCat(text, "\"t77\":0}")),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("the name \"t77\" twice")));
  TESSERA_ASSERT_OK_AND_ASSIGN(const JsonDocument document,
                               JsonDocument::parse(absl::StrCat(text, "\"x\":0}")));
  int count = 0;
  for (const auto& [name, value] : document.root().members()) {
    if (name == "x") continue;
    ASSERT_EQ(name, absl::StrCat("t", count));
    ASSERT_THAT((*value.elements().begin()).to_integer(), IsOkAndHolds(count));
    ++count;
  }
  EXPECT_EQ(count, kCount);
}

}  // namespace
}  // namespace tessera::files
