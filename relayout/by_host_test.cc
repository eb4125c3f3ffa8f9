// SPDX-License-Identifier: Apache-2.0
//
// Reductions over near and far links: each host's terms first. Facts, the value of every small
// reduction, the order of addition bit for bit, and no detour that would be faster.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "relayout/plan.h"
#include "relayout/testing/plan_oracle.h"
#include "relayout/testing/plan_texts.h"
#include "relayout/testing/small_relayouts.h"
#include "relayout/topology.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"

namespace tessera {
namespace {

using ::tessera::testing::check_relayout;
using ::tessera::testing::DeviceValues;
using ::tessera::testing::gpu_nodes;
using ::tessera::testing::hosts_of;
using ::tessera::testing::layout_of;
using ::tessera::testing::mesh_of;
using ::tessera::testing::StatusIs;
using ::tessera::testing::steps_of;

int num_reductions(const RelayoutPlan& plan) {
  return static_cast<int>(
      std::count_if(plan.steps().begin(), plan.steps().end(),
                    [](const PlanStep& step) { return is_reduction(step.kind()); }));
}

struct NodesCase {
  std::string name, mesh, from, to, steps;
  double milliseconds, flat_milliseconds;
};

// clang-format off
const NodesCase kNodes[] = {
    // Near 3/4 S + 3/4 S, far 2 * 1/8 S; flat: near 2 * 3/8 S, far 2 * 4/8 S.
    {"to_copies", "{node=2, gpu=4}", "[-] sum{node,gpu}", "[-]", "reduce_scatter{gpu}, all_reduce{node}, all_gather{gpu}", 10.79, 24.19},
    // Near 3/4 S, far 1/8 S; flat: near 3/8 S, far 4/8 S.
    {"to_shards", "{node=2, gpu=4}", "[-] sum{node,gpu}", "[(node,gpu)]", "reduce_scatter{gpu}, reduce_scatter{node}", 5.41, 12.11},
    {"to_shards_of_hosts_behind", "{node=2, gpu=4}", "[-] sum{node,gpu}", "[(gpu,node)]", "reduce_scatter{gpu}, reduce_scatter{node}", 5.41, 12.11},
    {"to_copies_on_hosts", "{node=2, gpu=4}", "[-] sum{node,gpu}", "[gpu]", "reduce_scatter{gpu}, all_reduce{node}", 8.10, 14.82},
    {"to_a_shard_a_host", "{node=2, gpu=4}", "[-] sum{node,gpu}", "[node]", "reduce_scatter{gpu}, reduce_scatter{node}, all_gather{gpu}", 6.77, 13.46},
    {"one_axis", "{x=8}", "[-] sum{x}", "[x]", "reduce_scatter{x:(2)4}, reduce_scatter{x:(1)2}", 5.41, 12.11},
    {"two_dims", "{node=2, gpu=4}", "[-, -] sum{node,gpu}", "[node, gpu]", "reduce_scatter{gpu}, reduce_scatter{node}", 5.41, 12.11},
    {"one_host_is_flat", "{node=2, gpu=4}", "[-] sum{gpu}", "[gpu]", "reduce_scatter{gpu}", 2.70, 2.70},
    // The copies along gpu share what crosses the network in any case.
    {"one_term_a_host", "{node=2, gpu=4}", "[-] sum{node}", "[-]", "reduce_scatter{node}, all_gather{node}, all_gather{gpu}", 8.13, 8.13},
    // Near 1/2 S to a half for two devices each, so that each sends a quarter.
    {"copies_on_a_host_share", "{node=2, a=2, b=2}", "[-] sum{node,a}", "[-]", "reduce_scatter{a}, all_reduce{node}, all_gather{a,b}", 9.00, 11.26},
};
// clang-format on

TEST(ByHostTest, StepsAndTimesOfOneGibibyte) {
  for (const NodesCase& row : kNodes) {
    SCOPED_TRACE(row.name);
    const Layout from = layout_of(row.mesh, row.from);
    const Layout to = layout_of(row.mesh, row.to);
    const Shape shape = from.rank() == 1 ? Shape{1 << 28} : Shape{1 << 14, 1 << 14};
    const auto plan = [&](ReductionOrder order) {
      return *plan_relayout(from, to, shape, DType::kFloat32,
                            {.topology = gpu_nodes(), .reduction_order = order});
    };
    const RelayoutPlan by_host = plan(ReductionOrder::kByHost);
    EXPECT_EQ(steps_of(by_host), row.steps);
    EXPECT_NEAR(absl::ToDoubleMilliseconds(by_host.predicted_time()), row.milliseconds, 0.01);
    const RelayoutPlan flat = plan(ReductionOrder::kFlat);
    EXPECT_EQ(num_reductions(flat), 1);
    EXPECT_NEAR(absl::ToDoubleMilliseconds(flat.predicted_time()), row.flat_milliseconds, 0.01);
    EXPECT_EQ(check_relayout(from, to, Shape(from.rank(), 16), {.topology = gpu_nodes()}).problem,
              "");
  }
}

// Reductions that round or divide once take one step; reductions without an order take two.
TEST(ByHostTest, OnlyWhereTheResultAllowsIt) {
  const struct {
    std::string op;
    DType dtype;
    int reductions;
  } rows[] = {
      {"sum", DType::kFloat32, 2},  {"sum", DType::kFloat64, 2},  {"sum", DType::kInt8, 2},
      {"sum", DType::kFloat16, 1},  {"sum", DType::kBFloat16, 1}, {"prod", DType::kFloat32, 2},
      {"prod", DType::kInt64, 2},   {"prod", DType::kFloat16, 1}, {"min", DType::kFloat16, 2},
      {"max", DType::kBFloat16, 2}, {"max", DType::kBool, 2},     {"min", DType::kFloat32, 2},
      {"avg", DType::kFloat32, 1},  {"avg", DType::kFloat16, 1},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(absl::StrCat(row.op, " of ", dtype_name(row.dtype)));
    const Layout from = layout_of("{node=2, gpu=4}", absl::StrCat("[-] ", row.op, "{node,gpu}"));
    const Layout to = layout_of("{node=2, gpu=4}", "[-]");
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RelayoutPlan plan,
        plan_relayout(from, to, {1 << 24}, row.dtype, {.topology = gpu_nodes()}));
    EXPECT_EQ(num_reductions(plan), row.reductions);
  }
}

// Three steps have three latencies: 4 KiB are not worth them.
TEST(ByHostTest, OnlyWhatPays) {
  const Layout from = layout_of("{node=2, gpu=4}", "[-] sum{node,gpu}");
  const Layout to = layout_of("{node=2, gpu=4}", "[-]");
  const auto steps = [&](int64_t elements) {
    return steps_of(
        *plan_relayout(from, to, {elements}, DType::kFloat32, {.topology = gpu_nodes()}));
  };
  EXPECT_EQ(steps(1 << 10), "all_reduce{node,gpu}");
  EXPECT_EQ(steps(1 << 22), "reduce_scatter{gpu}, all_reduce{node}, all_gather{gpu}");
}

// Every reduction of small meshes: the value, the groups, the bytes of each step.
TEST(ByHostTest, EverySmallReductionKeepsItsValue) {
  const struct {
    const char* mesh;
    int rank;
    Shape shape;
  } rows[] = {
      {"{x=4}", 1, {8}},
      {"{x=4}", 2, {5, 3}},
      {"{x=2, y=2}", 2, {4, 8}},
      {"{x=2, y=2}", 1, {7}},
      {"{x=2, y=2, z=2}", 1, {16}},
      {"{x=2, y=2, z=2}", 1, {5}},
      {"{x=2, y=3}", 1, {12}},
      {"{x=2, y=2} on 0,2,1,3", 1, {8}},
      {"{x=2, y=2}", 0, {}},
      {"{x=8}", 1, {0}},
  };
  int64_t checked = 0;
  int64_t skipped = 0;
  int64_t by_host = 0;
  for (const auto& row : rows) {
    const std::vector<Layout> layouts =
        testing::every_layout(mesh_of(row.mesh), row.rank, {ReduceOp::kSum, ReduceOp::kMax});
    for (const Layout& from : layouts) {
      if (!from.is_partial()) continue;
      for (const Layout& to : layouts) {
        if (testing::kSanitized && ++skipped % 8 != 0) continue;
        const auto plan = plan_relayout(from, to, row.shape, DType::kFloat64, hosts_of(2));
        ASSERT_TRUE(plan.ok()) << plan.status();
        by_host += num_reductions(*plan) > 1 ? 1 : 0;
        ASSERT_EQ(check_relayout(from, to, row.shape, hosts_of(2)).problem, "")
            << from.to_string_with_mesh() << " to " << to << "\n"
            << plan->explain();
        ++checked;
      }
    }
  }
  std::cout << checked << " reductions, " << by_host << " by host\n";
  EXPECT_GT(by_host, testing::kSanitized ? 30 : 300);
}

// Found by the random soak: `a` stays behind `n`, though the goal wants it elsewhere.
TEST(ByHostTest, WhatIsSplitBetweenHostsStays) {
  const std::string mesh = "{n=2, m=2, a=2, b=2}";
  const Layout from = layout_of(mesh, "[(n,a), -] sum{m,b}");
  for (const char* to : {"[-, a]", "[m, a]", "[(m,b), a]", "[m, (a,n)]"}) {
    EXPECT_EQ(check_relayout(from, layout_of(mesh, to), {8, 8}, hosts_of(4)).problem, "") << to;
  }
}

// The sum of each element, its terms added host by host or all ascending, by the devices alone.
std::vector<double> added(const Layout& from, const Shape& shape, const DeviceValues& values,
                          const Topology* by_host) {
  std::vector<double> sums;
  for (int64_t flat = 0; flat < num_elements(shape); ++flat) {
    std::map<int64_t, double> terms;  // by partial index, ascending
    std::map<int64_t, int64_t> host_of_term;
    for (int64_t position = 0; position < from.mesh().size(); ++position) {
      const int device = from.mesh().device_ids()[position];
      size_t place = 0;
      testing::for_each_element(from.box(shape, position), shape, [&](int64_t at) {
        const size_t here = place++;
        if (at != flat) return;
        const int64_t term = from.partial_index(position);
        if (!terms.emplace(term, values.at(device)[here]).second) return;
        host_of_term[term] = by_host == nullptr ? 0 : by_host->host(device);
      });
    }
    std::vector<int64_t> hosts;  // in the order of their first terms
    std::map<int64_t, double> sum_of_host;
    for (const auto& [term, value] : terms) {
      const auto [sum, is_first] = sum_of_host.try_emplace(host_of_term[term], value);
      if (is_first) {
        hosts.push_back(host_of_term[term]);
      } else {
        sum->second += value;
      }
    }
    double sum = sum_of_host[hosts[0]];
    for (size_t i = 1; i < hosts.size(); ++i) sum += sum_of_host[hosts[i]];
    sums.push_back(sum);
  }
  return sums;
}

// Terms whose sum shows in which order they were added.
DeviceValues rough_terms(const Layout& layout, const Shape& shape) {
  return testing::deal(layout, shape, [](int64_t flat, int64_t term) {
    std::mt19937_64 random(static_cast<uint64_t>(flat * 64 + term));
    const double digits = std::uniform_real_distribution<double>(1, 2)(random);
    return std::ldexp(random() % 2 == 0 ? digits : -digits, static_cast<int>(random() % 60));
  });
}

std::vector<double> sums_of(const RelayoutPlan& plan, const DeviceValues& values) {
  std::string problem;
  const DeviceValues result = testing::run_plan(plan, values, &problem);
  std::vector<double> sums = testing::assemble(plan.to(), plan.shape(), result, &problem);
  EXPECT_EQ(problem, "");
  return sums;
}

// Two hosts of half of the devices each, which are dealt to processes in every such way that
// differs for a planner: one each, all together, some, and by list.
std::vector<Topology> two_hosts(int64_t devices, const LinkCosts& costs) {
  const int64_t half = devices / 2;
  std::vector<Topology> result = {*Topology::uniform(1, half, costs),
                                  *Topology::uniform(half, half, costs)};
  if (half % 2 == 0) result.push_back(*Topology::uniform(half / 2, half, costs));
  std::vector<int> process;
  std::vector<int> host;
  for (int64_t device = 0; device < devices; ++device) {
    host.push_back(device < half ? 7 : 3);
    // On the first host the processes have one device and all others; the second host has one
    // process.
    process.push_back(device == 0 ? 5 : (device < half ? 4 : 6));
  }
  result.push_back(*Topology::of_devices(process, host, costs));
  return result;
}

// Bit for bit: by host where the plan has two reductions, else ascending; and the same bits however
// the devices of a host are dealt to processes, whose links cost something else.
TEST(ByHostTest, TermsAreAddedInTheOrderOfHosts) {
  const LinkCosts costs = {{0, 1e-12}, {1e-9, 1e-10}, {2e-9, 1e-9}};
  int64_t two_levels = 0;
  int64_t one_level = 0;
  int64_t differ = 0;
  for (const char* mesh_text : {"{x=2, y=2, z=2}", "{x=8}", "{x=2, y=4}", "{x=6}"}) {
    if (testing::kSanitized && two_levels > 0) break;
    const Mesh mesh = mesh_of(mesh_text);
    const std::vector<Topology> topologies = two_hosts(mesh.size(), costs);
    for (const Layout& from : testing::every_layout(mesh, 1, {ReduceOp::kSum})) {
      if (from.num_partial_terms() < 4) continue;
      for (const Layout& to : testing::every_layout(mesh, 1, {})) {
        for (const Shape& shape : {Shape{16}, Shape{5}}) {
          const DeviceValues values = rough_terms(from, shape);
          const std::vector<double> ascending = added(from, shape, values, nullptr);
          std::optional<std::vector<double>> first;
          for (const Topology& topology : topologies) {
            const PlanOptions options{.topology = topology};
            TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan plan,
                                         plan_relayout(from, to, shape, DType::kFloat64, options));
            SCOPED_TRACE(plan.explain());
            const std::vector<double> sums = sums_of(plan, values);
            const bool by_host = num_reductions(plan) > 1;
            (by_host ? two_levels : one_level) += 1;
            const auto expected =
                by_host ? added(from, shape, values, &options.topology) : ascending;
            ASSERT_EQ(sums, expected);
            differ += expected != ascending ? 1 : 0;
            if (!first.has_value()) first = sums;
            ASSERT_EQ(sums, *first);
          }
          PlanOptions flat{.topology = topologies[0], .reduction_order = ReductionOrder::kFlat};
          TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan plan,
                                       plan_relayout(from, to, shape, DType::kFloat64, flat));
          ASSERT_EQ(sums_of(plan, values), ascending) << plan.explain();
        }
      }
    }
  }
  std::cout << two_levels << " plans by host, " << differ << " with other bits; " << one_level
            << " in one step\n";
  EXPECT_GT(two_levels, 100);
  EXPECT_GT(differ, 100);
  EXPECT_GT(one_level, 20);
}

