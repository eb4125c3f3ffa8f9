// SPDX-License-Identifier: Apache-2.0
//
// Relayouts without partials whose bytes and pieces are known: the tables of facts, and the cases
// of testdata/relayout_cases.tsv (ids, meshes, shapes and layouts; most elements that a device
// receives). Sources that are the planner's choice, replicas, are not in the rows.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "relayout/testing/case_table.h"
#include "relayout/testing/plan_oracle.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::CaseRow;
using ::tessera::testing::check_relayout;
using ::tessera::testing::read_case_table;

StatusOr<RelayoutPlan> plan_of(const std::string& old_mesh, const std::string& new_mesh,
                               const Shape& shape, const std::string& from, const std::string& to,
                               DType dtype) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh a, Mesh::parse(old_mesh));
  TESSERA_ASSIGN_OR_RETURN(const Mesh b, Mesh::parse(new_mesh));
  TESSERA_ASSIGN_OR_RETURN(const Layout old_layout, Layout::parse(a, from));
  return plan_relayout(old_layout, Layout::parse(b, to), shape, dtype);
}

struct PiecesCase {
  std::string name, old_mesh, new_mesh;
  Shape shape;
  std::string from, to;
  std::string pieces;  // source->target first:end, what stays in place included
  int64_t moved;       // elements that change device
};
void PrintTo(const PiecesCase& row, std::ostream* out) { *out << row.name; }

struct ReceivedCase {
  std::string name, old_mesh, new_mesh;
  Shape shape;
  std::string from, to;
  std::string received;  // elements by device: "0,3: 2; 1: 4", or "4 each"
  int64_t total;
};
void PrintTo(const ReceivedCase& row, std::ostream* out) { *out << row.name; }

