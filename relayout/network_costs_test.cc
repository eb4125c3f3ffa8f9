// SPDX-License-Identifier: Apache-2.0
//
// The gain from knowing the network: compares plans made for the default costs, on networks that a
// job measures (transport/link_measurement.h), with plans made for those networks. Every relayout
// on 4 devices of 2 hosts, in sizes from 64 bytes to 64 MiB.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/plan.h"
#include "relayout/schedule.h"
#include "relayout/step_costs.h"
#include "relayout/testing/small_relayouts.h"
#include "relayout/topology.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::every_layout;

constexpr int64_t kDevices = 4;
constexpr double kWorth = 1.10;

LinkCosts with_network(LinkCost network) {
  LinkCosts costs;
  costs.network = network;
  return costs;
}

// The time of a plan on a network that it was not made for.
double seconds_on(const RelayoutPlan& plan, const LinkCosts& costs) {
  double seconds = 0;
  for (const PlanStep& step : plan.steps()) {
    seconds += internal::seconds_of(internal::traffic_of(step), costs);
  }
  return seconds;
}

struct Worth {
  int num_relayouts = 0;
  int num_slower = 0;  // by a tenth and more
  double most = 1;
  std::string worst;
};

Worth worth_of_knowing(const LinkCosts& costs) {
  const PlanOptions guessed = {.topology = *Topology::uniform(1, kDevices / 2)};
  const PlanOptions known = {.topology = *Topology::uniform(1, kDevices / 2, costs)};
  Worth worth;
  for (const char* text : {"{x=4}", "{x=2, y=2}"}) {
    const Mesh mesh = *Mesh::parse(text);
    const std::vector<Layout> layouts = every_layout(mesh, /*rank=*/2, {ReduceOp::kSum});
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        for (const int64_t size : {4, 64, 1024, 4096}) {
          const Shape shape = {size, size};
          const auto guess = plan_relayout(from, to, shape, DType::kFloat32, guessed);
          const auto plan = plan_relayout(from, to, shape, DType::kFloat32, known);
          if (!guess.ok() || !plan.ok() || plan->steps().empty()) continue;
          const double seconds = seconds_on(*plan, costs);
          if (seconds == 0) continue;  // local
          ++worth.num_relayouts;
          const double ratio = seconds_on(*guess, costs) / seconds;
          // A plan is the best of the plans that were tried for its network.
          EXPECT_GE(ratio, 1 - 1e-9) << text << " " << from << " to " << to << " " << size;
          if (ratio >= kWorth) ++worth.num_slower;
          if (ratio <= worth.most) continue;
          worth.most = ratio;
          worth.worst = absl::StrCat(from.to_string(), " to ", to.to_string(), " on ", text, ", ",
                                     size, " x ", size);
        }
      }
    }
  }
  return worth;
}

TEST(NetworkCostsTest, PlansForTheDefaultsAreSlowerOnOtherNetworks) {
  struct Network {
    std::string name;
    LinkCost cost;
    double worth;  // how much slower a plan for the defaults is at most, or more
  };
  for (const Network& network : {Network{"100 Gbit/s", {50e-6, 1 / 12.5e9}, 1.8},
                                 Network{"1 Gbit/s", {50e-6, 1 / 0.125e9}, 1.3},
                                 // Latency and bytes are far from the defaults in the same ratio.
                                 Network{"1 Gbit/s and 1 ms", {1e-3, 1 / 0.125e9}, 1.04}}) {
    const Worth worth = worth_of_knowing(with_network(network.cost));
    std::cout << network.name << ": " << worth.num_slower << " of " << worth.num_relayouts
              << " relayouts are slower by a tenth and more, at most " << worth.most
              << " times: " << worth.worst << std::endl;
    EXPECT_GE(worth.most, network.worth) << network.name;
  }
}

}  // namespace
}  // namespace tessera
