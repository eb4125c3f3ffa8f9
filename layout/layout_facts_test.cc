// SPDX-License-Identifier: Apache-2.0
//
// Layouts with known answers: cases worked out by hand or taken from what TF DTensor, JAX, XLA and
// PyTorch test, in Tessera's notation. Device ids are row-major unless the mesh lists them. Boxes
// are half-open and print as "ids: box"; several ids before a box are replicas.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::Le;
using ::testing::ValuesIn;

template <class Row>
std::string row_name(const ::testing::TestParamInfo<Row>& info) {
  return info.param.name;
}

StatusOr<Layout> layout_on(absl::string_view mesh_text, absl::string_view layout_text) {
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, Mesh::parse(mesh_text));
  return Layout::parse(std::move(mesh), layout_text);
}

// "[x, -] on {x=8}".
StatusOr<Layout> layout_with_mesh(absl::string_view text) {
  const size_t on = text.find(" on ");
  return layout_on(text.substr(on + 4), text.substr(0, on));
}

std::string box_text(const Box& box) {
  std::vector<std::string> intervals;
  for (size_t i = 0; i < box.sizes.size(); ++i) {
    intervals.push_back(box.sizes[i] == 0
                            ? "empty"
                            : absl::StrCat(box.offsets[i], ":", box.offsets[i] + box.sizes[i]));
  }
  return absl::StrCat("[", absl::StrJoin(intervals, ", "), "]");
}

// The box of each device, by device id.
std::map<int, Box> boxes_by_device(const Layout& layout, const Shape& shape) {
  std::map<int, Box> boxes;
  for (int64_t position = 0; position < layout.mesh().size(); ++position) {
    boxes[layout.mesh().device_ids()[position]] = layout.box(shape, position);
  }
  return boxes;
}

// The distinct boxes with the devices that hold them, in the order of the lowest device.
std::vector<std::pair<Box, std::vector<int>>> holders(const Layout& layout, const Shape& shape) {
  std::vector<std::pair<Box, std::vector<int>>> result;
  for (const auto& [device, box] : boxes_by_device(layout, shape)) {
    auto found = std::find_if(result.begin(), result.end(),
                              [&box = box](const auto& entry) { return entry.first == box; });
    if (found == result.end()) found = result.insert(found, {box, {}});
    found->second.push_back(device);
  }
  return result;
}