// Seconds of the plan of each pair.
std::vector<std::vector<double>> all_seconds(const std::vector<Layout>& from,
                                             const std::vector<Layout>& to, const Shape& shape,
                                             const PlanOptions& options) {
  std::vector<std::vector<double>> result;
  for (const Layout& before : from) {
    std::vector<double>& row = result.emplace_back();
    for (const Layout& after : to) {
      const auto plan = plan_relayout(before, after, shape, DType::kInt8, options);
      row.push_back(absl::ToDoubleSeconds(plan->predicted_time()));
    }
  }
  return result;
}

struct DetourCase {
  const char* mesh;
  int64_t devices_per_host;
  const char* far;  // The partial axes that tell hosts apart.
  Shape shape;
};

// Against brute force: no two layouts in between, whatever they are, make a faster plan out of a
// reduction inside the hosts, one between them, and a move.
TEST(ByHostTest, NoDetourIsFaster) {
  const DetourCase rows[] = {
      {"{node=2, gpu=2}", 2, "node", {64}},    {"{x=4}", 2, "x:(1)2", {64}},
      {"{node=2, gpu=2}", 2, "node", {8, 8}},  {"{node=2, gpu=4}", 4, "node", {64}},
      {"{node=2, a=2, b=2}", 4, "node", {64}},
  };
  // Long times, because the times of plans are whole quarters of nanoseconds.
  const LinkCosts costs = {{1e-3, 1e-5}, {1e-3, 1e-5}, {4e-3, 1e-3}};
  int64_t compared = 0;
  int64_t several = 0;
  for (const DetourCase& row : rows) {
    const Mesh mesh = mesh_of(row.mesh);
    if (testing::kSanitized && mesh.size() > 4) continue;
    PlanOptions options{.topology = *Topology::uniform(1, row.devices_per_host, costs)};
    std::vector<Layout> terms;
    std::vector<Layout> sums;  // of hosts
    std::vector<Layout> values;
    for (const Layout& layout :
         testing::every_layout(mesh, static_cast<int>(row.shape.size()), {ReduceOp::kSum})) {
      const std::string text = layout.to_string();
      const std::string far = absl::StrCat("sum{", row.far);
      if (!layout.is_partial()) values.push_back(layout);
      if (absl::StrContains(text, far + "}")) sums.push_back(layout);
      if (absl::StrContains(text, far + ",") || absl::StrContains(text, "sum{x}")) {
        terms.push_back(layout);
      }
    }
    const auto ours = all_seconds(terms, values, row.shape, options);
    options.reduction_order = ReductionOrder::kFlat;
    const auto direct = all_seconds(terms, values, row.shape, options);
    const auto inside = all_seconds(terms, sums, row.shape, options);
    const auto between = all_seconds(sums, values, row.shape, options);
    const auto after = all_seconds(values, values, row.shape, options);
    for (size_t from = 0; from < terms.size(); ++from) {
      for (size_t goal = 0; goal < values.size(); ++goal) {
        double fastest = direct[from][goal];
        for (size_t sum = 0; sum < sums.size(); ++sum) {
          for (size_t value = 0; value < values.size(); ++value) {
            fastest =
                std::min(fastest, inside[from][sum] + between[sum][value] + after[value][goal]);
          }
        }
        EXPECT_LE(ours[from][goal], fastest * 1.0001)
            << terms[from].to_string_with_mesh() << " to " << values[goal] << "\n"
            << plan_relayout(terms[from], values[goal], row.shape, DType::kInt8,
                             {.topology = options.topology})
                   ->explain();
        several += ours[from][goal] < direct[from][goal] ? 1 : 0;
        ++compared;
      }
    }
  }
  std::cout << compared << " reductions, " << several << " faster by host\n";
  EXPECT_GT(several, testing::kSanitized ? 10 : 100);
}

