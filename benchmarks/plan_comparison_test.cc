// SPDX-License-Identifier: Apache-2.0
//
// That the baselines are the planners they are named after, and that none is better than ours.
#include "benchmarks/plan_comparison.h"

#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "benchmarks/baselines.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::benchmarks {
namespace {

struct ReferenceCase {
  std::string name;  // A row of relayout_cases.tsv, on one mesh.
  int64_t elements;  // Sum over the steps of the most that a device receives.
};

// Shardy's own tests of its sequence on one mesh without partials, and what it costs:
// tests/facts/relayout.md.
const ReferenceCase kShardyCases[] = {
    {"redundant_reshard_fully_replicated", 0},
    {"redundant_reshard", 0},
    {"all_gather_single_axis", 32},
    {"all_gather_multiple_axes", 48},
    {"all_gather_multiple_dims", 16},
    {"all_gather_with_subaxis", 8},
    {"all_slice_multiple_axes", 0},
    {"all_slice_minor_axis", 0},
    {"all_to_all_single_axis", 128},
    {"all_to_all_move_partial_axes_from_src_dim_to_non_empty_tgt_dim", 8},
    {"two_all_to_alls_same_tgt_dim_reverse_order", 256},
    {"two_all_to_alls_same_tgt_dim_non_contiguous", 288},
    {"all_to_all_subaxis_then_all_gather", 64},
    {"slice_on_src_dim_then_all_to_all", 24},
    {"slice_on_src_dim_then_all_to_all_multiple_axes", 112},
    {"slice_on_src_dim_then_two_all_to_alls", 160},
    {"slice_on_other_src_dim_then_two_all_to_alls", 160},
    {"slice_on_multiple_src_dims", 144},
    {"slice_on_one_src_dim_but_not_other", 24},
    {"slice_on_src_dim_considering_existing_axes_on_src_dim", 3},
    {"slice_on_src_dim_and_replace_axis_in_another_dim", 224},
    {"cannot_slice_on_src_dim_tgt_dim_sharded", 192},
    {"cannot_slice_on_src_dim_size_too_small", 12},
    {"cannot_slice_on_src_dim_size_too_small_rank_three", 128},
    {"cannot_slice_on_src_dim_considering_existing_axes_on_src_dim", 3},
    {"cannot_slice_on_src_dim_size_non_divisible", 15},
    {"replace_same_size_axes_same_dim", 32},
    {"replace_smaller_axis_with_bigger_same_dim", 8},
    {"replace_bigger_axis_with_smaller_same_dim", 16},
    {"replace_major_most_axis_in_dim", 16},
    {"replace_major_most_axis_then_all_gather", 64},
    {"replace_major_most_axis_then_all_gather_sub_axis", 64},
    {"replace_same_size_axes_diff_dims", 32},
    {"replace_multiple_axes_diff_dims", 448},
    {"replace_smaller_axis_with_bigger_diff_dims", 16},
    {"slice_tgt_dim_then_all_to_all_then_all_gather", 7},
    {"swap_same_size_axes_between_dims", 32},
    {"swap_diff_size_axes_between_dims", 24},
    {"slice_and_swap_axes_between_dims", 16},
    {"slice_sub_axes_then_swap_between_dims", 4},
    {"reorder_axes_single_dim", 4},
    {"reorder_axes_across_dims", 4},
    {"reorder_axes_for_all_gather", 64},
    {"all_to_all_axes_at_src_out_of_order", 448},
    {"all_to_all_and_gather_src_dim_out_of_order", 152},
    {"reorder_sub_axes", 11},
    {"replace_sub_axes", 6},
    {"replace_sub_axes_of_sixteen", 8},
    {"replace_sub_axes_by_full_axis", 8},
    {"replace_smaller_axis_with_bigger_same_dim_non_divisible", 48},
    {"replace_bigger_axis_with_smaller_same_dim_non_divisible", 72},
    {"swap_non_divisible_axes_diff_dim", 52},
    {"reshard_with_propagation_barrier", 448},
};

TEST(BaselinesTest, ShardysOrderCostsWhatShardysTestsCost) {
  std::map<std::string, std::vector<std::string>> rows;
  std::ifstream file("relayout/testdata/relayout_cases.tsv");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> cells = absl::StrSplit(line, '\t');
    rows[cells[0]] = cells;
  }
  for (const ReferenceCase& reference : kShardyCases) {
    SCOPED_TRACE(reference.name);
    const std::vector<std::string>& cells = rows[reference.name];
    ASSERT_EQ(cells.size(), 9u);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse(cells[1]));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Layout from, Layout::parse(mesh, cells[6]));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Layout to, Layout::parse(mesh, cells[7]));
    Shape shape;
    for (const auto size : absl::StrSplit(cells[5], absl::ByAnyChar("[], "), absl::SkipEmpty())) {
      ASSERT_TRUE(absl::SimpleAtoi(size, &shape.emplace_back()));
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const Sequence sequence, shardy_order(from, to, shape));
    std::string text;
    for (const Layout& layout : sequence) text += layout.to_string() + " ";
    EXPECT_EQ(cost_of(sequence, shape).received_elements, reference.elements) << text;
  }
}

