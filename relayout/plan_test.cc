// SPDX-License-Identifier: Apache-2.0
//
// Plans as values: refusals, text, hashes, groups, bytes of reductions, and large meshes.
#include "relayout/plan.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/hash/hash.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "relayout/testing/plan_texts.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::layout_of;
using ::tessera::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RelayoutPlan plan_of(const std::string& mesh, const std::string& from, const std::string& to,
                     const Shape& shape, DType dtype = DType::kFloat32) {
  StatusOr<RelayoutPlan> plan =
      plan_relayout(layout_of(mesh, from), layout_of(mesh, to), shape, dtype);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

struct RefusedCase {
  std::string name, from, to;
  Shape shape;
  DType dtype;
  std::string message;
};

const RefusedCase kRefused[] = {
    {"other_rank",
     "[x, -]",
     "[x, -, -]",
     {4, 4},
     DType::kInt32,
     "relayout to [x, -, -]: the layout has 3 dims, the tensor under [x, -] has 2; relayout keeps "
     "the rank"},
    {"shape_of_other_rank",
     "[x, -]",
     "[-, x]",
     {4},
     DType::kInt32,
     "layout [x, -] has 2 dims, shape [4] has 1"},
    {"negative_size", "[x]", "[-]", {-4}, DType::kInt32, "-4"},
    {"too_many_bytes",
     "[x]",
     "[-]",
     {int64_t{1} << 62},
     DType::kFloat64,
     "shape [4611686018427387904] of f64 has more than 2^63 - 1 bytes"},
    {"avg_of_integers", "[-] avg{x}", "[-]", {1}, DType::kInt32, "avg"},
    {"avg_of_integers_wanted", "[-]", "[-] avg{x}", {1}, DType::kInt64, "layout [-] avg{x}"},
    {"sum_of_bool", "[-] sum{x}", "[-]", {1}, DType::kBool, "sum"},
    {"prod_of_bool_wanted", "[-]", "[-] prod{x}", {1}, DType::kBool, "prod"},
    {"avg_of_bool", "[-] avg{x}", "[-]", {1}, DType::kBool, "avg"},
};

TEST(PlanRelayoutTest, RefusesWithTheReason) {
  for (const RefusedCase& row : kRefused) {
    SCOPED_TRACE(row.name);
    EXPECT_THAT(plan_relayout(layout_of("{x=3, y=2}", row.from), layout_of("{x=3, y=2}", row.to),
                              row.shape, row.dtype),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(row.message)));
  }
}

TEST(PlanRelayoutTest, PassesTheErrorOfTheLayoutOn) {
  const StatusOr<Layout> bad = Layout::parse(*Mesh::parse("{x=2}"), "[q]");
  ASSERT_FALSE(bad.ok());
  const StatusOr<RelayoutPlan> plan =
      plan_relayout(layout_of("{x=2}", "[x]"), bad, {4}, DType::kInt32);
  EXPECT_EQ(plan.status(), bad.status());
}

TEST(PlanRelayoutTest, MinAndMaxOfBoolAndIntegersAreLegal) {
  for (DType dtype : {DType::kBool, DType::kInt8}) {
    for (const char* op : {"min", "max"}) {
      const std::string partial = std::string("[-] ") + op + "{x}";
      EXPECT_EQ(plan_of("{x=2}", partial, "[-]", {4}, dtype).steps().size(), 1);
    }
  }
}

TEST(ExplainTest, Identity) {
  EXPECT_EQ(plan_of("{x=2, y=2}", "[x, -] sum{y}", "[x, -] sum{y}", {4, 4}).explain(),
            R"(relayout of f32 [4, 4], 64 B
  from  [x, -] sum{y} on {x=2, y=2}
  to    [x, -] sum{y} on {x=2, y=2}
  no steps: every device already holds its new box
)");
}

TEST(ExplainTest, RowsToColumns) {
  EXPECT_EQ(plan_of("{x=4}", "[x, -]", "[-, x]", {4096, 4096}, DType::kFloat64).explain(),
            R"(relayout of f64 [4096, 4096], 128 MiB
  from  [x, -] on {x=4}
  to    [-, x] on {x=4}
  1. all_to_all{x} [x, -] -> [-, x]; groups of 4, receives 24 MiB
  a device receives at most 24 MiB, the lower bound is 24 MiB (1.00x); it holds at most 64 MiB
)");
}