struct BoxRow {
  const char* name;
  const char* mesh;
  const char* layout;
  Shape shape;
  const char* boxes;
};
const BoxRow kBoxRows[] = {
    {"second_axis", "{x=4, y=2}", "[y, -]", {8, 2}, "0,2,4,6: [0:4, 0:2]; 1,3,5,7: [4:8, 0:2]"},
    {"two_axes_on_one_dim",
     "{x=4, y=2}",
     "[(x,y), -]",
     {8, 2},
     "0: [0:1, 0:2]; 1: [1:2, 0:2]; 2: [2:3, 0:2]; 3: [3:4, 0:2]; 4: [4:5, 0:2]; "
     "5: [5:6, 0:2]; 6: [6:7, 0:2]; 7: [7:8, 0:2]"},
    {"first_axis_on_second_dim",
     "{x=4, y=2}",
     "[-, x]",
     {8, 4},
     "0,1: [0:8, 0:1]; 2,3: [0:8, 1:2]; 4,5: [0:8, 2:3]; 6,7: [0:8, 3:4]"},
    {"uneven_second_dim",
     "{x=4, y=2}",
     "[x, y]",
     {8, 3},
     "0: [0:2, 0:2]; 1: [0:2, 2:3]; 2: [2:4, 0:2]; 3: [2:4, 2:3]; 4: [4:6, 0:2]; "
     "5: [4:6, 2:3]; 6: [6:8, 0:2]; 7: [6:8, 2:3]"},
    {"one_row_two_shards",
     "{x=2, y=2}",
     "[x, y]",
     {1, 2},
     "0: [0:1, 0:1]; 1: [0:1, 1:2]; 2: [empty, 0:1]; 3: [empty, 1:2]"},
    {"scrambled_devices",
     "{x=4, y=2} on 0,2,3,1,4,6,7,5",
     "[x, y]",
     {8, 2},
     "0: [0:2, 0:1]; 1: [2:4, 1:2]; 2: [0:2, 1:2]; 3: [2:4, 0:1]; 4: [4:6, 0:1]; "
     "5: [6:8, 1:2]; 6: [4:6, 1:2]; 7: [6:8, 0:1]"},
    {"one_device", "{x=1}", "[x, -]", {8, 2}, "0: [0:8, 0:2]"},
    {"two_of_four_axes",
     "{a=2, b=2, c=2, d=2}",
     "[-, (d,b), c, -]",
     {8, 4, 2, 2},
     "0,8: [0:8, 0:1, 0:1, 0:2]; 1,9: [0:8, 2:3, 0:1, 0:2]; "
     "2,10: [0:8, 0:1, 1:2, 0:2]; 3,11: [0:8, 2:3, 1:2, 0:2]; "
     "4,12: [0:8, 1:2, 0:1, 0:2]; 5,13: [0:8, 3:4, 0:1, 0:2]; "
     "6,14: [0:8, 1:2, 1:2, 0:2]; 7,15: [0:8, 3:4, 1:2, 0:2]"},
    {"sub_axes_swapped",
     "{x=4}",
     "[(x:(2)2,x:(1)2)]",
     {8},
     "0: [0:2]; 1: [4:6]; 2: [2:4]; 3: [6:8]"},
    {"sub_axis_of_six_by_two",
     "{x=6}",
     "[x:(1)2, -]",
     {6, 2},
     "0,1,2: [0:3, 0:2]; 3,4,5: [3:6, 0:2]"},
    {"sub_axis_of_six_by_three_major",
     "{x=6}",
     "[x:(1)3, -]",
     {6, 2},
     "0,1: [0:2, 0:2]; 2,3: [2:4, 0:2]; 4,5: [4:6, 0:2]"},
    {"sub_axis_of_six_by_three_minor",
     "{x=6}",
     "[x:(2)3, -]",
     {6, 2},
     "0,3: [0:2, 0:2]; 1,4: [2:4, 0:2]; 2,5: [4:6, 0:2]"},
    {"sub_axis_of_six_by_two_minor",
     "{x=6}",
     "[-, x:(3)2]",
     {6, 2},
     "0,2,4: [0:6, 0:1]; 1,3,5: [0:6, 1:2]"},
    {"sub_axes_across_dims",
     "{a=4, b=2, c=2}",
     "[(b,a:(1)2), (a:(2)2,c)]",
     {4, 4},
     "0: [0:1, 0:1]; 1: [0:1, 1:2]; 2: [2:3, 0:1]; 3: [2:3, 1:2]; 4: [0:1, 2:3]; "
     "5: [0:1, 3:4]; 6: [2:3, 2:3]; 7: [2:3, 3:4]; 8: [1:2, 0:1]; 9: [1:2, 1:2]; "
     "10: [3:4, 0:1]; 11: [3:4, 1:2]; 12: [1:2, 2:3]; 13: [1:2, 3:4]; "
     "14: [3:4, 2:3]; 15: [3:4, 3:4]"},
    {"uneven_outer", "{x=2, y=2}", "[x]", {5}, "0,1: [0:3]; 2,3: [3:5]"},
    {"zero_rows", "{x=4}", "[x, -]", {0, 3}, "0,1,2,3: [empty, 0:3]"},
    {"scalar", "{x=2, y=3}", "[]", {}, "0,1,2,3,4,5: []"},
    {"partial_boxes", "{x=2, y=3}", "[y] sum{x}", {6}, "0,3: [0:2]; 1,4: [2:4]; 2,5: [4:6]"},
    {"ten_over_four", "{x=2, y=2}", "[(x,y)]", {10}, "0: [0:3]; 1: [3:5]; 2: [5:8]; 3: [8:10]"},
    {"batch_model",
     "{batch=4, model=2}",
     "[batch, model]",
     {10, 6},
     "0: [0:3, 0:3]; 1: [0:3, 3:6]; 2: [3:5, 0:3]; 3: [3:5, 3:6]; 4: [5:8, 0:3]; "
     "5: [5:8, 3:6]; 6: [8:10, 0:3]; 7: [8:10, 3:6]"},
    {"reversed_ids",
     "{x=2, y=2} on 3,2,1,0",
     "[x, y]",
     {16, 8},
     "0: [8:16, 4:8]; 1: [8:16, 0:4]; 2: [0:8, 4:8]; 3: [0:8, 0:4]"},
    // One dim cut by two axes, unevenly.
    {"nested_13_on_4x2",
     "{x=4, y=2}",
     "[(x,y), -]",
     {13, 2},
     "0: [0:2, 0:2]; 1: [2:4, 0:2]; 2: [4:5, 0:2]; 3: [5:7, 0:2]; 4: [7:9, 0:2]; "
     "5: [9:10, 0:2]; 6: [10:12, 0:2]; 7: [12:13, 0:2]"},
    {"reversed_15_on_4x2",
     "{x=4, y=2}",
     "[(y,x)]",
     {15},
     "0: [0:2]; 1: [8:10]; 2: [2:4]; 3: [10:12]; 4: [4:6]; 5: [12:14]; 6: [6:8]; 7: [14:15]"},
    {"reversed_8_on_2x2", "{x=2, y=2}", "[(y,x)]", {8}, "0: [0:2]; 1: [4:6]; 2: [2:4]; 3: [6:8]"},
    {"rows_after_two_cuts",
     "{fsdp=2, tp=2}",
     "[(fsdp,tp), -]",
     {4, 2},
     "0: [0:1, 0:2]; 1: [1:2, 0:2]; 2: [2:3, 0:2]; 3: [3:4, 0:2]"},
    {"rows_after_two_cuts_reversed",
     "{fsdp=2, tp=2}",
     "[(tp,fsdp), -]",
     {4, 2},
     "0: [0:1, 0:2]; 1: [2:3, 0:2]; 2: [1:2, 0:2]; 3: [3:4, 0:2]"},
    // 2 clients of 2 devices: client 0 (devices 0, 1) holds rows 0 and 1, client 1 rows 2 and 3.
    {"boxes_of_a_client",
     "{x=4, y=1}",
     "[x, y]",
     {4, 1},
     "0: [0:1, 0:1]; 1: [1:2, 0:1]; 2: [2:3, 0:1]; 3: [3:4, 0:1]"},
};
class LayoutBoxesTest : public ::testing::TestWithParam<BoxRow> {};

