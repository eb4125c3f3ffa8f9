// SPDX-License-Identifier: Apache-2.0
//
// Components against boxes, schedules against brute force, plans over links of several classes on
// simulated devices, and memory caps.
#include "relayout/schedule.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "relayout/factored_view.h"
#include "relayout/plan.h"
#include "relayout/testing/plan_oracle.h"
#include "relayout/testing/plan_texts.h"
#include "tests/support/matchers.h"
#include "tests/support/seed.h"

namespace tessera::internal {
namespace {

using ::tessera::testing::gpu_nodes;
using ::tessera::testing::layout_of;
using ::tessera::testing::mesh_of;
using ::tessera::testing::StatusIs;
using ::tessera::testing::test_seed;
using ::testing::HasSubstr;

// All layouts of `rank` dims on {a=2, b=2, ...}: each digit replicated or somewhere in a dim.
std::vector<Layout> digit_layouts(const Mesh& mesh, int rank) {
  std::vector<std::vector<DimSharding>> all = {std::vector<DimSharding>(rank)};
  for (const MeshAxis& axis : mesh.axes()) {
    const size_t count = all.size();
    for (size_t i = 0; i < count; ++i) {
      for (int dim = 0; dim < rank; ++dim) {
        for (size_t at = 0; at <= all[i][dim].size(); ++at) {
          all.push_back(all[i]);
          all.back()[dim].insert(all.back()[dim].begin() + at, axis.name);
        }
      }
    }
  }
  std::vector<Layout> layouts;
  for (std::vector<DimSharding>& dims : all) {
    layouts.push_back(*Layout::create(mesh, std::move(dims)));
  }
  return layouts;
}

// The most elements of its new box that a device lacks, by the boxes alone.
int64_t most_lacking(const Layout& from, const Layout& to, const Shape& shape) {
  int64_t most = 0;
  for (int64_t position = 0; position < from.mesh().size(); ++position) {
    const Box old_box = from.box(shape, position);
    const Box new_box = to.box(shape, position);
    int64_t common = 1;
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      const int64_t first = std::max(old_box.offsets[dim], new_box.offsets[dim]);
      const int64_t end = std::min(old_box.offsets[dim] + old_box.sizes[dim],
                                   new_box.offsets[dim] + new_box.sizes[dim]);
      common *= std::max<int64_t>(0, end - first);
    }
    most = std::max(most, new_box.num_elements() - common);
  }
  return most;
}

TEST(ComponentsTest, KeptSharesGiveTheLowerBoundOfAllPairs) {
  for (const char* mesh_text : {"{a=2, b=2}", "{a=2, b=2, c=2}"}) {
    const Mesh mesh = mesh_of(mesh_text);
    const Shape shape(2, 8);
    const std::vector<Layout> layouts = digit_layouts(mesh, 2);
    int64_t pairs = 0;
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        const auto view = FactoredView::create(from, to, shape, Topology());
        ASSERT_TRUE(view.has_value()) << from << " " << to;
        const Scheduler scheduler(view->components(), {from.box(shape, 0).num_elements(), 0}, {});
        ASSERT_EQ(scheduler.direct_traffic().total(), most_lacking(from, to, shape))
            << from << " -> " << to;
        ASSERT_EQ(scheduler.cheapest(std::nullopt)->batches.size(),
                  view->components().empty() ? 0 : 1)
            << from << " -> " << to;
        ++pairs;
      }
    }
    std::cout << mesh_text << ": " << pairs << " pairs\n";
    EXPECT_EQ(pairs, static_cast<int64_t>(layouts.size() * layouts.size()));
    EXPECT_GT(pairs, 100);
  }
}