// clang-format off
const PiecesCase kPieces[] = {
    {"shrink_4_to_3", "{x=4}", "{x=3}", {12}, "[x]", "[x]", "0->0 0:3, 1->0 3:4, 1->1 4:6, 2->1 6:8, 2->2 8:9, 3->2 9:12", 6},
    {"shrink_4_to_3_uneven", "{x=4}", "{x=3}", {10}, "[x]", "[x]", "0->0 0:3, 1->0 3:4, 1->1 4:5, 2->1 5:7, 2->2 7:8, 3->2 8:10", 5},
    {"grow_2_to_3", "{x=2}", "{x=3}", {12}, "[x]", "[x]", "0->0 0:4, 0->1 4:6, 1->1 6:8, 1->2 8:12", 6},
    {"grow_2_to_5", "{x=2}", "{x=5}", {7}, "[x]", "[x]", "0->0 0:2, 0->1 2:3, 0->2 3:4, 1->2 4:5, 1->3 5:6, 1->4 6:7", 5},
    {"grow_1_to_4", "{x=1}", "{x=4}", {9}, "[x]", "[x]", "0->0 0:3, 0->1 3:5, 0->2 5:7, 0->3 7:9", 6},
    {"grow_past_the_elements", "{x=2}", "{x=6}", {4}, "[x]", "[x]", "0->0 0:1, 0->1 1:2, 1->3 2:3, 1->4 3:4", 3},
    {"shrink_from_empty_shards", "{x=6}", "{x=2}", {4}, "[x]", "[x]", "0->0 0:1, 1->0 1:2, 3->1 2:3, 4->1 3:4", 3},
    {"disjoint_devices", "{x=4}", "{x=4} on 4,5,6,7", {10}, "[x]", "[x]", "0->4 0:3, 1->5 3:5, 2->6 5:8, 3->7 8:10", 10},
    {"half_of_the_devices_change", "{x=4}", "{x=4} on 2,3,4,5", {8}, "[x]", "[x]", "0->2 0:2, 1->3 2:4, 2->4 4:6, 3->5 6:8", 8},
    {"devices_reversed", "{x=4}", "{x=4} on 3,2,1,0", {10}, "[x]", "[x]", "0->3 0:3, 1->2 3:5, 2->1 5:8, 3->0 8:10", 10},
    {"to_one_of_other_devices", "{x=4}", "{x=1} on 6", {5}, "[x]", "[x]", "0->6 0:2, 1->6 2:3, 2->6 3:4, 3->6 4:5", 5},
    {"from_ids_in_any_order", "{x=3} on 5,0,7", "{x=2} on 7,5", {10}, "[x]", "[x]", "0->5 5:7, 0->7 4:5, 5->7 0:4, 7->5 7:10", 10},
    {"axes_permuted_2x3_uneven", "{x=2, y=3}", "{x=2, y=3}", {10}, "[(x,y)]", "[(y,x)]", "0->0 0:2, 1->3 2:4, 2->1 4:5, 3->4 5:7, 4->2 7:9, 5->5 9:10", 7},
    {"three_axes_rotated", "{x=2, y=2, z=2}", "{x=2, y=2, z=2}", {8}, "[(x,y,z)]", "[(y,z,x)]", "0->0 0:1, 1->4 1:2, 2->1 2:3, 3->5 3:4, 4->2 4:5, 5->6 5:6, 6->3 6:7, 7->7 7:8", 6},
    {"three_axes_reversed", "{x=2, y=2, z=2}", "{x=2, y=2, z=2}", {17}, "[(x,y,z)]", "[(z,y,x)]", "0->0 0:3, 1->4 3:5, 2->2 5:7, 3->6 7:9, 4->1 9:11, 5->5 11:13, 6->3 13:15, 7->7 15:17", 8},
    {"flat_to_nested", "{x=6}", "{x=2, y=3}", {10}, "[x]", "[(x,y)]", "0->0 0:2, 1->1 2:4, 2->2 4:5, 3->3 5:7, 4->4 7:9, 5->5 9:10", 0},
    {"flat_to_nested_reversed", "{x=6}", "{x=2, y=3}", {10}, "[x]", "[(y,x)]", "0->0 0:2, 1->3 2:4, 2->1 4:5, 3->4 5:7, 4->2 7:9, 5->5 9:10", 7},
    {"sub_axes_of_six_swapped", "{x=6}", "{x=6}", {12}, "[x]", "[(x:(2)3,x:(1)2)]", "0->0 0:2, 1->3 2:4, 2->1 4:6, 3->4 6:8, 4->2 8:10, 5->5 10:12", 8},
    {"sub_axes_of_eight_rotated", "{x=8}", "{x=8}", {16}, "[x]", "[(x:(4)2,x:(1)4)]", "0->0 0:2, 1->2 2:4, 2->4 4:6, 3->6 6:8, 4->1 8:10, 5->3 10:12, 6->5 12:14, 7->7 14:16", 12},
    {"other_mesh_same_order", "{x=2, y=4}", "{x=4, y=2}", {19}, "[(x,y)]", "[(x,y)]", "0->0 0:3, 1->1 3:5, 2->2 5:8, 3->3 8:10, 4->4 10:12, 5->5 12:15, 6->6 15:17, 7->7 17:19", 0},
    {"other_mesh_other_order", "{x=2, y=4}", "{x=4, y=2}", {16}, "[(x,y)]", "[(y,x)]", "0->0 0:2, 1->2 2:4, 2->4 4:6, 3->6 6:8, 4->1 8:10, 5->3 10:12, 6->5 12:14, 7->7 14:16", 12},
};