TEST_P(LayoutBoxesTest, AreTheKnownOnes) {
  const BoxRow& row = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, layout_on(row.mesh, row.layout));
  std::vector<std::string> texts;
  for (const auto& [box, devices] : holders(layout, row.shape)) {
    texts.push_back(absl::StrCat(absl::StrJoin(devices, ","), ": ", box_text(box)));
  }
  EXPECT_EQ(absl::StrJoin(texts, "; "), row.boxes);
}
INSTANTIATE_TEST_SUITE_P(Rows, LayoutBoxesTest, ValuesIn(kBoxRows), row_name<BoxRow>);

struct ShapeRow {
  const char* name;
  const char* mesh;
  const char* layout;
  Shape shape;
  std::vector<int64_t> sizes;  // The sizes of every box.
};
const ShapeRow kShapeRows[] = {
    {"first_axis_on_rows", "{x=4, y=2}", "[x, -]", {8, 4}, {2, 4}},
    {"second_axis_on_rows", "{x=4, y=2}", "[y, -]", {8, 4}, {4, 4}},
    {"second_axis_on_columns", "{x=4, y=2}", "[-, y]", {8, 4}, {8, 2}},
    {"first_axis_on_columns", "{x=4, y=2}", "[-, x]", {8, 4}, {8, 1}},
    {"two_of_four_axes", "{a=2, b=2, c=2, d=2}", "[-, (d,b), c, -]", {8, 4, 2, 2}, {8, 1, 1, 2}},
    {"placement_s0s1s0", "{x=2, y=2, z=2}", "[(x,z), y, -]", {8, 8, 4}, {2, 4, 4}},
    {"placement_s1s1s1", "{x=2, y=2, z=2}", "[-, (x,y,z), -]", {8, 8, 4}, {8, 1, 4}},
    {"placement_rs1r", "{x=2, y=2, z=2}", "[-, y, -]", {8, 8, 4}, {8, 4, 4}},
    {"placement_s1s0s2", "{x=2, y=2, z=2}", "[y, x, z]", {8, 8, 4}, {4, 4, 2}},
    {"placement_rrs0", "{x=2, y=2, z=2}", "[z, -, -]", {8, 8, 4}, {4, 8, 4}},
};
class LayoutShardShapeTest : public ::testing::TestWithParam<ShapeRow> {};