// All ordered partitions of the components, by recursion.
double brute_force(const Scheduler& scheduler, int count, std::optional<int64_t> cap,
                   int64_t* schedules) {
  double best = -1;
  std::vector<Batch> batches;
  const std::function<void(Batch)> extend = [&](Batch left) {
    if (left == 0) {
      const Schedule schedule = scheduler.evaluate(batches);
      ++*schedules;
      if (cap.has_value() && schedule.peak_bytes > *cap) return;
      if (best < 0 || schedule.seconds < best) best = schedule.seconds;
      return;
    }
    for (Batch next = left; next != 0; next = (next - 1) & left) {
      batches.push_back(next);
      extend(left ^ next);
      batches.pop_back();
    }
  };
  extend((Batch{1} << count) - 1);
  return best;
}

Component random_component(std::mt19937_64& random) {
  const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  const int64_t prime = below(2) == 0 ? 2 : 3;
  const int reach = below(3);
  Component component;
  const int kind = below(4);
  if (kind == 0) component.shrinks = prime;
  if (kind == 1) component.grows = prime;
  for (int i = 0; i <= reach && kind > 0; ++i) component.kept_divisor[i] = kind == 3 ? 0 : prime;
  return component;
}

TEST(SchedulerTest, CheapestAgreesWithBruteForce) {
  std::mt19937_64 random(test_seed(20240301));
  int64_t schedules = 0;
  int several = 0;
  int infeasible = 0;
  for (int round = 0; round < 300; ++round) {
    const int count = 1 + round % 6;
    std::vector<Component> components;
    for (int i = 0; i < count; ++i) components.push_back(random_component(random));
    const int64_t bytes = int64_t{46656} << (random() % 16);
    const LinkCosts costs{{1e-6, 1e-11}, {3e-6, 1e-10}, {20e-6, 1e-9}};
    const Scheduler scheduler(components, {bytes, 0}, costs);
    std::optional<int64_t> cap;
    if (round % 3 == 0) {
      cap = scheduler.direct().peak_bytes * static_cast<int64_t>(90 + random() % 60) / 100;
    }
    const double expected = brute_force(scheduler, count, cap, &schedules);
    const std::optional<Schedule> found = scheduler.cheapest(cap);
    ASSERT_EQ(found.has_value(), expected >= 0);
    infeasible += found.has_value() ? 0 : 1;
    if (!found.has_value()) continue;
    ASSERT_NEAR(found->seconds, expected, expected * 1e-8);
    ASSERT_LE(found->peak_bytes, cap.value_or(found->peak_bytes));
    several += found->batches.size() > 1 ? 1 : 0;
  }
  std::cout << schedules << " schedules, " << several << " times several batches, " << infeasible
            << " times over the cap\n";
  EXPECT_GT(several, 20);
  EXPECT_GT(infeasible, 10);
}

TEST(SchedulerTest, ManyComponentsAreFused) {
  const std::vector<Component> components(16, Component{2, 1, {2, 1, 1}, {}, ""});
  const Scheduler scheduler(components, {1, 0}, {});
  EXPECT_EQ(scheduler.num_groups(), Scheduler::kMaxGroups);
  EXPECT_EQ(scheduler.cheapest(std::nullopt)->batches, std::vector<Batch>{0xffff});
}

