// SPDX-License-Identifier: Apache-2.0
//
// Pictures of layouts: golden texts, refusals, and every cell against Layout::box.
#include "visualize/visualize.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::StatusIs;
using ::testing::Contains;
using ::testing::HasSubstr;

StatusOr<Layout> layout_of(const std::string& mesh, const std::string& text) {
  return Layout::parse(*Mesh::parse(mesh), text);
}

struct PictureCase {
  std::string name, mesh, layout;
  Shape shape;
  std::string picture;
};

// clang-format off
const PictureCase kPictures[] = {
    {"rank_0_run_of_copies", "{x=4}", "[]", {},
R"([] on {x=4}, shape []
    +-----+
    | 0-3 |
    +-----+
)"},
    {"rank_1_uneven", "{x=3}", "[x]", {7},
R"([x] on {x=3}, shape [7]
      0:3   3:5   5:7
    +-----+-----+-----+
    |  0  |  1  |  2  |
    +-----+-----+-----+
)"},
    {"rank_2_with_copies", "{batch=2, model=2}", "[-, model]", {5, 4},
R"([-, model] on {batch=2, model=2}, shape [5, 4]
          0:2   2:4
        +-----+-----+
    0:5 | 0,2 | 1,3 |
        +-----+-----+
)"},
    {"rank_3_planes", "{x=2, y=2}", "[x, y, -]", {2, 4, 3},
R"([x, y, -] on {x=2, y=2}, shape [2, 4, 3]
  dim 0 at 0:1
          0:3
        +-----+
    0:2 |  0  |
        +-----+
    2:4 |  1  |
        +-----+
  dim 0 at 1:2
          0:3
        +-----+
    0:2 |  2  |
        +-----+
    2:4 |  3  |
        +-----+
)"},
    {"terms", "{x=2, y=2}", "[x] sum{y}", {4},
R"([x] sum{y} on {x=2, y=2}, shape [4]
         0:2         2:4
    +-----------+-----------+
    | sum(0; 1) | sum(2; 3) |
    +-----------+-----------+
)"},
    {"in_docs_relayout_md", "{batch=2, model=2, term=2}", "[batch, model] sum{term}", {5, 4},
R"([batch, model] sum{term} on {batch=2, model=2, term=2}, shape [5, 4]
             0:2         2:4
        +-----------+-----------+
    0:3 | sum(0; 1) | sum(2; 3) |
        +-----------+-----------+
    3:5 | sum(4; 5) | sum(6; 7) |
        +-----------+-----------+
)"},
    {"more_shards_than_elements", "{x=4}", "[x]", {2},
R"([x] on {x=4}, shape [2]
      0:1   1:2
    +-----+-----+
    |  0  |  2  |
    +-----+-----+
  hold nothing: 1,3
)"},
    {"no_elements", "{x=2}", "[x, -]", {0, 3},
R"([x, -] on {x=2}, shape [0, 3]
  hold nothing: 0,1
)"},
};
// clang-format on

TEST(VisualizeTest, DrawsTheTextsOfTheTable) {
  for (const PictureCase& row : kPictures) {
    const StatusOr<std::string> text = visualize(layout_of(row.mesh, row.layout), row.shape);
    ASSERT_TRUE(text.ok()) << row.name << ": " << text.status();
    EXPECT_EQ(*text, row.picture) << row.name;
  }
}

TEST(VisualizeTest, LongListsAreCutAndCounted) {
  const StatusOr<std::string> text = visualize(layout_of("{x=64, y=2}", "[y]"), {4});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("0,2,4,6,8,10,12,14,16,18,20,... (64 devices)"));
}

TEST(VisualizeTest, RefusesWhatCannotBeDrawn) {
  EXPECT_THAT(
      visualize(layout_of("{x=2}", "[-, -, -, x]"), {2, 2, 2, 2}),
      StatusIs(absl::StatusCode::kUnimplemented,
               HasSubstr("layout [-, -, -, x] has 4 dims; a picture has at most 3 of them")));
  EXPECT_THAT(visualize(layout_of("{x=8192}", "[x]"), {2}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("mesh {x=8192} has 8192 devices; a picture has at most 4096")));
  EXPECT_THAT(visualize(layout_of("{x=2}", "[x]"), {2, 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("give one entry per dim")));
  EXPECT_THAT(visualize_svg(layout_of("{x=2}", "[z]"), {2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"z\"")));
}

// The ids that the last line of a picture lists.
std::vector<int64_t> devices_of(absl::string_view line) {
  EXPECT_TRUE(absl::ConsumePrefix(&line, "  hold nothing: ")) << line;
  std::vector<int64_t> ids;
  for (absl::string_view run : absl::StrSplit(line, ',')) {
    const std::vector<std::string> ends = absl::StrSplit(run, '-');
    int64_t first = 0, last = 0;
    EXPECT_TRUE(absl::SimpleAtoi(ends.front(), &first) && absl::SimpleAtoi(ends.back(), &last));
    for (int64_t id = first; id <= last; ++id) ids.push_back(id);
  }
  return ids;
}

// Every device of an unreplicated layout is in the row and column of its box. Reads the picture
// back by its headings.
TEST(VisualizeTest, EveryDeviceIsWhereItsBoxIs) {
  int checked = 0;
  for (int64_t rows = 0; rows <= 7; ++rows) {
    for (int64_t columns = 1; columns <= 7; ++columns) {
      const Layout layout = *layout_of("{x=3, y=2}", "[y, x]");
      const Shape shape = {rows, columns};
      const StatusOr<std::string> text = visualize(layout, shape);
      ASSERT_TRUE(text.ok()) << text.status();
      std::vector<std::string> lines;
      for (size_t begin = 0, end; (end = text->find('\n', begin)) != std::string::npos;
           begin = end + 1) {
        lines.push_back(text->substr(begin, end - begin));
      }
      for (int64_t position = 0; position < layout.mesh().size(); ++position) {
        const Box box = layout.box(shape, position);
        if (box.is_empty()) {
          EXPECT_THAT(devices_of(lines.back()), Contains(position));
          continue;
        }
        const auto heading = [&](int dim) {
          return absl::StrCat(box.offsets[dim], ":", box.offsets[dim] + box.sizes[dim]);
        };
        const size_t column = lines[1].find(heading(1)) + 1;
        bool found = false;
        for (const std::string& line : lines) {
          if (line.find(heading(0) + " |") == std::string::npos) continue;
          found = line.substr(column - 2, 5).find(absl::StrCat(position)) != std::string::npos;
        }
        EXPECT_TRUE(found) << *text << "device " << position << " is not at " << box.to_string();
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 150);
}

TEST(VisualizeTest, SvgNamesEveryCellAndHeading) {
  const StatusOr<std::string> svg = visualize_svg(layout_of("{x=2, y=2}", "[x, y, -]"), {2, 4, 3});
  ASSERT_TRUE(svg.ok()) << svg.status();
  for (const char* text : {">0<", ">1<", ">2<", ">3<", ">0:2<", ">2:4<", ">0:3<", ">dim 0 at 0:1<",
                           ">dim 0 at 1:2<"}) {
    EXPECT_THAT(*svg, HasSubstr(text));
  }
}

}  // namespace
}  // namespace tessera
