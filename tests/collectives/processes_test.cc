// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of collectives with clients as processes: one device each, and two.
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/testing/conformance.h"
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

class CollectivesTest : public ::testing::TestWithParam<std::tuple<int, Case>> {};

TEST_P(CollectivesTest, HoldBetweenProcesses) {
  const auto& [devices_per_client, c] = GetParam();
  if (c.num_members % devices_per_client != 0) GTEST_SKIP() << "an odd number of members";
  EXPECT_THAT(run_clients({.setting = Setting::kProcesses,
                           .num_clients = c.num_members / devices_per_client,
                           .devices_per_client = devices_per_client},
                          [&body = c.body](Client& client) -> Status {
                            return run_members(client, all_devices(client), body);
                          }),
              IsOk());
}

std::vector<Case> cases() {
  // Starting a job takes a second under a sanitizer: the sweeps run there with clients as threads.
  std::vector<Case> all = kSanitized ? conformance::fact_cases() : conformance::all_cases();
  all.push_back(conformance::random_ops_case(4, 300, 20240607));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Processes, CollectivesTest,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::ValuesIn(cases())),
                         [](const auto& info) {
                           return absl::StrCat("devices_", std::get<0>(info.param), "_",
                                               std::get<1>(info.param).name);
                         });

}  // namespace
}  // namespace tessera::testing
