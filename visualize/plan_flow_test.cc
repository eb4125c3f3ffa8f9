// SPDX-License-Identifier: Apache-2.0
//
// Data flows: rows of known flows, and their sums and times against the plan's own numbers.
#include "visualize/plan_flow.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "relayout/topology.h"
#include "tests/support/matchers.h"

namespace tessera {

void PrintTo(const Flow& flow, std::ostream* out) {
  *out << flow.source_device << " -> " << flow.device << ": " << flow.bytes;
}

namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

RelayoutPlan plan_of(const std::string& mesh, const std::string& from, const std::string& to,
                     const Shape& shape, const PlanOptions& options = {}) {
  const Mesh parsed = *Mesh::parse(mesh);
  StatusOr<RelayoutPlan> plan = plan_relayout(
      *Layout::parse(parsed, from), Layout::parse(parsed, to), shape, DType::kFloat32, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

TEST(PlanFlowTest, AnAllToAllGoesBothWays) {
  const RelayoutPlan plan = plan_of("{x=2}", "[x, -]", "[-, x]", {4, 4});
  EXPECT_THAT(flows_of(plan.steps()[0]), ElementsAre(Flow{1, 0, 16}, Flow{0, 1, 16}));
}

TEST(PlanFlowTest, AnAllReduceReceivesEqualSharesFromEachOtherTerm) {
  const RelayoutPlan plan = plan_of("{x=3}", "[-] sum{x}", "[-]", {6});
  EXPECT_THAT(flows_of(plan.steps()[0]),
              ElementsAre(Flow{1, 0, 16}, Flow{2, 0, 16}, Flow{0, 1, 16}, Flow{2, 1, 16},
                          Flow{0, 2, 16}, Flow{1, 2, 16}));
}

TEST(PlanFlowTest, WhatIsLocalDoesNotFlow) {
  const RelayoutPlan plan = plan_of("{x=2}", "[-]", "[x]", {6});
  EXPECT_THAT(flows_of(plan.steps()[0]), ElementsAre());
}

struct PlanCase {
  std::string name, mesh, from, to;
  Shape shape;
};

const PlanCase kPlans[] = {
    {"gather", "{node=2, gpu=4}", "[(node,gpu)]", "[-]", {1 << 20}},
    {"gather_small", "{node=2, gpu=4}", "[(node,gpu)]", "[-]", {64}},
    {"rows_to_columns", "{node=2, gpu=4}", "[(node,gpu), -]", "[-, (gpu,node)]", {64, 64}},
    {"swap", "{node=2, gpu=4}", "[node, gpu]", "[gpu, node]", {64, 64}},
    {"uneven", "{node=2, gpu=4}", "[(node,gpu), -]", "[gpu, node]", {7, 9}},
    {"reduce", "{node=2, gpu=4}", "[node] sum{gpu}", "[(node,gpu)]", {640}},
    {"slice", "{node=2, gpu=4}", "[-]", "[gpu]", {64}},
};

PlanOptions two_nodes() {
  const LinkCosts costs = {{12e-6, 1 / 300e9}, {12e-6, 1 / 300e9}, {30e-6, 1 / 50e9}};
  return {.topology = *Topology::uniform(1, 4, costs), .memory_cap_bytes = std::nullopt};
}

// The alpha-beta time from the flows of all devices alone.
double seconds_of(const PlanStep& step, const Topology& topology) {
  std::map<int, double> latency_s, bytes_s;
  double most = 0;
  for (const Flow& flow : flows_of(step)) {
    const LinkCost link = topology.cost(topology.link(flow.source_device, flow.device));
    latency_s[flow.device] = std::max(latency_s[flow.device], link.latency_s);
    bytes_s[flow.device] += static_cast<double>(flow.bytes) * link.seconds_per_byte;
    most = std::max(most, latency_s[flow.device] + bytes_s[flow.device]);
  }
  return most;
}

TEST(PlanFlowTest, FlowsSumUpToTheBytesOfThePlan) {
  for (const PlanCase& row : kPlans) {
    const RelayoutPlan plan = plan_of(row.mesh, row.from, row.to, row.shape, two_nodes());
    for (const PlanStep& step : plan.steps()) {
      std::map<int, int64_t> received;
      for (const Flow& flow : flows_of(step)) received[flow.device] += flow.bytes;
      for (int device = 0; device < 8; ++device) {
        EXPECT_EQ(received[device], step.received_bytes(device)) << row.name;
      }
    }
  }
}

TEST(PlanFlowTest, PredictedTimesAreThoseOfTheFlows) {
  for (const PlanCase& row : kPlans) {
    const RelayoutPlan plan = plan_of(row.mesh, row.from, row.to, row.shape, two_nodes());
    for (size_t i = 0; i < plan.steps().size(); ++i) {
      const double seconds = seconds_of(plan.steps()[i], plan.topology());
      EXPECT_NEAR(absl::ToDoubleSeconds(plan.step_predicted_time(i)), seconds,
                  1e-9 + 1e-6 * seconds)
          << row.name << " step " << i << "\n"
          << plan.explain();
    }
  }
}

TEST(PlanFlowTest, ThePictureHasDevicesBoxesAndBytes) {
  const StatusOr<std::string> svg = visualize_svg(plan_of("{x=2}", "[x, -]", "[-, x]", {4, 4}));
  ASSERT_TRUE(svg.ok()) << svg.status();
  for (const char* text : {"all_to_all{x}", ">device 0  [0:2, 0:4]<", ">device 1  [0:4, 2:4]<",
                           "<title>1 -&gt; 0: 16 B</title>", ">receives 1 x 16 B<"}) {
    EXPECT_THAT(*svg, HasSubstr(text));
  }
}

// A picture has a row for each device of either mesh.
TEST(PlanFlowTest, APictureHasAtMost64DevicesOfBothMeshes) {
  const auto draw = [](const std::string& from, const std::string& to) {
    StatusOr<RelayoutPlan> plan =
        plan_relayout(*Layout::parse(*Mesh::parse(from), "[x]"),
                      *Layout::parse(*Mesh::parse(to), "[y]"), {128}, DType::kFloat32);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return visualize_svg(*plan);
  };
  const auto is_refused = [](const std::string& message) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message));
  };
  EXPECT_THAT(draw("{x=64}", "{y=64}"), IsOk());
  EXPECT_THAT(draw("{x=2} on 62,63", "{y=62}"), IsOk());
  EXPECT_THAT(draw("{x=65}", "{y=2}"), is_refused("mesh {x=65} has 65 devices; the picture of a "
                                                  "plan has at most 64, draw a smaller mesh"));
  EXPECT_THAT(draw("{x=2}", "{y=65}"), is_refused("mesh {y=65} has 65 devices; "));
  EXPECT_THAT(draw("{x=3} on 62,63,64", "{y=62}"),
              is_refused("meshes {x=3} and {y=62} together have 65 devices; the picture of a plan "
                         "has at most 64, draw meshes that share devices, or smaller ones"));
}

}  // namespace
}  // namespace tessera