RelayoutPlan plan_over(const Topology& topology, const std::string& mesh, const std::string& from,
                       const std::string& to, const Shape& shape, DType dtype = DType::kFloat32) {
  StatusOr<RelayoutPlan> plan =
      plan_relayout(layout_of(mesh, from), layout_of(mesh, to), shape, dtype,
                    {.topology = topology, .memory_cap_bytes = {}});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// Two nodes of four GPUs: from 16 MiB on the network is the load, and the schedule that gathers
// between the nodes first wins. The times were worked out by hand.
TEST(HierarchyTest, NodesFirstWhereTheNetworkIsTheLoad) {
  const struct {
    std::string name;
    int64_t bytes;
    size_t batches;
    double microseconds, direct_microseconds;
  } rows[] = {
      {"64_kib", 64 << 10, 1, 30.7, 30.7},
      {"1_mib", 1 << 20, 1, 41.8, 41.8},
      {"16_mib", 16 << 20, 2, 125.9, 218.7},
      {"1_gib", 1 << 30, 2, 5410, 12110},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    const RelayoutPlan plan = plan_over(gpu_nodes(), "{node=2, g1=2, g2=2}", "[(node,g1,g2)]",
                                        "[-]", {row.bytes}, DType::kInt8);
    EXPECT_EQ(plan.steps().size(), row.batches);
    EXPECT_NEAR(absl::ToDoubleMicroseconds(plan.predicted_time()), row.microseconds,
                row.microseconds / 200);
    EXPECT_EQ(plan.alternatives()[0].name, "direct");
    EXPECT_NEAR(absl::ToDoubleMicroseconds(plan.alternatives()[0].predicted_time),
                row.direct_microseconds, row.direct_microseconds / 200);
    EXPECT_EQ(plan.max_received_bytes(), row.bytes / 8 * 7);
    for (const PlanStep& step : plan.steps()) EXPECT_EQ(step.kind(), StepKind::kAllGather);
    EXPECT_EQ(plan.steps()[0].axes()[0], "node");
  }
}

TEST(HierarchyTest, PlansAreValues) {
  const auto plan = [](int64_t bytes, const Topology& topology) {
    return plan_over(topology, "{node=2, gpu=4}", "[(node,gpu)]", "[-]", {bytes});
  };
  EXPECT_EQ(plan(1 << 24, gpu_nodes()), plan(1 << 24, gpu_nodes()));
  EXPECT_EQ(plan(1 << 24, gpu_nodes()).hash(), plan(1 << 24, gpu_nodes()).hash());
  EXPECT_FALSE(plan(1 << 24, gpu_nodes()) == plan(1 << 24, Topology()));
  EXPECT_NE(plan(1 << 24, gpu_nodes()).hash(), plan(1 << 24, Topology()).hash());
  EXPECT_THAT(plan(1 << 24, gpu_nodes()).explain(),
              HasSubstr("1. all_gather{node} [node, gpu:(1)2, gpu:(2)2, -] -> "
                        "[-, gpu:(1)2, gpu:(2)2, -] as [2, 2, 2, 2097152]"));
}

// The time of the step whose pulls, by the links they come over, take longest.
double seconds_by_pulls(const PlanStep& step, const Topology& topology) {
  double most = 0;
  for (int id : step.to().mesh().device_ids()) {
    Traffic traffic;
    for (const Pull& pull : step.pulls(id)) {
      if (pull.source_device == id) continue;
      traffic.bytes[static_cast<int>(topology.link(id, pull.source_device))] +=
          8 * pull.box.num_elements();
    }
    most = std::max(most, seconds_of(traffic, topology.costs()));
  }
  return most;
}

// Random pairs on simulated devices: the value survives any schedule, each step receives what its
// components say, from holders as near as can be.
TEST(HierarchyTest, RandomPlansRunAsPredicted) {
  std::mt19937_64 random(test_seed(20240301));
  // Latencies that are nothing beside the bytes of small tensors: many batches.
  const LinkCosts costs{{1e-12, 1e-10}, {2e-12, 1e-9}, {4e-12, 1e-8}};
  const std::vector<Topology> topologies = {
      *Topology::uniform(2, 4, costs), *Topology::uniform(1, 2, costs),
      *Topology::of_devices({0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 0, 0, 1, 1, 1, 1}, costs)};
  const std::vector<Layout> layouts = digit_layouts(mesh_of("{a=2, b=2, c=2}"), 2);
  const Shape shape = {8, 16};
  std::map<size_t, int> by_steps;
  for (int round = 0; round < 400; ++round) {
    const Topology& topology = topologies[random() % topologies.size()];
    const Layout& from = layouts[random() % layouts.size()];
    const Layout& to = layouts[random() % layouts.size()];
    SCOPED_TRACE(
        absl::StrCat(from.to_string(), " -> ", to.to_string(), "; ", topology.to_string()));
    TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan plan,
                                 plan_relayout(from, to, shape, DType::kFloat64,
                                               {.topology = topology, .memory_cap_bytes = {}}));
    const auto value = [](int64_t flat, int64_t) { return static_cast<double>(flat); };
    std::string problem;
    const auto result = testing::run_plan(plan, testing::deal(from, shape, value), &problem);
    ASSERT_EQ(problem, "");
    ASSERT_EQ(result, testing::deal(to, shape, value));
    int64_t peak = from.box(shape, 0).num_elements() * 8;
    for (size_t i = 0; i < plan.steps().size(); ++i) {
      peak = std::max(peak, plan.step_peak_bytes(i));
    }
    ASSERT_EQ(peak, plan.peak_bytes());
    ++by_steps[plan.steps().size()];
    for (size_t i = 0; i < plan.steps().size(); ++i) {
      ASSERT_NEAR(absl::ToDoubleNanoseconds(plan.step_predicted_time(i)),
                  1e9 * seconds_by_pulls(plan.steps()[i], topology), 1);
    }
    for (const Alternative& alternative : plan.alternatives()) {
      if (!alternative.chosen) continue;
      EXPECT_EQ(alternative.peak_bytes, plan.peak_bytes());
      EXPECT_NEAR(absl::ToDoubleNanoseconds(alternative.predicted_time - plan.predicted_time()), 0,
                  1);
    }
  }
  for (const auto& [steps, count] : by_steps) {
    std::cout << count << " plans of " << steps << " steps\n";
  }
  EXPECT_GT(by_steps[2], 40);
}