// A cap that only the reduction in one step keeps, and a cap that no plan keeps.
TEST(ByHostTest, TheCapChooses) {
  const Layout from = layout_of("{node=2, gpu=4}", "[-] sum{node,gpu}");
  const Layout to = layout_of("{node=2, gpu=4}", "[(node,gpu)]");
  constexpr int64_t kBytes = 1 << 24;
  const auto plan = [&](int64_t cap) {
    return plan_relayout(from, to, {kBytes}, DType::kInt8,
                         {.topology = gpu_nodes(), .memory_cap_bytes = cap});
  };
  // Source and sums of hosts and shard; source and shard.
  constexpr int64_t kByHost = kBytes + kBytes / 4 + kBytes / 8;
  constexpr int64_t kFlat = kBytes + kBytes / 8;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan by_host, plan(kByHost));
  EXPECT_EQ(num_reductions(by_host), 2);
  EXPECT_EQ(by_host.peak_bytes(), kByHost);
  TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan flat, plan(kByHost - 1));
  EXPECT_EQ(num_reductions(flat), 1);
  EXPECT_EQ(flat.peak_bytes(), kFlat);
  EXPECT_THAT(plan(kFlat - 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       ::testing::HasSubstr(absl::StrCat("least feasible cap is ", kFlat))));
}

