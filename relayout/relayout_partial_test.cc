// SPDX-License-Identifier: Apache-2.0
//
// Relayouts, checked by their steps, and with partials by their values: the tables of facts.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "relayout/testing/plan_oracle.h"
#include "relayout/testing/plan_texts.h"
#include "relayout/testing/small_relayouts.h"
#include "relayout/topology.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"

namespace tessera {
namespace {

using ::tessera::testing::check_relayout;
using ::tessera::testing::deal;
using ::tessera::testing::DeviceValues;
using ::tessera::testing::layout_of;
using ::tessera::testing::run_plan;
using ::tessera::testing::steps_of;

struct StepsCase {
  std::string name, mesh;
  Shape shape;
  std::string from, to;
  std::string steps;      // as to_string() lists them
  int64_t most_received;  // elements, over all steps
};
void PrintTo(const StepsCase& row, std::ostream* out) { *out << row.name; }

// clang-format off
const StepsCase kSteps[] = {
    // Moves.
    {"wx_to_xw", "{x=2, y=4}", {8, 8}, "[-, x]", "[x, -]", "all_to_all{x}", 16},
    {"yw_to_wy", "{x=2, y=4}", {8, 8}, "[y, -]", "[-, y]", "all_to_all{y}", 12},
    {"yww_to_wwy", "{x=2, y=4}", {8, 8, 8}, "[y, -, -]", "[-, -, y]", "all_to_all{y}", 96},
    {"wwx_to_xww", "{x=2, y=4}", {8, 8, 8}, "[-, -, x]", "[x, -, -]", "all_to_all{x}", 128},
    {"xww_to_wxw", "{x=2, y=4}", {8, 8, 8}, "[x, -, -]", "[-, x, -]", "all_to_all{x}", 128},
    {"xwy_to_wxy", "{x=2, y=4}", {8, 8, 8}, "[x, -, y]", "[-, x, y]", "all_to_all{x}", 32},
    {"wxy_to_xwy", "{x=2, y=4}", {8, 8, 8}, "[-, x, y]", "[x, -, y]", "all_to_all{x}", 32},
    {"xyw_to_wyx", "{x=2, y=4}", {8, 8, 8}, "[x, y, -]", "[-, y, x]", "all_to_all{x}", 32},
    {"wxw_to_wwx", "{x=2, y=4}", {8, 8, 8}, "[-, x, -]", "[-, -, x]", "all_to_all{x}", 128},
    {"xyw_to_xwy", "{x=2, y=4}", {8, 8, 8}, "[x, y, -]", "[x, -, y]", "all_to_all{y}", 48},
    {"xwy_to_xyw", "{x=2, y=4}", {8, 8, 8}, "[x, -, y]", "[x, y, -]", "all_to_all{y}", 48},
    {"yxw_to_ywx", "{x=2, y=4}", {8, 8, 8}, "[y, x, -]", "[y, -, x]", "all_to_all{x}", 32},
    {"ywx_to_yxw", "{x=2, y=4}", {8, 8, 8}, "[y, -, x]", "[y, x, -]", "all_to_all{x}", 32},
    {"swap_two_dims", "{x=2, y=4}", {8, 8}, "[x, y]", "[y, x]", "exchange{x,y}", 8},
    {"change_the_axis", "{x=2, y=4}", {8, 8}, "[x, -]", "[y, -]", "exchange{x,y}", 16},
    {"shift_dims", "{x=2, y=4}", {8, 8, 8}, "[x, y, -]", "[-, x, y]", "exchange{x,y}", 64},
    {"swap_mesh_axis_on_the_way", "{x=2, y=2, z=2}", {4, 4, 4}, "[x, y, -]", "[-, z, x]", "exchange{x,y,z}", 16},
    {"torch_s0s1_to_s0s0", "{x=2, y=2}", {8, 8}, "[x, y]", "[(x,y), -]", "all_to_all{y}", 8},
    {"torch_s0s1_to_s1s0", "{x=2, y=2}", {8, 8}, "[x, y]", "[y, x]", "permute{x,y}", 16},
    {"torch_s0s0_to_s1s1", "{x=2, y=2}", {8, 8}, "[(x,y), -]", "[-, (x,y)]", "all_to_all{x,y}", 12},
    {"torch_s0s0s0_to_s1s1s1", "{x=2, y=2, z=2}", {8, 8, 8}, "[(x,y,z), -, -]", "[-, (x,y,z), -]", "all_to_all{x,y,z}", 56},
    {"torch_s0s1s0_to_s1s0s0", "{x=2, y=2, z=2}", {8, 8, 8}, "[(x,z), y, -]", "[(y,z), x, -]", "permute{x,y}", 64},
    {"torch_s1s0s0_to_rs0s0", "{x=2, y=2, z=2}", {8, 8, 8}, "[(y,z), x, -]", "[(y,z), -, -]", "all_gather{x}", 64},
    {"torch_s0s0s1_to_s0s1s2", "{x=2, y=2, z=2}", {8, 8, 8}, "[(x,y), z, -]", "[x, y, z]", "exchange{y,z}", 64},
    {"uneven_merged_gather", "{x=2, y=2}", {5, 3}, "[(x,y), -]", "[-, -]", "all_gather{x,y}", 12},
    {"reversed_order_to_whole", "{x=2, y=2, z=2}", {17, 5}, "[(z,y,x), -]", "[-, -]", "all_gather{x,y,z}", 75},
    {"rows_to_columns_uneven", "{x=4}", {5, 8}, "[x, -]", "[-, x]", "exchange{x}", 8},
    {"all_gather_with_subaxis", "{x=2, y=8}", {16, 8}, "[y, x]", "[y:(1)4, x]", "all_gather{y:(4)2}", 8},
    {"two_dims_in_one_all_to_all", "{a=4, b=2}", {64, 64, 64, 64}, "[-, a, b, -]", "[b, -, -, a]", "all_to_all{a,b}", 1835008},
    {"replace_same_size_axes_same_dim", "{x=2, y=2, z=2}", {16, 8}, "[z, y]", "[z, x]", "permute{x,y}", 32},
    // Reductions.
    {"sum_to_whole", "{x=4}", {8}, "[-] sum{x}", "[-]", "all_reduce{x}", 12},
    {"sum_to_shards", "{x=4}", {8}, "[-] sum{x}", "[x]", "reduce_scatter{x}", 6},
    {"ones_partial_to_whole", "{x=4}", {12, 3}, "[-, -] sum{x}", "[-, -]", "all_reduce{x}", 54},
    {"ones_partial_to_uneven_rows", "{x=4}", {13, 3}, "[-, -] sum{x}", "[x, -]", "reduce_scatter{x}", 36},
    {"sum_over_two_axes", "{x=2, y=2}", {4}, "[-] sum{x,y}", "[-]", "all_reduce{x,y}", 6},
    {"all_axes_partial_two", "{x=4, y=2}", {16, 16, 16}, "[-, -, -] sum{x,y}", "[-, -, -]", "all_reduce{x,y}", 7168},
    {"all_axes_partial_three", "{x=2, y=2, z=2}", {16, 16, 16}, "[-, -, -] sum{x,y,z}", "[-, -, -]", "all_reduce{x,y,z}", 7168},
    {"all_axes_partial_to_rows", "{x=2, y=2}", {8}, "[-] sum{x,y}", "[(x,y)]", "reduce_scatter{x,y}", 6},
    {"all_axes_partial_to_rows_then_whole", "{x=2, y=2}", {8}, "[(x,y)]", "[-]", "all_gather{x,y}", 6},
    {"partial_sharded_partial", "{x=2, y=2, z=2}", {8}, "[y] sum{x,z}", "[-]", "all_reduce{x,z}, all_gather{y}", 10},
    {"ten_over_merged_2x3", "{x=2, y=3}", {10}, "[-] sum{x,y}", "[(x,y)]", "reduce_scatter{x,y}", 10},
    {"slice_before_reduce", "{x=2, y=2}", {4, 4}, "[-, -] sum{x}", "[y, -]", "slice{y}, all_reduce{x}", 8},
    {"reduce_scatter_is_found_rows", "{x=2, y=2}", {4, 4}, "[-, -] sum{x}", "[x, -]", "reduce_scatter{x}", 8},
    {"reduce_scatter_is_found_columns", "{x=2, y=2}", {4, 4}, "[-, -] sum{x}", "[-, x]", "reduce_scatter{x}", 8},
    {"matmul_replicated_result", "{x=3, y=2}", {2, 2}, "[-, -] sum{x}", "[-, -]", "all_reduce{x}", 6},
    {"matmul_row_result", "{x=3, y=2}", {2, 2}, "[y, -] sum{x}", "[y, -]", "all_reduce{x}", 3},
    {"sum_to_a_finer_layout", "{x=2, y=3}", {6}, "[x] sum{y}", "[(x,y)]", "reduce_scatter{y}", 2},
    {"sum_over_two_axes_to_shards", "{x=2, y=2}", {4}, "[-] sum{x,y}", "[(y,x)]", "reduce_scatter{x,y}", 3},
    {"sum_keeps_the_other_axis", "{x=2, y=2}", {4}, "[-] sum{x,y}", "[-] sum{y}", "all_reduce{x}", 4},
    {"sum_to_other_partial_axis", "{x=2, y=2}", {4}, "[-] sum{x}", "[-] sum{y}", "all_reduce{x}, expand{y}", 4},
    {"sum_to_some_of_the_axes", "{x=2, y=2}", {8}, "[-] sum{x,y}", "[x]", "reduce_scatter{x,y}, all_gather{y}", 8},
    {"out_partial_axes_preserved", "{x=2, y=2, z=2}", {16, 8}, "[(y,z), -] sum{x}", "[-, y] sum{x}", "exchange{y,z}", 48},
    {"sum_then_max", "{x=2}", {4}, "[-] sum{x}", "[-] max{x}", "all_reduce{x}, expand{x}", 4},
    {"scalar_sum", "{x=4}", {}, "[] sum{x}", "[]", "all_reduce{x}", 3},
    // Scattering to where the target wants it, then one move, beats adding everywhere.
    {"scatter_then_move", "{x=2, y=2}", {8, 8}, "[y, -] sum{x}", "[-, y]", "reduce_scatter{x}, exchange{x,y}", 40},
    {"scatter_in_place_then_gather", "{x=2, y=2}", {8, 8}, "[y, -] sum{x}", "[-, x]", "reduce_scatter{x}, all_gather{y}", 32},
    // Expansions.
    {"scalar_to_sum", "{x=2}", {}, "[]", "[] sum{x}", "expand{x}", 0},
    {"whole_to_sum", "{x=3}", {2}, "[-]", "[-] sum{x}", "expand{x}", 0},
    {"whole_to_max", "{x=2}", {4}, "[-]", "[-] max{x}", "expand{x}", 0},
    {"shards_to_sum", "{x=2}", {8}, "[x]", "[-] sum{x}", "expand{x}", 0},
    {"shards_to_avg_are_gathered", "{x=2}", {8}, "[x]", "[-] avg{x}", "all_gather{x}, expand{x}", 4},
    {"several_axes_to_sum", "{x=2, y=2, z=2}", {8, 8}, "[(x,z), y]", "[x, -] sum{y,z}", "expand{y,z}", 0},
    {"identity_on_partials", "{x=2, y=2}", {4}, "[y] sum{x}", "[y] sum{x}", "nothing to do", 0},
};
// clang-format on

class StepsTest : public ::testing::TestWithParam<StepsCase> {};

TEST_P(StepsTest, AreThoseOfTheTable) {
  const StepsCase& row = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse(row.mesh));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout from, Layout::parse(mesh, row.from));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout to, Layout::parse(mesh, row.to));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan plan,
                               plan_relayout(from, to, row.shape, DType::kFloat32));
  EXPECT_EQ(steps_of(plan), row.steps);
  EXPECT_EQ(plan.max_received_bytes(), 4 * row.most_received);
  EXPECT_LE(plan.lower_bound_bytes(), plan.max_received_bytes());
  for (size_t i = 1; i < plan.steps().size(); ++i) {
    EXPECT_EQ(plan.steps()[i].from(), plan.steps()[i - 1].to());
  }
  if (num_elements(row.shape) <= 4096) {
    EXPECT_EQ(check_relayout(from, to, row.shape).problem, "");
    EXPECT_EQ(check_relayout(to, from, row.shape).problem, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Facts, StepsTest, ::testing::ValuesIn(kSteps),
                         [](const auto& info) { return info.param.name; });

struct CopiesCase {
  std::string name, mesh;
  Shape shape;
  std::string from, to;
  std::string steps;  // of devices that are far apart
  int64_t most_received, bound;
};

// clang-format off
const CopiesCase kCopies[] = {
    {"to_whole", "{x=4, z=2}", {8}, "[-] sum{x}", "[-]", "reduce_scatter{x}, all_gather{x,z}", 10, 10},
    {"to_shards", "{x=4, z=2}", {8}, "[-] sum{x}", "[x]", "reduce_scatter{x}, all_gather{z}", 4, 4},
    {"of_shards", "{x=4, y=2, z=2}", {16}, "[y] sum{x}", "[y]", "reduce_scatter{x}, all_gather{x,z}", 10, 10},
    {"two_axes_of_copies", "{x=4, y=2, z=2}", {16}, "[-] sum{x}", "[-]", "reduce_scatter{x}, all_gather{x,y,z}", 18, 18},
    {"copies_are_shards_then", "{x=4, z=2}", {8}, "[-] sum{x}", "[z]", "slice{z}, all_reduce{x}", 6, 6},
    {"only_some_are_shards_then", "{x=4, y=2, z=2}", {16}, "[-] sum{x}", "[z]", "reduce_scatter{x}, all_gather{x,y}", 10, 10},
    {"longest_dim", "{x=4, z=2}", {2, 16}, "[-, -] sum{x}", "[-, -]", "reduce_scatter{x}, all_gather{x,z}", 40, 40},
    {"sub_axis", "{x=8}", {8}, "[-] sum{x:(2)4}", "[-]", "reduce_scatter{x:(2)4}, all_gather{x}", 10, 10},
    {"other_terms_stay", "{x=4, y=2, z=2}", {8}, "[-] sum{x,y}", "[-] sum{y}", "reduce_scatter{x}, all_gather{x,z}", 10, 10},
    {"two_terms_gain_nothing", "{x=2, z=4}", {8}, "[-] sum{x}", "[-]", "all_reduce{x}", 8, 8},
    {"scalars_have_no_parts", "{x=4, z=2}", {}, "[] sum{x}", "[]", "all_reduce{x}", 3, 2},
    {"then_an_exchange", "{x=2, y=2, z=2}", {8, 8}, "[y, -] sum{x}", "[-, y]", "reduce_scatter{x}, exchange{x,y,z}", 36, 36},
};
// clang-format on

void expect_plan(const CopiesCase& row, const PlanOptions& options) {
  SCOPED_TRACE(row.name);
  const Layout from = layout_of(row.mesh, row.from);
  const Layout to = layout_of(row.mesh, row.to);
  TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan plan,
                               plan_relayout(from, to, row.shape, DType::kFloat32, options));
  EXPECT_EQ(steps_of(plan), row.steps);
  EXPECT_EQ(plan.max_received_bytes(), 4 * row.most_received);
  EXPECT_EQ(plan.lower_bound_bytes(), 4 * row.bound);
  EXPECT_EQ(check_relayout(from, to, row.shape, options).problem, "");
}