TEST_P(LayoutShardShapeTest, IsTheSameEverywhere) {
  const ShapeRow& row = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, layout_on(row.mesh, row.layout));
  for (const auto& [device, box] : boxes_by_device(layout, row.shape)) {
    EXPECT_EQ(box.sizes, row.sizes) << "device " << device;
  }
}
INSTANTIATE_TEST_SUITE_P(Rows, LayoutShardShapeTest, ValuesIn(kShapeRows), row_name<ShapeRow>);

struct ClientBlockRow {
  const char* name;
  int clients;
  Shape shape;
};
const ClientBlockRow kClientBlockRows[] = {
    {"one_client", 1, {4, 4}},
    {"two_clients", 2, {8, 4}},
    {"four_clients", 4, {16, 4}},
    {"eight_clients", 8, {16, 8}},
};
class ClientBlockTest : public ::testing::TestWithParam<ClientBlockRow> {};

// The boxes of one client together: a block of 4 x 4, whatever the number of clients.
TEST_P(ClientBlockTest, EveryClientHoldsFourByFour) {
  const ClientBlockRow& row = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, layout_on("{a=2, b=2, c=2}", "[(a,b), c]"));
  const int devices = 8 / row.clients;
  for (int client = 0; client < row.clients; ++client) {
    std::vector<int64_t> first = row.shape, end = {0, 0};
    int64_t elements = 0;
    for (int device = client * devices; device < (client + 1) * devices; ++device) {
      const Box box = layout.box(row.shape, device);
      elements += box.num_elements();
      for (int dim = 0; dim < 2; ++dim) {
        first[dim] = std::min(first[dim], box.offsets[dim]);
        end[dim] = std::max(end[dim], box.offsets[dim] + box.sizes[dim]);
      }
    }
    EXPECT_EQ(end[0] - first[0], 4) << "client " << client;
    EXPECT_EQ(end[1] - first[1], 4) << "client " << client;
    EXPECT_EQ(elements, 16) << "client " << client;
  }
}
INSTANTIATE_TEST_SUITE_P(Rows, ClientBlockTest, ValuesIn(kClientBlockRows),
                         row_name<ClientBlockRow>);