const ReceivedCase kReceived[] = {
    {"coarsen", "{x=2, y=3}", "{x=2, y=3}", {10}, "[(x,y)]", "[x]", "0,1,3,4: 3; 2,5: 4", 20},
    {"refine_minor", "{x=2, y=3}", "{x=2, y=3}", {12}, "[y]", "[(x,y)]", "0,5: 0; 1,2,3,4: 2", 8},
    {"swap_the_sharding_axis", "{x=2, y=2}", "{x=2, y=2}", {8}, "[x]", "[y]", "0,3: 0; 1,2: 4", 8},
    {"swap_the_sharding_axis_uneven", "{x=2, y=2}", "{x=2, y=2}", {7}, "[x]", "[y]", "0,3: 0; 1: 3; 2: 4", 7},
    {"replicate", "{x=4}", "{x=4}", {10}, "[x]", "[-]", "0,2: 7; 1,3: 8", 30},
    {"replicate_with_empty_shards", "{x=8}", "{x=8}", {3}, "[x]", "[-]", "0,2,5: 2; 1,3,4,6,7: 3", 21},
    {"slice", "{x=4}", "{x=4}", {10}, "[-]", "[x]", "0 each", 0},
    {"broadcast_to_more_devices", "{x=1}", "{x=4}", {6}, "[-]", "[-]", "0: 0; 1,2,3: 6", 18},
    {"replicas_to_other_replicas", "{x=2}", "{x=2} on 2,3", {6}, "[-]", "[-]", "6 each", 12},
    {"sub_axis_to_full_axis", "{x=4}", "{x=4}", {9}, "[x:(1)2]", "[x]", "0 each", 0},
    {"minor_sub_axis_to_full_axis", "{x=4}", "{x=4}", {8}, "[x:(2)2]", "[x]", "0,3: 0; 1,2: 2", 4},
    {"rows_to_columns", "{x=4}", "{x=4}", {8, 8}, "[x, -]", "[-, x]", "12 each", 48},
    {"rows_to_columns_uneven", "{x=4}", "{x=4}", {10, 7}, "[x, -]", "[-, x]", "0,2: 14; 1: 16; 3: 8", 52},
    {"rows_to_columns_three", "{x=3}", "{x=3}", {6, 6}, "[x, -]", "[-, x]", "8 each", 24},
    {"grid_transposed", "{x=2, y=2}", "{x=2, y=2}", {8, 8}, "[x, y]", "[y, x]", "0,3: 0; 1,2: 16", 32},
    {"grid_to_rows_uneven", "{x=2, y=2}", "{x=2, y=2}", {7, 5}, "[x, y]", "[(x,y), -]", "0,2: 4; 1: 6; 3: 3", 17},
    {"grid_to_permuted_rows", "{x=2, y=2}", "{x=2, y=2}", {8, 8}, "[x, y]", "[(y,x), -]", "0,3: 8; 1,2: 16", 48},
    {"grid_shape_2x4_to_4x2", "{x=2, y=4}", "{x=4, y=2}", {8, 8}, "[x, y]", "[x, y]", "0,3,4,7: 4; 1,2,5,6: 8", 48},
    {"grid_to_other_devices", "{x=2, y=2}", "{x=2, y=2} on 2,3,4,5", {4, 4}, "[x, y]", "[x, y]", "4 each", 16},
    {"rows_to_a_larger_grid", "{x=2}", "{x=2, y=2} on 2,3,4,5", {6, 5}, "[x, -]", "[x, y]", "2,4: 9; 3,5: 6", 30},
    {"replicate_columns", "{x=2, y=2}", "{x=2, y=2}", {6, 7}, "[x, y]", "[x, -]", "0,2: 9; 1,3: 12", 42},
    {"replicate_all", "{x=2, y=2}", "{x=2, y=2}", {5, 5}, "[x, y]", "[-, -]", "0: 16; 1,2: 19; 3: 21", 75},
    {"move_one_axis", "{x=2, y=2}", "{x=2, y=2}", {8, 8}, "[x, -]", "[-, y]", "16 each", 64},
    {"move_the_same_axis", "{x=2, y=2}", "{x=2, y=2}", {6, 6}, "[x, -]", "[-, x]", "9 each", 36},
    {"columns_change_axis", "{x=2, y=3}", "{x=2, y=3}", {2, 12}, "[-, x]", "[-, y]", "0,5: 0; 1,4: 4; 2,3: 8", 24},
    {"pencil_z_to_y_uneven", "{a=2, b=2}", "{a=2, b=2}", {5, 5, 5}, "[a, b, -]", "[a, -, b]", "0,1: 18; 2,3: 12", 60},
    {"pencil_y_to_x", "{a=2, b=2}", "{a=2, b=2}", {8, 8, 8}, "[a, -, b]", "[-, a, b]", "64 each", 256},
    {"slab_to_pencil", "{x=4}", "{a=2, b=2}", {8, 8, 8}, "[x, -, -]", "[a, b, -]", "64 each", 256},
    {"pencil_to_slab", "{a=2, b=2}", "{x=4}", {6, 6, 6}, "[a, b, -]", "[-, -, x]", "0,2: 54; 1,3: 27", 162},
    {"brick_to_pencil", "{x=2, y=2, z=2}", "{x=2, y=2, z=2}", {8, 8, 8}, "[x, y, z]", "[(x,z), y, -]", "32 each", 256},
    {"cyclic_move_uneven", "{x=2, y=2, z=2}", "{x=2, y=2, z=2}", {3, 5, 7}, "[x, y, z]", "[z, x, y]", "0,7: 0; 1,6: 12; 2: 18; 3: 9; 4: 16; 5: 8", 75},
    {"rank_four", "{x=2, y=3}", "{x=2, y=3}", {4, 3, 6, 2}, "[x, -, y, -]", "[-, y, -, x]", "20 each", 120},
    {"block_to_cyclic_2", "{x=4}", "{x=4}", {2, 4, 2}, "[x:(1)2, x:(2)2, -]", "[-, x, -]", "0,3: 2; 1,2: 4", 12},
    {"cyclic_2_to_block", "{x=4}", "{x=4}", {2, 4, 2}, "[-, x, -]", "[x:(1)2, x:(2)2, -]", "0,3: 2; 1,2: 4", 12},
    {"grid_row_major_to_column_major_relabelled", "{x=2, y=2}", "{x=2, y=2} on 0,2,1,3", {2, 2, 2, 2, 2, 2}, "[-, x, -, -, y, -]", "[-, y, -, -, x, -]", "0 each", 0},
    {"cyclic_grid_2x4_to_4x2", "{r=2, c=4}", "{r=2, c=4}", {2, 2, 2, 2, 2, 2}, "[-, -, r, -, c:(1)2, c:(2)2]", "[-, r, c:(1)2, -, -, c:(2)2]", "0,1,6,7: 4; 2,3,4,5: 8", 48},
    {"cyclic_grid_2x4_to_4x2_relabelled", "{r=2, c=4}", "{r=2, c=4} on 0,1,4,5,2,3,6,7", {2, 2, 2, 2, 2, 2}, "[-, -, r, -, c:(1)2, c:(2)2]", "[-, r, c:(1)2, -, -, c:(2)2]", "4 each", 32},
};
// clang-format on