TEST(ExplainTest, Slice) {
  EXPECT_EQ(plan_of("{x=2, y=2}", "[x, -]", "[x, y]", {10, 10}, DType::kInt8).explain(),
            R"(relayout of i8 [10, 10], 100 B
  from  [x, -] on {x=2, y=2}
  to    [x, y] on {x=2, y=2}
  1. slice{y} [x, -] -> [x, y]; local
  a device receives at most 0 B, the lower bound is 0 B; it holds at most 75 B
)");
}

TEST(ExplainTest, ReductionThenMove) {
  EXPECT_EQ(plan_of("{x=2, y=2, z=2}", "[y] sum{x,z}", "[-]", {1024}).explain(),
            R"(relayout of f32 [1024], 4 KiB
  from  [y] sum{x,z} on {x=2, y=2, z=2}
  to    [-] on {x=2, y=2, z=2}
  1. all_reduce{x,z} [y] sum{x,z} -> [y]; groups of 4, receives 3 KiB
  2. all_gather{y} [y] -> [-]; groups of 2, receives 2 KiB
  a device receives at most 5 KiB, the lower bound is 5 KiB (1.00x); it holds at most 8 KiB
)");
}

TEST(ExplainTest, OtherDevices) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RelayoutPlan plan,
      plan_relayout(layout_of("{x=3} on 5,0,7", "[x]"), layout_of("{x=2} on 7,5", "[x]"), {10},
                    DType::kInt32));
  EXPECT_EQ(plan.explain(), R"(relayout of i32 [10], 40 B
  from  [x] on {x=3} on 5,0,7
  to    [x] on {x=2} on 7,5
  1. exchange [x] on {x=3} on 5,0,7 -> [x] on {x=2} on 7,5; groups of 3, receives 20 B
  a device receives at most 20 B, the lower bound is 20 B (1.00x); it holds at most 36 B
)");
}

TEST(RelayoutPlanTest, TextNamesLayoutsAndSteps) {
  EXPECT_EQ(plan_of("{x=2}", "[x, -]", "[-, x]", {4, 4}, DType::kInt32).to_string(),
            "[x, -] -> [-, x] on {x=2}, i32 [4, 4]: all_to_all{x}");
}

TEST(RelayoutPlanTest, EqualsByWhatItPlans) {
  std::vector<RelayoutPlan> plans = {plan_of("{x=2}", "[x, -]", "[-, x]", {4, 4}),
                                     plan_of("{x=2}", "[x, -]", "[-, x]", {4, 4}),
                                     plan_of("{x=2}", "[-, x]", "[x, -]", {4, 4}),
                                     plan_of("{x=2}", "[x, -]", "[-, x]", {4, 6}),
                                     plan_of("{x=2}", "[x, -]", "[-, x]", {4, 4}, DType::kInt32),
                                     plan_of("{x=2} on 1,0", "[x, -]", "[-, x]", {4, 4})};
  EXPECT_EQ(plans[0], plans[1]);
  for (size_t i = 2; i < plans.size(); ++i) EXPECT_FALSE(plans[0] == plans[i]) << plans[i];
  EXPECT_EQ(absl::HashOf(plans[0]), absl::HashOf(plans[1]));
}

// A change of this number means that clients of two versions would disagree.
TEST(RelayoutPlanTest, HashIsTheSameInEveryProcess) {
  EXPECT_EQ(plan_of("{x=2}", "[x, -]", "[-, x]", {4, 4}).hash(), 12537973675847035081u);
}

TEST(PlanStepTest, GroupsOfCollectivesRunAlongTheirAxes) {
  const RelayoutPlan plan = plan_of("{x=2, y=3}", "[x, y]", "[x, -]", {4, 6});
  ASSERT_EQ(plan.steps().size(), 1);
  const PlanStep& step = plan.steps()[0];
  EXPECT_EQ(step.kind(), StepKind::kAllGather);
  EXPECT_THAT(step.axes(), ElementsAre("y"));
  EXPECT_EQ(step.group_size(), 3);
  for (int id : {3, 4, 5}) EXPECT_THAT(step.group(id), ElementsAre(3, 4, 5));
  EXPECT_THAT(step.group(77), ElementsAre(77));
  EXPECT_THAT(step.pulls(77), IsEmpty());
  EXPECT_EQ(step.received_bytes(77), 0);
  EXPECT_EQ(step.sent_bytes(77), 0);
  EXPECT_EQ(step.old_box(77), std::nullopt);
}