struct SplitRow {
  const char* name;
  int64_t size;
  int64_t num_shards;
  std::vector<int64_t> sizes;
  std::vector<int64_t> boundaries;
};
const SplitRow kSplitRows[] = {
    {"size_7_over_3", 7, 3, {3, 2, 2}, {0, 3, 5, 7}},
    {"size_8_over_3", 8, 3, {3, 3, 2}, {0, 3, 6, 8}},
    {"size_31_over_2", 31, 2, {16, 15}, {0, 16, 31}},
    {"size_7_over_2", 7, 2, {4, 3}, {0, 4, 7}},
    {"size_33_over_8", 33, 8, {5, 4, 4, 4, 4, 4, 4, 4}, {0, 5, 9, 13, 17, 21, 25, 29, 33}},
    {"size_15_over_8", 15, 8, {2, 2, 2, 2, 2, 2, 2, 1}, {0, 2, 4, 6, 8, 10, 12, 14, 15}},
    {"size_15_over_4", 15, 4, {4, 4, 4, 3}, {0, 4, 8, 12, 15}},
    {"size_19_over_4", 19, 4, {5, 5, 5, 4}, {0, 5, 10, 15, 19}},
    {"size_6_over_4", 6, 4, {2, 1, 2, 1}, {0, 2, 3, 5, 6}},
    {"size_8_over_16",
     8,
     16,
     {1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0},
     {0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8}},
    {"size_12_over_5", 12, 5, {3, 2, 3, 2, 2}, {0, 3, 5, 8, 10, 12}},
    {"size_1_over_2", 1, 2, {1, 0}, {0, 1, 1}},
    {"size_0_over_4", 0, 4, {0, 0, 0, 0}, {0, 0, 0, 0, 0}},
    {"size_17_over_16",
     17,
     16,
     {2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
     {0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}},
    {"dtensor_size_12_over_4", 12, 4, {3, 3, 3, 3}, {0, 3, 6, 9, 12}},
    {"dtensor_size_13_over_4", 13, 4, {4, 3, 3, 3}, {0, 4, 7, 10, 13}},
    {"dtensor_size_14_over_4", 14, 4, {4, 3, 4, 3}, {0, 4, 7, 11, 14}},
    {"dtensor_size_16_over_4", 16, 4, {4, 4, 4, 4}, {0, 4, 8, 12, 16}},
    {"dtensor_size_17_over_4", 17, 4, {5, 4, 4, 4}, {0, 5, 9, 13, 17}},
    {"dtensor_size_7_over_4", 7, 4, {2, 2, 2, 1}, {0, 2, 4, 6, 7}},
    {"dtensor_size_1_over_4", 1, 4, {1, 0, 0, 0}, {0, 1, 1, 1, 1}},
    {"dtensor_size_8_over_1", 8, 1, {8}, {0, 8}},
    {"dtensor_size_13_over_5", 13, 5, {3, 3, 2, 3, 2}, {0, 3, 6, 8, 11, 13}},
    {"dtensor_size_3_over_4", 3, 4, {1, 1, 1, 0}, {0, 1, 2, 3, 3}},
    {"dtensor_size_20_over_8", 20, 8, {3, 2, 3, 2, 3, 2, 3, 2}, {0, 3, 5, 8, 10, 13, 15, 18, 20}},
    {"redistribution_12_over_4", 12, 4, {3, 3, 3, 3}, {0, 3, 6, 9, 12}},
    {"redistribution_13_over_4", 13, 4, {4, 3, 3, 3}, {0, 4, 7, 10, 13}},
    {"redistribution_9_over_4", 9, 4, {3, 2, 2, 2}, {0, 3, 5, 7, 9}},
    {"redistribution_10_over_3", 10, 3, {4, 3, 3}, {0, 4, 7, 10}},
    {"redistribution_10_over_6", 10, 6, {2, 2, 1, 2, 2, 1}, {0, 2, 4, 5, 7, 9, 10}},
    {"redistribution_4_over_7", 4, 7, {1, 1, 0, 1, 0, 1, 0}, {0, 1, 2, 2, 3, 3, 4, 4}},
    {"redistribution_1_over_6", 1, 6, {1, 0, 0, 0, 0, 0}, {0, 1, 1, 1, 1, 1, 1}},
    {"redistribution_64_over_9",
     64,
     9,
     {8, 7, 7, 7, 7, 7, 7, 7, 7},
     {0, 8, 15, 22, 29, 36, 43, 50, 57, 64}},
    {"redistribution_0_over_3", 0, 3, {0, 0, 0}, {0, 0, 0, 0}},
    {"redistribution_5_over_16",
     5,
     16,
     {1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0},
     {0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 5}},
};
class SplitRuleTest : public ::testing::TestWithParam<SplitRow> {};

TEST_P(SplitRuleTest, CutsAtTheKnownBoundaries) {
  const SplitRow& row = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::create({{"x", row.num_shards}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::parse(mesh, "[x]"));
  EXPECT_EQ(layout.num_shards(0), row.num_shards);
  std::vector<int64_t> sizes, boundaries = {0};
  for (int64_t shard = 0; shard < row.num_shards; ++shard) {
    const Box box = layout.box({row.size}, shard);
    EXPECT_EQ(box.offsets[0], boundaries.back());
    sizes.push_back(box.sizes[0]);
    boundaries.push_back(box.offsets[0] + box.sizes[0]);
    EXPECT_EQ(shard_interval(row.size, row.num_shards, shard),
              std::pair(box.offsets[0], boundaries.back()));
  }
  EXPECT_EQ(sizes, row.sizes);
  EXPECT_EQ(boundaries, row.boundaries);
}
INSTANTIATE_TEST_SUITE_P(Rows, SplitRuleTest, ValuesIn(kSplitRows), row_name<SplitRow>);

TEST(SplitRuleTest, LargeReversed) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, layout_on("{x=30, y=8}", "[(y,x), -]"));
  const Shape shape = {4096, 4096};
  for (int64_t position = 0; position < 240; ++position) {
    EXPECT_THAT(layout.box(shape, position).sizes[0], AllOf(Ge(17), Le(18))) << position;
  }
  EXPECT_EQ(box_text(layout.box(shape, 0)), "[0:18, 0:4096]");
  EXPECT_EQ(box_text(layout.box(shape, 8)), "[18:35, 0:4096]");
  EXPECT_EQ(box_text(layout.box(shape, 1)), "[512:530, 0:4096]");
  EXPECT_EQ(box_text(layout.box(shape, 239)), "[4079:4096, 0:4096]");
}