class PiecesTest : public ::testing::TestWithParam<PiecesCase> {};

TEST_P(PiecesTest, AreThoseOfTheTable) {
  const PiecesCase& row = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RelayoutPlan plan,
      plan_of(row.old_mesh, row.new_mesh, row.shape, row.from, row.to, DType::kInt32));
  std::vector<std::tuple<int64_t, int64_t, int, int>> pieces;  // first, end, source, target
  if (plan.steps().empty()) {
    // The boxes are equal: each stays where it is.
    for (int64_t i = 0; i < plan.from().mesh().size(); ++i) {
      const Box box = plan.from().box(row.shape, i);
      const int id = plan.from().mesh().device_ids()[i];
      if (!box.is_empty())
        pieces.push_back({box.offsets[0], box.offsets[0] + box.sizes[0], id, id});
    }
  } else {
    ASSERT_EQ(plan.steps().size(), 1);
    for (int id : plan.to().mesh().device_ids()) {
      for (const Pull& pull : plan.steps()[0].pulls(id)) {
        const int64_t first = pull.box.offsets[0];
        pieces.push_back({first, first + pull.box.sizes[0], pull.source_device, id});
      }
    }
  }
  // The table goes by source device, then by target.
  std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) {
    return std::tie(std::get<2>(a), std::get<3>(a)) < std::tie(std::get<2>(b), std::get<3>(b));
  });
  int64_t moved = 0;
  std::vector<std::string> texts;
  for (const auto& [first, end, source, target] : pieces) {
    texts.push_back(absl::StrCat(source, "->", target, " ", first, ":", end));
    moved += source == target ? 0 : end - first;
  }
  EXPECT_EQ(absl::StrJoin(texts, ", "), row.pieces);
  EXPECT_EQ(moved, row.moved);
  EXPECT_EQ(check_relayout(plan.from(), plan.to(), row.shape).problem, "");
  EXPECT_EQ(check_relayout(plan.to(), plan.from(), row.shape).problem, "");
}

INSTANTIATE_TEST_SUITE_P(Facts, PiecesTest, ::testing::ValuesIn(kPieces),
                         [](const auto& info) { return info.param.name; });

class ReceivedTest : public ::testing::TestWithParam<ReceivedCase> {};

TEST_P(ReceivedTest, IsThatOfTheTable) {
  const ReceivedCase& row = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RelayoutPlan plan,
      plan_of(row.old_mesh, row.new_mesh, row.shape, row.from, row.to, DType::kFloat16));
  std::map<int, int64_t> expected;
  const bool each = row.received.find(" each") != std::string::npos;
  for (absl::string_view entry : absl::StrSplit(row.received, "; ")) {
    int64_t elements = 0;
    if (each) {
      ASSERT_TRUE(absl::SimpleAtoi(entry.substr(0, entry.find(' ')), &elements));
      for (int id : plan.to().mesh().device_ids()) expected[id] = elements;
      continue;
    }
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(entry, ": ");
    ASSERT_TRUE(absl::SimpleAtoi(parts.second, &elements));
    for (absl::string_view device : absl::StrSplit(parts.first, ',')) {
      int id = 0;
      ASSERT_TRUE(absl::SimpleAtoi(device, &id));
      expected[id] = elements;
    }
  }
  int64_t total = 0;
  int64_t most = 0;
  ASSERT_EQ(plan.to().mesh().size(), static_cast<int64_t>(expected.size()));
  for (int64_t i = 0; i < plan.to().mesh().size(); ++i) {
    const int id = plan.to().mesh().device_ids()[i];
    EXPECT_EQ(plan.received_bytes(i), 2 * expected[id]) << "device " << id;
    total += plan.received_bytes(i) / 2;
    most = std::max(most, plan.received_bytes(i));
  }
  EXPECT_EQ(total, row.total);
  EXPECT_EQ(plan.max_received_bytes(), most);
  EXPECT_EQ(plan.lower_bound_bytes(), most);
  EXPECT_EQ(check_relayout(plan.from(), plan.to(), row.shape).problem, "");
}