// Devices that hold the same term each reduce a part of it, where links cost more than memory.
TEST(CopiesOfTermsTest, ShareTheReduction) {
  for (const CopiesCase& row : kCopies) expect_plan(row, testing::network_only_options());
}

// The latency of the second step has to be earned, and memory that all map is no link.
TEST(CopiesOfTermsTest, ShareOnlyWhatPays) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse("{x=4, z=2}"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout from, Layout::parse(mesh, "[-] sum{x}"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout to, Layout::parse(mesh, "[-]"));
  const PlanOptions hosts{.topology = *Topology::uniform(1, 1)};
  const auto steps = [&](int64_t elements, const PlanOptions& options) {
    return steps_of(*plan_relayout(from, to, {elements}, DType::kFloat32, options));
  };
  // 50 us are 50,000 bytes of the network.
  EXPECT_EQ(steps(49'000, hosts), "all_reduce{x}");
  EXPECT_EQ(steps(51'000, hosts), "reduce_scatter{x}, all_gather{x,z}");
  EXPECT_EQ(steps(1 << 24, {}), "all_reduce{x}");
}

// Copies on one node share what crosses the network: each sends and receives a part of the tensor.
TEST(CopiesOfTermsTest, OfANodeShareItsNetwork) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse("{node=2, gpu=4}"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout from, Layout::parse(mesh, "[-] sum{node}"));
  const LinkCost near = {0, 1e-12};
  const PlanOptions nodes{.topology = *Topology::uniform(1, 4, {near, near, {0, 1e-9}})};
  constexpr int64_t kBytes = 1 << 20;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RelayoutPlan plan,
      plan_relayout(from, Layout::parse(mesh, "[-]"), {kBytes}, DType::kInt8, nodes));
  EXPECT_EQ(steps_of(plan), "reduce_scatter{node}, all_gather{node}, all_gather{gpu}");
  // By an all-reduce of each copy all of it crosses.
  const double network_s = kBytes / 8 * 2 * 1e-9;
  EXPECT_NEAR(absl::ToDoubleSeconds(plan.predicted_time()), network_s, network_s / 100);
}

// clang-format off
const CopiesCase kPlaced[] = {
    // The reduction leaves x behind the place that z goes to, where [(x,..), z] has x before it.
    {"behind_what_moves", "{x=2, z=2}", {8, 8}, "[-, z] sum{x}", "[(z,x), -]", "reduce_scatter{x}, all_to_all{z}", 24, 24},
    {"between_two_that_move", "{x=2, y=2, z=2}", {8, 8}, "[y, z] sum{x}", "[(z,x,y), -]", "reduce_scatter{x}, exchange{y,z}", 16, 14},
};
// clang-format on

// Dims are seen as cut into a place for each part, so that a part finds its own although those
// before it come later.
TEST(PlacesTest, PartsOfAReductionGoWhereTheGoalWantsThem) {
  for (const CopiesCase& row : kPlaced) {
    expect_plan(row, PlanOptions());
    expect_plan(row, testing::network_only_options());
  }
}

struct BoundsCase {
  int rank;
  int64_t devices, reductions, at_the_bound;
  double mean, worst;
};

// docs/internals/planner.md, "The lower bound": all reductions between layouts, by bytes alone.
TEST(ReductionsAgainstTheBoundTest, AreAsDocumented) {
  if (testing::kSanitized) GTEST_SKIP() << "counts all of them, which the plain build does";
  const BoundsCase rows[] = {{2, 8, 10540, 6772, 1.0898, 1.5}, {1, 12, 7626, 3676, 1.1223, 2}};
  for (const BoundsCase& row : rows) {
    BoundsCase found = {row.rank, row.devices, 0, 0, 0, 0};
    double sum = 0;
    for (const Mesh& mesh : testing::small_meshes(3, row.devices)) {
      const bool counts = mesh.size() == row.devices &&
                          std::all_of(mesh.axes().begin(), mesh.axes().end(),
                                      [](const MeshAxis& axis) { return axis.size > 1; });
      if (!counts) continue;
      const Shape shape(row.rank, row.devices * row.devices);
      const std::vector<Layout> layouts = testing::every_layout(mesh, row.rank, {ReduceOp::kSum});
      for (const Layout& from : layouts) {
        for (const Layout& to : layouts) {
          if (!from.is_partial()) break;
          TESSERA_ASSERT_OK_AND_ASSIGN(
              const RelayoutPlan plan,
              plan_relayout(from, to, shape, DType::kInt8, testing::network_only_options()));
          const int64_t bound = plan.lower_bound_bytes();
          if (bound == 0 || plan.steps().back().kind() == StepKind::kExpand) continue;
          const double ratio =
              static_cast<double>(plan.max_received_bytes()) / static_cast<double>(bound);
          ++found.reductions;
          found.at_the_bound += plan.max_received_bytes() == bound ? 1 : 0;
          sum += ratio;
          found.worst = std::max(found.worst, ratio);
        }
      }
    }
    found.mean = sum / static_cast<double>(found.reductions);
    EXPECT_EQ(found.reductions, row.reductions);
    EXPECT_EQ(found.at_the_bound, row.at_the_bound);
    EXPECT_NEAR(found.mean, row.mean, 1e-4);
    EXPECT_NEAR(found.worst, row.worst, 1e-9);
  }
}

// The alternatives that tools/plan shows: no rejected plan takes less time.
TEST(WaysToReduceTest, TheFastestIsChosen) {
  const LinkCosts costs{{0, 1e-12}, {1e-9, 1e-10}, {2e-9, 1e-9}};
  const PlanOptions options[] = {
      {}, testing::network_only_options(), {.topology = *Topology::uniform(1, 2, costs)}};
  constexpr int kRank = testing::kSanitized ? 1 : 2;
  const Shape shape(kRank, 16);
  int64_t compared = 0;
  for (const Mesh& mesh : testing::small_meshes(3, 4)) {
    const std::vector<Layout> layouts = testing::every_layout(mesh, kRank, {ReduceOp::kSum});
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        if (!from.is_partial()) break;
        for (const PlanOptions& option : options) {
          TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan plan,
                                       plan_relayout(from, to, shape, DType::kInt8, option));
          const std::vector<Alternative> alternatives = plan.alternatives();
          const auto chosen = std::find_if(alternatives.begin(), alternatives.end(),
                                           [](const Alternative& one) { return one.chosen; });
          for (const Alternative& other : alternatives) {
            ASSERT_LE(chosen->predicted_time, other.predicted_time) << plan.explain() << other.name;
            compared += other.chosen ? 0 : 1;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, kRank == 1 ? 100 : 1000);
}

struct ValuesCase {
  std::string name, mesh;
  Shape shape;
  std::string from;
  std::function<double(int64_t device, int64_t flat)> term;
  std::string to;
  DeviceValues expected;
};

double ten_to(int64_t power) { return power == 0 ? 1 : 10 * ten_to(power - 1); }
double tens(int64_t device, int64_t flat) { return ten_to(device) * static_cast<double>(flat + 1); }

DeviceValues on_all(int devices, const std::vector<double>& values) {
  DeviceValues result;
  for (int device = 0; device < devices; ++device) result[device] = values;
  return result;
}

// clang-format off
std::vector<ValuesCase> value_cases() {
  const auto ranks = [](int64_t device, int64_t) { return device + 1.0; };
  return {
      {"sum_to_whole", "{x=4}", {5}, "[-] sum{x}", tens, "[-]", on_all(4, {1111, 2222, 3333, 4444, 5555})},
      {"sum_of_ranks", "{x=4}", {8}, "[-] sum{x}", ranks, "[-]", on_all(4, std::vector<double>(8, 10))},
      {"sum_of_ranks_to_shards", "{x=4}", {8}, "[-] sum{x}", ranks, "[x]", on_all(4, {10, 10})},
      {"sum_to_uneven_shards", "{x=4}", {5}, "[-] sum{x}", tens, "[x]", {{0, {1111, 2222}}, {1, {3333}}, {2, {4444}}, {3, {5555}}}},
      {"sum_to_fewer_elements_than_devices", "{x=4}", {2}, "[-] sum{x}", tens, "[x]", {{0, {1111}}, {1, {}}, {2, {2222}}, {3, {}}}},
      {"sum_to_uneven_shards_of_two", "{x=4}", {2}, "[-] sum{x}", [](int64_t d, int64_t i) { return i == 0 ? d : 10.0 * d; }, "[x]", {{0, {6}}, {1, {}}, {2, {60}}, {3, {}}}},
      {"prod_to_whole", "{x=3}", {2}, "[-] prod{x}", [](int64_t d, int64_t i) { return d + 2.0 + i; }, "[-]", on_all(3, {24, 60})},
      {"min_to_whole", "{x=3}", {2}, "[-] min{x}", [](int64_t d, int64_t i) { return i == 0 ? d - 1.0 : 1.0 - d; }, "[-]", on_all(3, {-1, -1})},
      {"sum_to_a_finer_layout", "{x=2, y=3}", {6}, "[x] sum{y}", [](int64_t d, int64_t i) { return (d % 3 + 1) * 100.0 + i; }, "[(x,y)]", {{0, {600}}, {1, {603}}, {2, {606}}, {3, {609}}, {4, {612}}, {5, {615}}}},
      {"sum_over_two_axes", "{x=2, y=2}", {4}, "[-] sum{x,y}", tens, "[-]", on_all(4, {1111, 2222, 3333, 4444})},
      {"sum_over_two_axes_to_shards", "{x=2, y=2}", {4}, "[-] sum{x,y}", tens, "[(y,x)]", {{0, {1111}}, {1, {3333}}, {2, {2222}}, {3, {4444}}}},
      {"sum_along_one_axis", "{x=2, y=3}", {3}, "[y] sum{x}", [](int64_t d, int64_t) { return 10.0 * (d / 3) + d % 3; }, "[-]", on_all(6, {10, 12, 14})},
      {"avg_partial", "{x=3}", {1}, "[-] avg{x}", [](int64_t d, int64_t) { return d == 2 ? 4.0 : d + 1.0; }, "[-]", on_all(3, {7.0 / 3})},
      {"scalar_to_sum", "{x=2}", {}, "[]", [](int64_t, int64_t) { return 3.5; }, "[] sum{x}", {{0, {3.5}}, {1, {0}}}},
      {"whole_to_sum", "{x=3}", {2}, "[-]", [](int64_t, int64_t i) { return i == 0 ? 7.0 : 9.0; }, "[-] sum{x}", {{0, {7, 9}}, {1, {0, 0}}, {2, {0, 0}}}},
      {"shards_to_sum", "{x=2}", {4}, "[x]", [](int64_t, int64_t i) { return i + 1.0; }, "[-] sum{x}", {{0, {1, 2, 0, 0}}, {1, {0, 0, 3, 4}}}},
      {"whole_to_max", "{x=2}", {2}, "[-]", [](int64_t, int64_t i) { return i - 1.0; }, "[-] max{x}", on_all(2, {-1, 0})},
      {"partial_sharded_partial", "{x=2, y=2, z=2}", {8}, "[y] sum{x,z}", [](int64_t, int64_t) { return 1.0; }, "[-]", on_all(8, std::vector<double>(8, 4))},
      {"ten_over_merged_2x3", "{x=2, y=3}", {10}, "[-] sum{x,y}", [](int64_t, int64_t) { return 1.0; }, "[(x,y)]", {{0, {6, 6}}, {1, {6, 6}}, {2, {6}}, {3, {6, 6}}, {4, {6, 6}}, {5, {6}}}},
  };
}
// clang-format on

TEST(PartialValuesTest, AreThoseOfTheTable) {
  for (const ValuesCase& row : value_cases()) {
    SCOPED_TRACE(row.name);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse(row.mesh));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Layout from, Layout::parse(mesh, row.from));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RelayoutPlan plan,
        plan_relayout(from, Layout::parse(mesh, row.to), row.shape, DType::kFloat64));
    DeviceValues values;
    for (int64_t device = 0; device < mesh.size(); ++device) {
      std::vector<double>& buffer = values[static_cast<int>(device)];
      testing::for_each_element(from.box(row.shape, device), row.shape,
                                [&](int64_t flat) { buffer.push_back(row.term(device, flat)); });
    }
    std::string problem;
    EXPECT_EQ(run_plan(plan, values, &problem), row.expected);
    EXPECT_EQ(problem, "");
  }
}

}  // namespace
}  // namespace tessera