// A device asks a holder in its process, then on its host; and the load is even.
TEST(SendersTest, NearestThenLeastLoaded) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Topology pairs, Topology::uniform(2, 4));
  const struct {
    std::string name, from_mesh, from, to_mesh, to;
    int64_t size;
    LinkClass farthest;
    int64_t most_sent;
  } rows[] = {
      // Each of the new devices 2, 3 pulls from one of the two holders on its host.
      {"other_devices", "{x=2}", "[-]", "{x=2} on 2,3", "[-]", 6, LinkClass::kHost, 6},
      // Holders on both hosts: 4 and 6 ask 5 and 7, in their processes.
      {"same_process", "{x=4} on 1,3,5,7", "[-]", "{x=2} on 4,6", "[-]", 6, LinkClass::kProcess, 6},
      // Every quarter has a copy on each host; each device lacks it or has it.
      {"same_mesh", "{x=2, y=4}", "[y]", "{x=2, y=4}", "[-]", 8, LinkClass::kHost, 6},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RelayoutPlan plan,
        plan_relayout(layout_of(row.from_mesh, row.from), layout_of(row.to_mesh, row.to),
                      {row.size}, DType::kInt8, {.topology = pairs, .memory_cap_bytes = {}}));
    for (const PlanStep& step : plan.steps()) {
      for (int id : step.to().mesh().device_ids()) {
        for (const Pull& pull : step.pulls(id)) {
          EXPECT_LE(pairs.link(id, pull.source_device), row.farthest) << id;
        }
      }
    }
    for (int id = 0; id < 8; ++id) {
      int64_t sent = 0;
      for (const PlanStep& step : plan.steps()) sent += step.sent_bytes(id);
      EXPECT_LE(sent, row.most_sent) << id;
    }
  }
}

TEST(MemoryCapTest, KeepsItOrSaysWhatIsNeeded) {
  const struct {
    std::string name, from, to;
    int64_t cap;
    std::string message;  // Empty: feasible.
  } rows[] = {
      {"exact", "[(node,gpu)]", "[-]", (1 << 24) + (1 << 21), ""},
      {"one_less", "[(node,gpu)]", "[-]", (1 << 24) + (1 << 21) - 1,
       "needs 18874368 bytes on a device, the memory cap is 18874367 bytes; the least feasible cap "
       "is 18874368"},
      {"identity_needs_nothing", "[node]", "[node]", 0, ""},
      {"slice", "[-]", "[node]", 1 << 20, "the least feasible cap is 25165824"},
      {"reduction", "[-] sum{node}", "[gpu]", 1 << 20, "the least feasible cap is "},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    const StatusOr<RelayoutPlan> plan = plan_relayout(
        layout_of("{node=2, gpu=4}", row.from), layout_of("{node=2, gpu=4}", row.to), {1 << 24},
        DType::kInt8, {.topology = gpu_nodes(), .memory_cap_bytes = row.cap});
    if (row.message.empty()) {
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_TRUE(plan->steps().empty() || plan->peak_bytes() <= row.cap);
      continue;
    }
    EXPECT_THAT(plan, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(row.message)));
  }
}