INSTANTIATE_TEST_SUITE_P(Facts, ReceivedTest, ::testing::ValuesIn(kReceived),
                         [](const auto& info) { return info.param.name; });

TEST(RelayoutCasesTest, EveryRowOfTheFileMeetsItsBound) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<CaseRow> rows, read_case_table());
  EXPECT_EQ(rows.size(), 540);
  for (const CaseRow& row : rows) {
    SCOPED_TRACE(row.id);
    const auto& [from, to, shape] = row.relayout;
    TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan plan,
                                 plan_relayout(from, to, shape, DType::kInt32));
    EXPECT_EQ(plan.max_received_bytes(), 4 * row.max_received_elements);
    EXPECT_EQ(plan.lower_bound_bytes(), 4 * row.max_received_elements);
    EXPECT_LE(plan.steps().size(), 1);
    if (num_elements(shape) <= 2048 && from.mesh().size() <= 64) {
      EXPECT_EQ(check_relayout(from, to, shape).problem, "");
    }
  }
}

struct LargeCase {
  std::string name, old_mesh, new_mesh;
  Shape shape;
  DType dtype;
  std::string from, to;
  std::vector<int64_t> received;  // bytes of the first devices, then of every other
};

const LargeCase kLarge[] = {
    {"past_int32_elements",
     "{x=2}",
     "{x=2}",
     {2147483656},
     DType::kUint8,
     "[x]",
     "[-]",
     {1073741828}},
    {"past_int32_swap",
     "{x=2}",
     "{x=2} on 1,0",
     {2147483656},
     DType::kUint8,
     "[x]",
     "[x]",
     {1073741828}},
    {"matrix_of_4_gi_elements_f64_shrink",
     "{x=8}",
     "{x=4}",
     {65536, 65536},
     DType::kFloat64,
     "[x, -]",
     "[x, -]",
     {4294967296, 8589934592}},
    {"uneven_and_large",
     "{x=3}",
     "{x=4}",
     {10000000001},
     DType::kFloat16,
     "[x]",
     "[x]",
     {0, 1666666666, 3333333334, 5000000000}},
    {"boundary_product_past_int64",
     "{x=65536}",
     "{x=65536}",
     {4611686018427387905},
     DType::kUint8,
     "[x]",
     "[-]",
     {4611615649683210240, 4611615649683210241}},
};

TEST(LargeRelayoutTest, ReceivedBytesAreExact) {
  for (const LargeCase& row : kLarge) {
    SCOPED_TRACE(row.name);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RelayoutPlan plan,
        plan_of(row.old_mesh, row.new_mesh, row.shape, row.from, row.to, row.dtype));
    for (int64_t i = 0; i < plan.to().mesh().size(); ++i) {
      const size_t column = std::min<size_t>(i, row.received.size() - 1);
      ASSERT_EQ(plan.received_bytes(i), row.received[column]) << "position " << i;
    }
    EXPECT_EQ(plan.max_received_bytes(),
              *std::max_element(row.received.begin(), row.received.end()));
    EXPECT_EQ(plan.lower_bound_bytes(), plan.max_received_bytes());
  }
}

TEST(LargeRelayoutTest, PiecesPassTwoToThe31) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RelayoutPlan plan,
      plan_of("{x=2}", "{x=2} on 1,0", {2147483656}, "[x]", "[x]", DType::kUint8));
  ASSERT_EQ(plan.steps().size(), 1);
  EXPECT_EQ(plan.steps()[0].kind(), StepKind::kPermute);
  const Box upper{{1073741828}, {1073741828}};
  EXPECT_EQ(plan.steps()[0].pulls(0), std::vector<Pull>({{1, upper, upper}}));
}

