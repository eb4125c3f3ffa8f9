// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of collectives with members on two hosts: one client on each, and two.
//
// Cases that demand the bits of ascending order ask for it; sums_test.cc has the order by host, and
// delays_test.cc messages that are late.
#include "collectives/testing/conformance.h"

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/client.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/matchers.h"
#include "tests/support/members.h"
#include "tests/support/sanitizers.h"

namespace tessera::testing {
namespace {

using conformance::Case;

class HostsTest : public ::testing::TestWithParam<std::tuple<int, Case>> {};

TEST_P(HostsTest, HoldBetweenTwoHosts) {
  const auto& [devices_per_client, c] = GetParam();
  const int num_clients = c.num_members / devices_per_client;
  if (c.num_members % devices_per_client != 0 || num_clients < 2) GTEST_SKIP() << "one client";
  EXPECT_THAT(run_clients({.setting = Setting::kThreads,
                           .num_clients = num_clients,
                           .devices_per_client = devices_per_client,
                           .options = {.reduction_order = conformance::is_of_ascending_order(c)
                                                              ? ReductionOrder::kFlat
                                                              : ReductionOrder::kByHost},
                           .hooks = {.host_ids = on_hosts(num_clients, 2)}},
                          [&body = c.body](Client& client) -> Status {
                            return run_members(client, all_devices(client), body);
                          }),
              IsOk());
}

std::vector<Case> cases() {
  std::vector<Case> all = conformance::all_cases();
  conformance::limit_sweeps(all, kSanitized ? conformance::SweepLimits{.f32 = 4, .other_dtypes = 0}
                                            : conformance::SweepLimits{.other_dtypes = 4});
  all.push_back(conformance::random_ops_case(4, 300, 20240607));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Threads, HostsTest,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::ValuesIn(cases())),
                         [](const auto& info) {
                           return absl::StrCat("devices_", std::get<0>(info.param), "_",
                                               std::get<1>(info.param).name);
                         });

}  // namespace
}  // namespace tessera::testing