// "move_the_same_axis": two groups of two, no traffic between them.
TEST(PlanStepTest, PullsStayInTheGroup) {
  const RelayoutPlan plan = plan_of("{x=2, y=2}", "[x, -]", "[-, x]", {6, 6});
  const PlanStep& step = plan.steps()[0];
  EXPECT_THAT(step.group(0), ElementsAre(0, 2));
  EXPECT_THAT(step.group(3), ElementsAre(1, 3));
  const Box upper{{0, 0}, {3, 6}};
  const Box lower{{3, 0}, {3, 6}};
  EXPECT_THAT(step.pulls(1),
              ElementsAre(Pull{1, upper, {{0, 0}, {3, 3}}}, Pull{3, lower, {{3, 0}, {3, 3}}}));
}

// Only devices 1 and 2 exchange.
TEST(PlanStepTest, ADeviceThatKeepsItsBoxIsAlone) {
  const RelayoutPlan plan = plan_of("{x=2, y=2}", "[x, y]", "[y, x]", {8, 8});
  const PlanStep& step = plan.steps()[0];
  EXPECT_EQ(step.kind(), StepKind::kPermute);
  EXPECT_THAT(step.group(0), ElementsAre(0));
  EXPECT_THAT(step.group(1), ElementsAre(1, 2));
  EXPECT_THAT(step.group(2), ElementsAre(1, 2));
  EXPECT_THAT(step.group(3), ElementsAre(3));
}

TEST(PlanStepTest, HoldersShareTheLoad) {
  // "replicas_to_other_replicas": two old holders, two new ones.
  TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan copies,
                               plan_relayout(layout_of("{x=2}", "[-]"),
                                             layout_of("{x=2} on 2,3", "[-]"), {6}, DType::kInt8));
  EXPECT_EQ(copies.steps()[0].sent_bytes(0), 6);
  EXPECT_EQ(copies.steps()[0].sent_bytes(1), 6);
  EXPECT_EQ(copies.steps()[0].op(), std::nullopt);
  // Devices with x == y keep their box; each of the others asks another holder.
  const RelayoutPlan replaced = plan_of("{x=4, y=4}", "[x]", "[y]", {16}, DType::kInt8);
  for (int id = 0; id < 16; ++id) EXPECT_LE(replaced.steps()[0].sent_bytes(id), 4) << id;
}

TEST(PlanStepTest, TermsAscendByPartialIndex) {
  const RelayoutPlan plan = plan_of("{x=2, y=2} on 3,1,2,0", "[-] sum{x,y}", "[(y,x)]", {8});
  ASSERT_EQ(plan.steps().size(), 1);
  const PlanStep& step = plan.steps()[0];
  EXPECT_EQ(step.kind(), StepKind::kReduceScatter);
  EXPECT_EQ(step.op(), ReduceOp::kSum);
  for (int id : {0, 1, 2, 3}) {
    EXPECT_THAT(step.terms(id), ElementsAre(3, 1, 2, 0));
    EXPECT_THAT(step.group(id), ElementsAre(3, 1, 2, 0));
    EXPECT_THAT(step.pulls(id), IsEmpty());
  }
  // Position 1, (x=0, y=1), holds shard 2 of [(y,x)].
  EXPECT_EQ(step.new_box(1), (Box{{4}, {2}}));
}

TEST(PlanStepTest, ReductionsCountWhatTheyMove) {
  // Four terms of 10 elements of 4 bytes: chunks of 3, 2, 3 and 2.
  const RelayoutPlan whole = plan_of("{x=4}", "[-] sum{x}", "[-]", {10});
  const std::vector<int64_t> chunks = {3, 2, 3, 2};
  for (int id = 0; id < 4; ++id) {
    EXPECT_EQ(whole.received_bytes(id), 4 * (3 * chunks[id] + 10 - chunks[id]));
    EXPECT_EQ(whole.steps()[0].sent_bytes(id), whole.received_bytes(id));
  }
  const RelayoutPlan shards = plan_of("{x=4}", "[-] sum{x}", "[x]", {10});
  for (int id = 0; id < 4; ++id) {
    EXPECT_EQ(shards.received_bytes(id), 4 * 3 * chunks[id]);
    EXPECT_EQ(shards.steps()[0].sent_bytes(id), 4 * (10 - chunks[id]));
  }
}

struct BoundCase {
  std::string name, mesh;
  Shape shape;
  std::string from, to;
  int64_t elements;
};

