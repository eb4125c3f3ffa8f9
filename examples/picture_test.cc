// SPDX-License-Identifier: Apache-2.0
//
// Pictures of layouts, as text.
#include "examples/picture.h"

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::examples {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string draw_on(const char* mesh_text, const char* layout_text, const Shape& shape,
                    Colour colour = Colour::kNever) {
  const Mesh mesh = *Mesh::parse(mesh_text);
  return draw(*Layout::parse(mesh, layout_text), shape, colour);
}

TEST(PictureTest, CopiesShareATile) {
  EXPECT_EQ(draw_on("{batch=2, model=2}", "[batch, -]", {3, 6}),
            "[batch, -] of [3, 6] on {batch=2, model=2}\n"
            "              cols 0:6\n"
            "            +-------------+\n"
            " rows 0:2   | devices 0,1 |\n"
            "            |             |\n"
            "            +-------------+\n"
            " rows 2:3   | devices 2,3 |\n"
            "            +-------------+\n");
}

TEST(PictureTest, BothDimsSplit) {
  EXPECT_EQ(draw_on("{x=2, y=2}", "[y, x]", {2, 4}),
            "[y, x] of [2, 4] on {x=2, y=2}\n"
            "              cols 0:2   cols 2:4\n"
            "            +----------+----------+\n"
            " rows 0:1   | device 0 | device 2 |\n"
            "            +----------+----------+\n"
            " rows 1:2   | device 1 | device 3 |\n"
            "            +----------+----------+\n");
}

TEST(PictureTest, DevicesWithoutElementsAreNotDrawn) {
  const std::string picture = draw_on("{x=4}", "[x, -]", {3, 1});
  EXPECT_THAT(picture, HasSubstr("device 2"));
  EXPECT_THAT(picture, Not(HasSubstr("device 3")));
}

TEST(PictureTest, ColourIsAskedFor) {
  EXPECT_THAT(draw_on("{x=2}", "[x, -]", {2, 2}, Colour::kAlways), HasSubstr("\x1b["));
  EXPECT_THAT(draw_on("{x=2}", "[x, -]", {2, 2}), Not(HasSubstr("\x1b[")));
}

}  // namespace
}  // namespace tessera::examples