struct LocalCase {
  std::string name, old_mesh, new_mesh;
  Shape shape;
  std::string from, to;
  std::string steps;  // as to_string() lists them
};

// Rows of the degenerate cases in which nothing moves.
const LocalCase kLocal[] = {
    {"same_layout_twice", "{x=4}", "{x=4}", {10}, "[x]", "[x]", "nothing to do"},
    {"dim_of_zero", "{x=4}", "{x=4}", {0, 5}, "[x, -]", "[-, x]", "slice{x}"},
    {"size_one_axes", "{x=4, y=1}", "{x=4, y=1}", {8}, "[(x,y)]", "[x]", "nothing to do"},
    {"axis_of_size_one_changes",
     "{x=4, y=1}",
     "{x=4, y=1}",
     {8, 8},
     "[x, y]",
     "[x, -]",
     "nothing to do"},
    {"one_element_many_axes",
     "{x=2, y=2, z=2}",
     "{x=2, y=2, z=2}",
     {1, 1, 1},
     "[x, y, z]",
     "[z, x, y]",
     "slice{x,y,z}"},
    {"flat_to_nested", "{x=6}", "{x=2, y=3}", {10}, "[x]", "[(x,y)]", "nothing to do"},
    {"slice", "{x=4}", "{x=4}", {10}, "[-]", "[x]", "slice{x}"},
    {"sub_axis_to_full_axis", "{x=4}", "{x=4}", {9}, "[x:(1)2]", "[x]", "slice{x:(2)2}"},
    {"reversed_devices_input_replicated",
     "{x=8}",
     "{x=4, y=2} on 7,6,5,4,3,2,1,0",
     {8, 2},
     "[-, -]",
     "[x, y]",
     "slice"},
};

TEST(LocalRelayoutTest, NobodyWaitsForAnybody) {
  for (const LocalCase& row : kLocal) {
    SCOPED_TRACE(row.name);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RelayoutPlan plan,
        plan_of(row.old_mesh, row.new_mesh, row.shape, row.from, row.to, DType::kInt8));
    const std::string text = plan.to_string();
    EXPECT_EQ(text.substr(text.rfind(": ") + 2), row.steps);
    EXPECT_EQ(plan.max_received_bytes(), 0);
    EXPECT_EQ(plan.lower_bound_bytes(), 0);
    for (const PlanStep& step : plan.steps()) {
      for (int id : plan.from().mesh().device_ids()) {
        EXPECT_EQ(step.group(id), std::vector<int>({id}));
        for (const Pull& pull : step.pulls(id)) EXPECT_EQ(pull.source_device, id);
      }
    }
    EXPECT_EQ(check_relayout(plan.from(), plan.to(), row.shape).problem, "");
  }
}

TEST(LocalRelayoutTest, BystandersAreAlone) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan plan, plan_of("{x=2} on 0,1", "{x=2} on 2,3", {4},
                                                                "[x]", "[x]", DType::kInt8));
  ASSERT_EQ(plan.steps().size(), 1);
  const PlanStep& step = plan.steps()[0];
  EXPECT_EQ(step.group(0), std::vector<int>({0, 2}));
  EXPECT_EQ(step.group(3), std::vector<int>({1, 3}));
  for (int bystander : {4, 5}) {
    EXPECT_EQ(step.group(bystander), std::vector<int>({bystander}));
    EXPECT_TRUE(step.pulls(bystander).empty());
    EXPECT_EQ(step.received_bytes(bystander) + step.sent_bytes(bystander), 0);
  }
}

// "dim_of_one" and "empty_target_shards": few elements on many devices.
TEST(LocalRelayoutTest, EmptyShardsTakeNoPart) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan whole,
                               plan_of("{x=4}", "{x=4}", {1}, "[x]", "[-]", DType::kUint8));
  EXPECT_EQ(whole.received_bytes(0), 0);
  for (int64_t i : {1, 2, 3}) EXPECT_EQ(whole.received_bytes(i), 1);
  TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan spread,
                               plan_of("{x=1}", "{x=8}", {3}, "[x]", "[x]", DType::kUint8));
  ASSERT_EQ(spread.steps().size(), 1);
  EXPECT_EQ(spread.steps()[0].group(0), std::vector<int>({0, 2, 5}));
  for (int empty : {1, 3, 4, 6, 7}) {
    EXPECT_EQ(spread.steps()[0].group(empty), std::vector<int>({empty}));
  }
}

}  // namespace
}  // namespace tessera