// Candidates are compared without processes; the predicted times count them.
TEST(ByHostTest, TimesAreThoseOfTheProcesses) {
  const Layout from = layout_of("{node=2, gpu=4}", "[-] sum{node,gpu}");
  const Layout to = layout_of("{node=2, gpu=4}", "[-]");
  const LinkCosts costs{{1e-6, 1e-12}, {1e-6, 1e-9}, {1e-6, 1e-8}};
  const auto plan = [&](int64_t devices_per_process) {
    return *plan_relayout(from, to, {1 << 24}, DType::kFloat32,
                          {.topology = *Topology::uniform(devices_per_process, 4, costs)});
  };
  // Inside the hosts three quarters of 64 MiB in, and as much back: by links of hosts, by one link
  // of a host and two within a process, or by these alone.
  constexpr double kBytes = 1 << 26;
  const auto inside = [&](double host_share) {
    return 1e-6 + kBytes / 4 * (3 * host_share * 1e-9 + 3 * (1 - host_share) * 1e-12);
  };
  for (const auto& [devices_per_process, share] :
       {std::pair<int64_t, double>{1, 1}, {2, 2.0 / 3}, {4, 0}}) {
    const RelayoutPlan of = plan(devices_per_process);
    SCOPED_TRACE(of.explain());
    ASSERT_EQ(of.steps().size(), 3u);
    for (const size_t step : {0, 2}) {
      EXPECT_NEAR(absl::ToDoubleSeconds(of.step_predicted_time(step)), inside(share), 1e-9);
    }
    for (const Alternative& alternative : of.alternatives()) {
      if (alternative.chosen) {
        EXPECT_EQ(alternative.predicted_time, of.predicted_time());
      }
    }
  }
}

