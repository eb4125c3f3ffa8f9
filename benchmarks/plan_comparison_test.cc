// SPDX-License-Identifier: Apache-2.0
//
// Checks that neither the baseline nor the sequences of Shardy's own tests are better than our
// plans.
#include "benchmarks/plan_comparison.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "benchmarks/baselines.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/plan.h"
#include "relayout/testing/case_table.h"
#include "relayout/testing/small_relayouts.h"
#include "tests/support/matchers.h"

namespace tessera::benchmarks {
namespace {

struct ReferenceCase {
  std::string name;  // A row of relayout_cases.tsv, on one mesh.
  int64_t elements;  // Sum over the steps of the most that a device receives.
};

// Shardy's own tests of reshard_to_collectives on one mesh without partials, and the cost of the
// sequence that each expects: tests/facts/relayout.md.
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

TEST(PlanComparisonTest, SequencesOfShardysTestsReceiveNoLess) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<testing::CaseRow> rows,
                               testing::read_case_table());
  std::map<std::string, const testing::RelayoutCase*> relayouts;
  for (const testing::CaseRow& row : rows) relayouts[row.id] = &row.relayout;
  int num_bounded = 0;
  double sum_of_ratios = 0;
  double worst = 0;
  for (const ReferenceCase& reference : kShardyCases) {
    SCOPED_TRACE(reference.name);
    ASSERT_TRUE(relayouts.contains(reference.name));
    const auto& [from, to, shape] = *relayouts[reference.name];
    TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan plan,
                                 plan_relayout(from, to, shape, DType::kInt8));
    EXPECT_GE(reference.elements, plan.max_received_bytes()) << plan.explain();
    const int64_t bound = plan.lower_bound_bytes();
    if (bound == 0) continue;
    const double ratio = static_cast<double>(reference.elements) / static_cast<double>(bound);
    ++num_bounded;
    sum_of_ratios += ratio;
    worst = std::max(worst, ratio);
  }
  // As docs/internals/planner.md says.
  EXPECT_EQ(num_bounded, 49);
  EXPECT_NEAR(sum_of_ratios / num_bounded, 1.424, 0.0005);
  EXPECT_NEAR(worst, 3, 0.005);
}

TEST(BaselinesTest, GathersAllButTheCommonMajorAxes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse("{x=4, y=2}"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh other, Mesh::parse("{z=8}"));
  const auto gathered = [](const Mesh& from_mesh, const char* from, const Mesh& to_mesh,
                           const char* to) {
    return (*gather_then_slice(*Layout::parse(from_mesh, from), *Layout::parse(to_mesh, to)))[1]
        .to_string();
  };
  EXPECT_EQ(gathered(mesh, "[x, y]", mesh, "[y, x]"), "[-, -]");
  EXPECT_EQ(gathered(mesh, "[(x,y), -]", mesh, "[x, y]"), "[x, -]");
  EXPECT_EQ(gathered(mesh, "[x, -]", mesh, "[x:(1)2, y]"), "[x:(1)2, -]");
  EXPECT_EQ(gathered(mesh, "[x, y]", other, "[z, -]"), "[-, -]");
}

// The table of plan_baselines, its smallest set.
TEST(PlanComparisonTest, BaselineIsNotBetterOnTheSmallestMesh) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const PlanComparison all, compare_all_pairs(2, 2));
  EXPECT_EQ(all.num_pairs, 110);
  EXPECT_EQ(all.worse_than_the_baseline, "");
  EXPECT_EQ(all.columns[0].mean_ratio(), 1);
  EXPECT_GT(all.columns[1].mean_ratio(), 1);
}

// Its next set: every pair of layouts of rank 2 on a mesh of three axes.
TEST(PlanComparisonTest, BaselineIsNotBetterOnAMeshOfThreeAxes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const PlanComparison all, compare_all_pairs(3, 2));
  EXPECT_EQ(all.num_pairs, 2352);
  EXPECT_EQ(all.worse_than_the_baseline, "");
  EXPECT_GT(all.columns[1].mean_ratio(), all.columns[0].mean_ratio());
}

TEST(BaselinesTest, CostsAreThoseOfTheBoxes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse("{x=2, y=2}"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout from, Layout::parse(mesh, "[(x,y), -]"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout middle, Layout::parse(mesh, "[(y,x), -]"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout to, Layout::parse(mesh, "[-, (y,x)]"));
  const Shape shape = {4, 4};
  // 3 of 16 elements at once; 7 by a permute and an all-to-all.
  EXPECT_EQ(cost_of({from, to}, shape).received_elements, 3);
  const Sequence staged = {from, middle, to};
  EXPECT_EQ(cost_of(staged, shape).received_elements, 7);
  EXPECT_EQ(cost_of(staged, shape).num_collectives, 2);
  EXPECT_EQ(cost_of({from, from}, shape).num_collectives, 0);
  EXPECT_EQ(time_us(cost_of(staged, shape), 4, {.alpha_us = 10, .bytes_per_us = 2}), 20 + 14);
}

}  // namespace
}  // namespace tessera::benchmarks
