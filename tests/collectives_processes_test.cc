// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of collectives with clients as processes: one device each, and two.
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/conformance.h"
#include "dtensor/client.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using conformance::Case;
using conformance::Member;
using conformance::MemberBody;

// Device ids are positions: the group is all devices of the job, in order.
Status run_member(const Client& client, const Device& device, const MemberBody& body) {
  std::vector<int> all(client.devices().size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group(all, device.ordinal));
  const auto subgroup = [&](absl::Span<const int> positions) {
    return client.group({positions.begin(), positions.end()}, device.ordinal);
  };
  return body(Member{group, device.id, subgroup});
}

Status run_local_members(Client& client, const MemberBody& body) {
  std::vector<Status> statuses(client.local_devices().size());
  std::vector<std::thread> threads;
  for (const Device& device : client.local_devices()) {
    threads.emplace_back(
        [&, device] { statuses[device.ordinal] = run_member(client, device, body); });
  }
  Status first;
  for (size_t i = 0; i < threads.size(); ++i) {
    threads[i].join();
    first.Update(statuses[i]);
  }
  return first;
}

class CollectivesTest : public ::testing::TestWithParam<std::tuple<int, Case>> {};

TEST_P(CollectivesTest, HoldBetweenProcesses) {
  const auto& [devices_per_client, c] = GetParam();
  if (c.num_members % devices_per_client != 0) GTEST_SKIP() << "an odd number of members";
  EXPECT_THAT(run_clients({.setting = Setting::kProcesses,
                           .num_clients = c.num_members / devices_per_client,
                           .devices_per_client = devices_per_client},
                          [&body = c.body](Client& client) -> Status {
                            return run_local_members(client, body);
                          }),
              IsOk());
}

std::vector<Case> cases() {
#if defined(__SANITIZE_THREAD__)
  // Starting a job takes a second here: the sweeps run under this sanitizer with clients as
  // threads.
  std::vector<Case> all = conformance::fact_cases();
#else
  std::vector<Case> all = conformance::all_cases();
#endif
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
