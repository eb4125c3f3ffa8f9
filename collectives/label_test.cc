// SPDX-License-Identifier: Apache-2.0
//
// A Label as one text, and as much of it as fits.
#include "collectives/label.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

struct LabelCase {
  const char* name;
  Label label;
  const char* text;
};
std::vector<LabelCase> label_cases() {
  const std::string shared = "[x, -] -> [-, x] on {x=2}, f32 [8, 6]";
  return {
      {"none", Label(), ""},
      {"text", "barrier", "barrier"},
      {"long_text", absl::StrCat("barrier on ", shared),
       "barrier on [x, -] -> [-, x] on {x=2}, f32 [8, 6]"},
      {"numbered", Label(std::string("relayout"), 12, shared),
       "relayout #12 [x, -] -> [-, x] on {x=2}, f32 [8, 6]"},
      {"largest_number", Label(std::string("relayout"), ~uint64_t{0}, std::string("s")),
       "relayout #18446744073709551615 s"},
      {"without_number",
       Label(std::string("barrier"), 0, std::string("\"a\""), std::string("on {x=2}")),
       "barrier \"a\" on {x=2}"},
      {"number_alone", Label(std::string("send"), 3, std::string()), "send #3"},
  };
}

TEST(LabelTest, IsPutTogetherWhenAskedFor) {
  for (const LabelCase& c : label_cases()) {
    EXPECT_EQ(c.label.to_string(), c.text) << c.name;
    EXPECT_EQ(c.label.empty(), std::string(c.text).empty()) << c.name;
  }
}

TEST(LabelTest, AsMuchAsFitsIsCopied) {
  for (const LabelCase& c : label_cases()) {
    const std::string text = c.text;
    for (size_t size = 1; size <= text.size() + 2; ++size) {
      std::vector<char> room(size, '?');
      const size_t length = c.label.copy_to(absl::MakeSpan(room));
      EXPECT_EQ(length, std::min(size - 1, text.size())) << c.name;
      EXPECT_EQ(room[length], '\0') << c.name;
      const std::string copied(room.data());
      EXPECT_TRUE(size <= text.size() || copied == text) << c.name;
    }
  }
}

// Names that differ at the end alone are told apart.
TEST(LabelTest, OfALongTextBothEndsAreCopied) {
  const Label label(std::string("relayout"), 12, std::string("from [x] to [y]"));
  char room[18];
  EXPECT_EQ(label.copy_to(absl::MakeSpan(room)), 17u);
  EXPECT_STREQ(room, "relayou... to [y]");
  char short_room[4];
  EXPECT_EQ(label.copy_to(absl::MakeSpan(short_room)), 3u);
  EXPECT_STREQ(short_room, "...");
  EXPECT_EQ(copy_cut(absl::MakeSpan(short_room), "ab"), 2u);
  EXPECT_STREQ(short_room, "ab");
}

TEST(SharedTest, CopiesShareWhatIsLong) {
  const std::string text = "longer than a string without the heap";
  const SharedText a = text;
  const SharedText b = a;
  EXPECT_EQ(b.view(), text);
  EXPECT_EQ(a.view().data(), b.view().data());
  EXPECT_EQ(SharedText(std::string("short")).view(), "short");
  EXPECT_EQ(b.hash(), stable_hash(text));
  EXPECT_EQ(SharedText(std::string("short")).hash(), stable_hash("short"));

  const Shared<std::vector<int>> list = std::vector<int>{1, 2};
  const Shared<std::vector<int>> same = list;
  EXPECT_EQ(&*list, &*same);
  EXPECT_EQ(same->size(), 2u);
  EXPECT_TRUE(Shared<std::vector<int>>()->empty());
}

}  // namespace
}  // namespace tessera