// Planning keeps every least cap that a refusal names.
TEST(MemoryCapTest, TheLeastFeasibleCapIsFeasible) {
  const std::vector<std::string> texts = {"[-] sum{a}", "[b] sum{a,c}", "[(a,b)]", "[c]", "[-]"};
  const std::string mesh = "{a=2, b=2, c=2}";
  int refused = 0;
  for (const std::string& from : texts) {
    for (const std::string& to : texts) {
      SCOPED_TRACE(from + " -> " + to);
      PlanOptions options{*Topology::uniform(1, 2), 1};
      const auto plan = [&] {
        return plan_relayout(layout_of(mesh, from), layout_of(mesh, to), {64}, DType::kInt32,
                             options);
      };
      const StatusOr<RelayoutPlan> first = plan();
      if (first.ok()) continue;
      const std::string message(first.status().message());
      int64_t least = 0;
      ASSERT_TRUE(absl::SimpleAtoi(message.substr(message.rfind(' ') + 1), &least)) << message;
      options.memory_cap_bytes = least;
      TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan fits, plan());
      EXPECT_LE(fits.peak_bytes(), least);
      options.memory_cap_bytes = least - 1;
      EXPECT_THAT(plan(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("least")));
      ++refused;
    }
  }
  EXPECT_GT(refused, 10);
}

// How long a plan takes is printed, and not asserted: tests do not wait by the clock.
TEST(PlanningTimeTest, RandomPairsUpTo65536Devices) {
  std::mt19937_64 random(test_seed(20240301));
  const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  const auto layout = [&](const Mesh& mesh, int rank) {
    std::vector<DimSharding> dims(rank);
    for (const MeshAxis& axis : mesh.axes()) {
      const int dim = below(rank + 1);
      if (dim < rank) dims[dim].push_back(axis.name);
    }
    std::shuffle(dims.begin(), dims.end(), random);
    return *Layout::create(mesh, dims);
  };
  for (const Topology& topology : {Topology(), gpu_nodes(), *Topology::uniform(4, 8)}) {
    absl::Duration total;
    absl::Duration worst;
    constexpr int kPairs = 300;
    for (int pair = 0; pair < kPairs; ++pair) {
      const int rank = 1 + below(6);
      std::vector<MeshAxis> axes;
      int digits = 1 + below(16);
      for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
        const int bits = name[0] == 'f' ? digits : below(digits + 1);
        if (bits > 0) axes.push_back({name, int64_t{1} << bits});
        digits -= bits;
      }
      const Mesh mesh = *Mesh::create(axes);
      const Layout from = layout(mesh, rank);
      const Layout to = layout(mesh, rank);
      const Shape shape(rank, below(3) == 0 ? 100 : 128);
      const absl::Time start = steady_now();
      const StatusOr<RelayoutPlan> plan = plan_relayout(
          from, to, shape, DType::kFloat32, {.topology = topology, .memory_cap_bytes = {}});
      const absl::Duration took = steady_now() - start;
      ASSERT_TRUE(plan.ok()) << plan.status();
      total += took;
      worst = std::max(worst, took);
    }
    std::cout << topology << ": mean " << total / kPairs << ", worst " << worst << "\n";
  }
}

TEST(PlanTopologyTest, RefusesDevicesThatAreNotListed) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Topology two, Topology::of_devices({0, 1}, {0, 0}));
  EXPECT_THAT(plan_relayout(layout_of("{x=4}", "[x]"), layout_of("{x=4}", "[-]"), {4}, DType::kInt8,
                            {.topology = two, .memory_cap_bytes = {}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("mesh {x=4} has device 2, the topology lists 2 devices")));
}

}  // namespace
}  // namespace tessera::internal