TEST(SplitRuleTest, BoundaryProductPastInt64) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, layout_on("{x=65536}", "[x]"));
  const Shape shape = {4611686018427387905};  // 2^62 + 1
  const int64_t shard_size = int64_t{1} << 46;
  EXPECT_THAT(layout.box(shape, 0).sizes, ElementsAre(shard_size + 1));
  for (int64_t position : {1, 2, 32768, 65535}) {
    EXPECT_THAT(layout.box(shape, position).offsets, ElementsAre(position * shard_size + 1));
    EXPECT_THAT(layout.box(shape, position).sizes, ElementsAre(shard_size));
  }
}

TEST(SplitRuleTest, BoundariesPastInt32) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, layout_on("{x=2}", "[x]"));
  EXPECT_EQ(box_text(layout.box({2147483656}, 1)), "[1073741828:2147483656]");
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout largest, layout_on("{x=2147483647}", "[x]"));
  const int64_t n = 9223372036854775807;
  EXPECT_EQ(largest.box({n}, 0).offsets[0], 0);
  const Box last = largest.box({n}, 2147483646);
  EXPECT_EQ(last.offsets[0] + last.sizes[0], n);
}

struct TilesRow {
  const char* name;
  const char* mesh;
  const char* layout;
  const char* devices;
};
const TilesRow kTilesRows[] = {
    {"tiles_y_x", "{x=2, y=2}", "[y, x]", "0; 2; 1; 3"},
    {"tiles_x_y", "{x=2, y=2}", "[x, y]", "0; 1; 2; 3"},
    {"tiles_y_x_2x4", "{x=2, y=4}", "[y, x]", "0; 4; 1; 5; 2; 6; 3; 7"},
    {"tiles_z_x_y", "{x=2, y=2, z=2}", "[z, x, y]", "0; 2; 4; 6; 1; 3; 5; 7"},
    {"tiles_z_y_x", "{x=2, y=2, z=2}", "[z, y, x]", "0; 4; 2; 6; 1; 5; 3; 7"},
    {"tiles_with_replicas_rank_three", "{x=2, y=2, z=2}", "[y, -, z]", "0,4; 1,5; 2,6; 3,7"},
};
class LayoutTilesTest : public ::testing::TestWithParam<TilesRow> {};

// The devices of every tile, tiles in row-major order.
TEST_P(LayoutTilesTest, LieOnTheKnownDevices) {
  const TilesRow& row = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, layout_on(row.mesh, row.layout));
  std::map<std::vector<int64_t>, std::vector<int>> tiles;
  for (int64_t position = 0; position < layout.mesh().size(); ++position) {
    std::vector<int64_t> tile;
    for (int dim = 0; dim < layout.rank(); ++dim) {
      tile.push_back(layout.shard_index(dim, position));
    }
    tiles[tile].push_back(layout.mesh().device_ids()[position]);
  }
  std::vector<std::string> texts;
  for (const auto& [tile, devices] : tiles) texts.push_back(absl::StrJoin(devices, ","));
  EXPECT_EQ(absl::StrJoin(texts, "; "), row.devices);
}
INSTANTIATE_TEST_SUITE_P(Rows, LayoutTilesTest, ValuesIn(kTilesRows), row_name<TilesRow>);

const TilesRow kOwnersRows[] = {
    {"owners_of_rows", "{x=4, y=2}", "[x, -]", "0, 2, 4, 6"},
    {"owners_of_the_whole", "{x=4, y=2}", "[-, -]", "0"},
    {"owners_of_the_second_axis", "{x=4, y=2}", "[-, y]", "0, 1"},
    {"owners_of_blocks", "{x=4, y=2}", "[x, y]", "0, 1, 2, 3, 4, 5, 6, 7"},
};
class LayoutOwnersTest : public ::testing::TestWithParam<TilesRow> {};

// The lowest device of each distinct box.
TEST_P(LayoutOwnersTest, AreTheKnownDevices) {
  const TilesRow& row = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, layout_on(row.mesh, row.layout));
  std::vector<int> owners;
  for (const auto& [box, devices] : holders(layout, {8, 8})) owners.push_back(devices.front());
  EXPECT_EQ(absl::StrJoin(owners, ", "), row.devices);
}
INSTANTIATE_TEST_SUITE_P(Rows, LayoutOwnersTest, ValuesIn(kOwnersRows), row_name<TilesRow>);