// A machine of equal hosts, written down as a list of devices: reductions are counted device by
// device there, and by digits where hosts are blocks. Both must give the same times; on 512 devices
// only some devices are counted.
TEST(ByHostTest, ListedHostsCostTheSame) {
  const LinkCosts costs{{1e-6, 1e-12}, {2e-6, 1e-9}, {4e-6, 1e-8}};
  for (const int64_t nodes : {4, 64}) {
    const int64_t devices = 8 * nodes;
    const std::string mesh = absl::StrCat("{node=", nodes, ", gpu=8}");
    std::vector<int> process;
    std::vector<int> host;
    for (int64_t device = 0; device < devices; ++device) {
      process.push_back(static_cast<int>(device / 2));
      host.push_back(static_cast<int>(device / 8));
    }
    const PlanOptions listed{.topology = *Topology::of_devices(process, host, costs)};
    const PlanOptions uniform{.topology = *Topology::uniform(2, 8, costs)};
    for (const char* from : {"[-] sum{gpu}", "[-] sum{node}", "[node] sum{gpu}",
                             "[-] sum{gpu:(2)4}", "[-] sum{node:(1)2,gpu:(1)2}"}) {
      for (const char* to : {"[-]", "[gpu]", "[(node,gpu)]"}) {
        const auto plan = [&](const PlanOptions& options) {
          return *plan_relayout(layout_of(mesh, from), layout_of(mesh, to), {1 << 20},
                                DType::kFloat32, options);
        };
        SCOPED_TRACE(plan(listed).explain());
        EXPECT_EQ(steps_of(plan(listed)), steps_of(plan(uniform)));
        EXPECT_EQ(plan(listed).predicted_time(), plan(uniform).predicted_time()) << to;
      }
    }
  }
}

TEST(ByHostTest, PlansAreValues) {
  const Layout from = layout_of("{node=2, gpu=4}", "[-] sum{node,gpu}");
  const Layout to = layout_of("{node=2, gpu=4}", "[-]");
  const auto plan = [&](ReductionOrder order) {
    return *plan_relayout(from, to, {1 << 24}, DType::kFloat32,
                          {.topology = gpu_nodes(), .reduction_order = order});
  };
  EXPECT_EQ(plan(ReductionOrder::kByHost), plan(ReductionOrder::kByHost));
  EXPECT_EQ(plan(ReductionOrder::kByHost).hash(), plan(ReductionOrder::kByHost).hash());
  EXPECT_FALSE(plan(ReductionOrder::kByHost) == plan(ReductionOrder::kFlat));
  EXPECT_NE(plan(ReductionOrder::kByHost).hash(), plan(ReductionOrder::kFlat).hash());
}

}  // namespace
}  // namespace tessera
