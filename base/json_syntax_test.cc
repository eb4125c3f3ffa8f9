// SPDX-License-Identifier: Apache-2.0
//
// Good texts, and each problem of a bad one.
#include "base/json_syntax.h"

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(JsonSyntaxTest, GoodTextsHaveNoProblem) {
  for (const char* text : {"{}", "[1, 2.5, -3, \"x\", null, true]", "{\"a\": {\"a\": [{}]}}",
                           "[{\"a\": 1}, {\"a\": 2}]"}) {
    EXPECT_EQ(json_problem(text, "x"), "") << text;
  }
}

TEST(JsonSyntaxTest, SaysWhereATextGoesWrong) {
  EXPECT_EQ(json_problem("{a", "an object"),
            "is not valid JSON at character 2, at \"{a\"; expected an object");
  EXPECT_THAT(json_problem("", "an object"),
              ::testing::StartsWith("is not valid JSON at character 1, "));
  EXPECT_THAT(json_problem("{} x", "an object"), ::testing::HasSubstr("at character 4"));
}

TEST(JsonSyntaxTest, FindsAFieldThatIsGivenTwice) {
  EXPECT_EQ(json_problem("{\"a\": 1, \"a\": 1}", "x"), "field \"a\" is given twice; give it once");
}

}  // namespace
}  // namespace tessera