struct NormalFormRow {
  const char* name;
  const char* mesh;
  const char* written;
  const char* prints_as;
};
const NormalFormRow kNormalFormRows[] = {
    {"full_sub_axis", "{x=4}", "[x:(1)4, -]", "[x, -]"},
    {"merge_neighbours", "{x=4}", "[(x:(1)2,x:(2)2), -]", "[x, -]"},
    {"merge_part", "{x=8}", "[(x:(1)2,x:(2)2), -]", "[x:(1)4, -]"},
    {"merge_inner_part", "{x=8}", "[(x:(2)2,x:(4)2), -]", "[x:(2)4, -]"},
    {"no_merge_in_other_order", "{x=4}", "[(x:(2)2,x:(1)2), -]", "[(x:(2)2,x:(1)2), -]"},
    {"no_merge_across_dims", "{x=4}", "[x:(1)2, x:(2)2]", "[x:(1)2, x:(2)2]"},
    {"partial_axes_in_mesh_order", "{x=2, y=2, z=2}", "[z, -] sum{y,x}", "[z, -] sum{x,y}"},
    {"partial_sub_axes_merge", "{x=4}", "[-] sum{x:(2)2,x:(1)2}", "[-] sum{x}"},
    {"size_one_axis", "{x=2, y=1}", "[x, y]", "[x, -]"},
    {"size_one_axis_between_neighbours", "{x=4, y=1}", "[(x:(1)2,y,x:(2)2)]", "[x]"},
    {"size_one_sub_axis", "{x=4}", "[(x:(4)1,x:(1)2), x:(1)1]", "[x:(1)2, -]"},
    {"size_one_partial_axis", "{x=2, y=1}", "[x] max{y}", "[x]"},
    {"axes_do_not_merge", "{x=2, y=2}", "[(x,y)]", "[(x,y)]"},
    {"merge_three", "{x=8}", "[(x:(1)2,x:(2)2,x:(4)2)]", "[x]"},
    {"merge_two_of_three", "{x=8}", "[(x:(4)2,x:(1)2,x:(2)2)]", "[(x:(4)2,x:(1)4)]"},
    {"partial_gap_stays", "{x=8}", "[-] min{x:(4)2,x:(1)2}", "[-] min{x:(1)2,x:(4)2}"},
    {"blanks_are_free", "{x=2, y=2}", "  [ ( x , y ) ,- ]  ", "[(x,y), -]"},
    {"blanks_in_sub_axes", "{x=4, y=2}", "[x : ( 2 ) 2]avg{ y }", "[x:(2)2] avg{y}"},
    {"scalar_with_terms", "{x=4}", "[] prod{x}", "[] prod{x}"},
};
class LayoutNormalFormTest : public ::testing::TestWithParam<NormalFormRow> {};

TEST_P(LayoutNormalFormTest, PrintsAndParsesBack) {
  const NormalFormRow& row = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, layout_on(row.mesh, row.written));
  EXPECT_EQ(layout.to_string(), row.prints_as);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout again, Layout::parse(layout.mesh(), row.prints_as));
  EXPECT_EQ(again, layout);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout with_mesh,
                               Layout::parse(layout.mesh(), layout.to_string_with_mesh()));
  EXPECT_EQ(with_mesh, layout);
}
INSTANTIATE_TEST_SUITE_P(Rows, LayoutNormalFormTest, ValuesIn(kNormalFormRows),
                         row_name<NormalFormRow>);

TEST(LayoutNormalFormTest, SizeOneAxisIsDropped) {
  std::vector<Layout> layouts;
  for (const char* text : {"[x, y]", "[x, -]", "[-, y]", "[-, -]"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(Layout layout, layout_on("{x=2, y=1}", text));
    layouts.push_back(layout);
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) EXPECT_EQ(layouts[i] == layouts[j], i / 2 == j / 2) << i << j;
  }
}