TEST(BaselinesTest, RinksNormalFormKeepsItsShardsSmall) {
  // The cases of arXiv 2112.01075: no shard is larger than the larger of the two ends.
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse("{a=2, b=2, c=3, d=2}"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout from, Layout::parse(mesh, "[(b,a), (d,c)]"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout to, Layout::parse(mesh, "[(d,c), (b,a)]"));
  const Shape shape = {12, 12};
  TESSERA_ASSERT_OK_AND_ASSIGN(const Sequence sequence, rink_normal_form(from, to, shape));
  for (const Layout& layout : sequence) EXPECT_EQ(layout.box(shape, 0).num_elements(), 6) << layout;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Sequence gathered, gather_then_slice(from, to, shape));
  EXPECT_EQ(gathered[1].box(shape, 0).num_elements(), 144);
}

TEST(BaselinesTest, EverySequenceLeadsFromOneLayoutToTheOther) {
  int64_t checked = 0;
  for (const Mesh& mesh : testing::small_meshes(3, 8)) {
    const std::vector<Layout> layouts = testing::every_layout(mesh, 2, {});
    for (size_t i = 0; i < layouts.size(); i += 3) {
      for (size_t j = 0; j < layouts.size(); j += 5) {
        const Shape shape = {mesh.size(), 5};
        for (const auto baseline : {gather_then_slice, shardy_order, rink_normal_form}) {
          const StatusOr<Sequence> sequence = baseline(layouts[i], layouts[j], shape);
          if (absl::IsUnimplemented(sequence.status())) continue;
          TESSERA_ASSERT_OK_AND_ASSIGN(const Sequence good, sequence);
          EXPECT_TRUE(equivalent(good.front(), layouts[i], shape));
          EXPECT_TRUE(equivalent(good.back(), layouts[j], shape)) << good.back() << layouts[j];
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 1000);
}

// The table of plan_baselines, its smallest set.
TEST(PlanComparisonTest, NoBaselineIsBetterOnTheSmallestMesh) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const PlanComparison all, compare_all_pairs(2, 2));
  EXPECT_EQ(all.num_pairs, 110);
  EXPECT_EQ(all.worse_than_a_baseline, "");
  EXPECT_EQ(all.columns[0].mean_ratio(), 1);
  for (int planner = 1; planner < kNumPlanners; ++planner) {
    EXPECT_GT(all.columns[planner].mean_ratio(), 1) << planner_name(planner);
    EXPECT_EQ(all.columns[planner].num_uncovered, 0) << planner_name(planner);
  }
}

TEST(BaselinesTest, CostsAreThoseOfTheBoxes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse("{x=2, y=2}"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout from, Layout::parse(mesh, "[(x,y), -]"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout to, Layout::parse(mesh, "[-, (y,x)]"));
  const Shape shape = {4, 4};
  // .1875 of 16 elements at once; .4375 by a permute and an all-to-all.
  EXPECT_EQ(cost_of({from, to}, shape).received_elements, 3);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Sequence staged, shardy_order(from, to, shape));
  EXPECT_EQ(cost_of(staged, shape).received_elements, 7);
  EXPECT_EQ(cost_of(staged, shape).num_collectives, 2);
  EXPECT_EQ(cost_of({from, from}, shape).num_collectives, 0);
  EXPECT_EQ(time_us(cost_of(staged, shape), 4, {.alpha_us = 10, .bytes_per_us = 2}), 20 + 14);
}

}  // namespace
}  // namespace tessera::benchmarks