// By hand: (new boxes + (terms - 2) * values + lonely values) / devices, rounded up.
TEST(RelayoutPlanTest, LowerBoundOfReductions) {
  const BoundCase rows[] = {
      {"whole_copies", "{x=4}", {8}, "[-] sum{x}", "[-]", (32 + 16) / 4},
      {"uneven_copies", "{x=4}", {10}, "[-] sum{x}", "[-]", (40 + 20) / 4},
      {"scalar", "{x=4}", {}, "[] sum{x}", "[]", 2},
      {"shards", "{x=4}", {8}, "[-] sum{x}", "[x]", (8 + 16) / 4},
      {"some_shards", "{x=2, y=2}", {8}, "[-] sum{x,y}", "[x]", (16 + 16) / 4},
      {"largest_new_box", "{x=8}", {1}, "[-] sum{x}", "[x]", 1},
      {"copies_of_terms", "{x=4, z=2}", {8}, "[-] sum{x}", "[-]", (64 + 16) / 8},
      {"copies_of_terms_to_shards", "{x=4, z=2}", {8}, "[-] sum{x}", "[x]", (16 + 16) / 8},
      {"half_is_lonely", "{x=2, y=2}", {8, 8}, "[y, -] sum{x}", "[-, y]", (128 + 0 + 32) / 4},
      {"terms_that_stay", "{x=4, y=2}", {8}, "[-] sum{x,y}", "[-] sum{y}", (64 + 32) / 8},
      {"expansion_counts_nothing", "{x=4}", {8}, "[-] sum{x}", "[-] max{x}", (32 + 16) / 4},
      // Found by plan_fuzz, with a bound of 72.
      {"other_shards_before",
       "{x=8, y=2, z=1}",
       {6, 8, 4},
       "[y, -, -] sum{x:(1)2,x:(4)2}",
       "[-, x, -]",
       (384 + 384) / 16},
  };
  for (const BoundCase& row : rows) {
    SCOPED_TRACE(row.name);
    const RelayoutPlan plan = plan_of(row.mesh, row.from, row.to, row.shape);
    EXPECT_EQ(plan.lower_bound_bytes(), 4 * row.elements);
  }
}

// All is lonely: the sum is complete on the devices that want it, or was sent there.
TEST(RelayoutPlanTest, LowerBoundOfReductionsOnOtherDevices) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan plan,
                               plan_relayout(layout_of("{x=3}", "[-] sum{x}"),
                                             layout_of("{x=2} on 3,4", "[x]"), {10}, DType::kInt8));
  EXPECT_EQ(plan.lower_bound_bytes(), (10 + 10 + 10) / 5);
}

// Source and target, and between two steps the intermediate tensor.
TEST(RelayoutPlanTest, PeakCountsWhatIsHeldAtOnce) {
  EXPECT_EQ(plan_of("{x=2}", "[x]", "[x]", {8}, DType::kInt8).peak_bytes(), 4);
  EXPECT_EQ(plan_of("{x=2}", "[x]", "[-]", {8}, DType::kInt8).peak_bytes(), 12);
  EXPECT_EQ(plan_of("{x=2, y=2}", "[-] sum{x,y}", "[x]", {8}, DType::kInt8).peak_bytes(), 14);
}

TEST(LargeMeshTest, PlansWithoutVisitingPairsOfDevices) {
  const std::string mesh = "{a=16, b=16, c=16, d=16}";
  const RelayoutPlan plan = plan_of(mesh, "[(a,b), c, -, d]", "[c, (d,a), b, -]",
                                    {1 << 12, 1 << 12, 100, 1000}, DType::kFloat64);
  EXPECT_EQ(plan.lower_bound_bytes(), plan.max_received_bytes());
  EXPECT_GT(plan.received_bytes(65535), 0);
  EXPECT_FALSE(plan.steps()[0].pulls(40000).empty());
  const RelayoutPlan sum =
      plan_of(mesh, "[a, -] sum{b,c,d}", "[-, (b,c,d)]", {1 << 14, 1 << 14}, DType::kFloat32);
  EXPECT_LE(sum.lower_bound_bytes(), sum.max_received_bytes());
  EXPECT_EQ(sum.steps()[0].kind(), StepKind::kReduceScatter);
}

TEST(StepKindTest, EveryKindHasAName) {
  for (int kind = 0; kind <= static_cast<int>(StepKind::kExpand); ++kind) {
    EXPECT_NE(step_kind_name(static_cast<StepKind>(kind)), "unknown");
  }
}

}  // namespace
}  // namespace tessera