struct EquivalentRow {
  const char* name;
  const char* a;
  const char* b;
  Shape shape;
  bool answer;
};
const EquivalentRow kEquivalentRows[] = {
    {"two_meshes_other_order", "[x, -] on {x=8}", "[(b,a), -] on {a=4, b=2}", {16, 8}, false},
    {"size_one_axis_is_whole", "[-, y] on {x=2, y=1}", "[-, -] on {x=2, y=1}", {4, 6}, true},
    {"one_device_shards_are_whole", "[x, -] on {x=1}", "[-, -] on {x=1}", {4, 6}, true},
    {"dim_of_one_element", "[x, -] on {x=2}", "[-, -] on {x=2}", {1, 8}, false},
    {"sharded_on_reordered_devices",
     "[x, y] on {x=2, y=2}",
     "[x, y] on {x=2, y=2} on 3,2,1,0",
     {16, 8},
     false},
    {"sub_axis_of_other_mesh", "[x:(1)2, -] on {x=4}", "[a, -] on {a=2, b=2}", {8, 8}, true},
    {"permuted_mesh_axes", "[x, y] on {x=2, y=3}", "[x, y] on {y=3, x=2}", {6, 6}, false},
    {"partial_is_not_whole", "[-] sum{x} on {x=2}", "[-] on {x=2}", {4}, false},
    {"flat_to_nested", "[x] on {x=6}", "[(x,y)] on {x=2, y=3}", {10}, true},
    {"flat_to_nested_reversed", "[x] on {x=6}", "[(y,x)] on {x=2, y=3}", {10}, false},
    {"other_mesh_same_order", "[(x,y)] on {x=2, y=4}", "[(x,y)] on {x=4, y=2}", {19}, true},
    {"other_mesh_other_order", "[(x,y)] on {x=2, y=4}", "[(y,x)] on {x=4, y=2}", {16}, false},
    {"transposed_grid",
     "[x, -, -, y] on {x=2, y=2}",
     "[y, -, -, x] on {x=2, y=2} on 0,2,1,3",
     {2, 2, 2, 2},
     true},
    {"same_cut_of_few_elements", "[x] on {x=4}", "[(x:(2)2,x:(1)2)] on {x=4}", {1}, true},
    {"other_cut_of_more_elements", "[x] on {x=4}", "[(x:(2)2,x:(1)2)] on {x=4}", {2}, false},
    {"no_elements", "[x, -] on {x=2}", "[-, -] on {x=2}", {0, 4}, true},
    {"no_elements_of_other_shape", "[-, x] on {x=2}", "[-, -] on {x=2}", {0, 4}, false},
    {"empty_boxes_at_other_offsets", "[x] on {x=4}", "[x] on {x=4} on 0,3,2,1", {2}, true},
    {"whole_on_reordered_devices", "[-] on {x=2}", "[-] on {x=2} on 1,0", {4}, true},
    {"other_devices", "[-] on {x=2}", "[-] on {x=2} on 0,2", {4}, false},
    {"more_devices", "[-] on {x=2}", "[-] on {x=4}", {4}, false},
    {"same_terms_of_other_mesh", "[-] sum{x} on {x=4}", "[-] sum{a,b} on {a=2, b=2}", {4}, true},
    {"other_terms", "[-] sum{x} on {x=2, y=2}", "[-] sum{y} on {x=2, y=2}", {4}, false},
    {"fewer_terms", "[-] sum{x} on {x=4}", "[-] sum{x:(1)2} on {x=4}", {4}, false},
    {"terms_on_reordered_devices", "[-] sum{x} on {x=2}", "[-] sum{x} on {x=2} on 1,0", {4}, false},
    {"other_reduction", "[-] sum{x} on {x=2}", "[-] max{x} on {x=2}", {4}, false},
    {"one_term_is_whole", "[-] sum{x} on {x=1}", "[-] max{x} on {x=1}", {4}, true},
    {"other_rank", "[-] on {x=2}", "[-, -] on {x=2}", {4}, false},
    {"shape_of_other_rank", "[-] on {x=2}", "[-] on {x=2}", {4, 4}, false},
    {"negative_shape", "[-] on {x=2}", "[-] on {x=2}", {-1}, false},
    {"one_term_is_the_value", "[y] max{x} on {x=1, y=2}", "[y] on {x=1, y=2}", {4}, true},
    {"large_mesh_in_no_time",
     "[x] on {x=2147483646}",
     "[(a,b)] on {a=1073741823, b=2}",
     {9223372036854775807},
     true},
};
class EquivalentTest : public ::testing::TestWithParam<EquivalentRow> {};

TEST_P(EquivalentTest, AsksWhetherEveryDeviceHoldsTheSameBox) {
  const EquivalentRow& row = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout a, layout_with_mesh(row.a));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout b, layout_with_mesh(row.b));
  EXPECT_EQ(equivalent(a, b, row.shape), row.answer);
  EXPECT_EQ(equivalent(b, a, row.shape), row.answer);
}
INSTANTIATE_TEST_SUITE_P(Rows, EquivalentTest, ValuesIn(kEquivalentRows), row_name<EquivalentRow>);

}  // namespace
}  // namespace tessera
