// SPDX-License-Identifier: Apache-2.0
//
// Client::group() and Client::groups(): the group of all devices of a job, and one Group for each
// local device, driven by one thread. The collectives are in place, with one argument.
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "collectives/group.h"
#include "collectives/work.h"
#include "device/device_span.h"
#include "dtensor/client.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(60);

class ClientGroupsTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, ClientGroupsTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, ClientGroupsTest, ::testing::Values(kTwoHosts), job_form_name);

// Groups and their members: member i of `groups` is the local device `ordinals[i]`.
Status expect_members(const Client& client, const std::vector<Group>& groups,
                      const std::vector<int>& ids, const std::vector<int>& ordinals) {
  TESSERA_REQUIRE(groups.size() == ordinals.size(), groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    TESSERA_REQUIRE(groups[i].device_ids() == absl::MakeConstSpan(ids));
    TESSERA_REQUIRE(ids[groups[i].position()] == client.local_devices()[ordinals[i]].id);
  }
  return absl::OkStatus();
}

TEST_P(ClientGroupsTest, AllDevicesOnceForEachLocalDevice) {
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<Group> groups, client.groups());
    std::vector<int> ids(client.devices().size());
    std::iota(ids.begin(), ids.end(), 0);
    std::vector<int> ordinals(client.local_devices().size());
    std::iota(ordinals.begin(), ordinals.end(), 0);
    TESSERA_RETURN_IF_ERROR(expect_members(client, groups, ids, ordinals));

    // One thread starts the operations of all members, and waits once.
    const auto num_devices = static_cast<int>(ids.size());
    std::vector<std::vector<int32_t>> sums, reduced, copies, gathered;
    for (const Group& group : groups) {
      sums.push_back({group.position(), 1});
      reduced.push_back({group.position()});
      copies.push_back({group.position()});
      gathered.emplace_back(num_devices, -1);
      gathered.back()[group.position()] = 10 * group.position();
    }
    std::vector<Work> works;
    for (size_t i = 0; i < groups.size(); ++i) {
      works.push_back(groups[i].all_reduce(sums[i], ReduceOp::kSum));
      works.push_back(groups[i].reduce(reduced[i], ReduceOp::kMax, /*root=*/1));
      works.push_back(groups[i].broadcast(copies[i], /*root=*/3));
      works.push_back(groups[i].all_gather(gathered[i]));
    }
    TESSERA_RETURN_IF_ERROR(await_all(works, kLimit));
    for (size_t i = 0; i < groups.size(); ++i) {
      const int own = groups[i].position();
      TESSERA_REQUIRE(sums[i][0] == num_devices * (num_devices - 1) / 2, sums[i][0]);
      TESSERA_REQUIRE(sums[i][1] == num_devices, sums[i][1]);
      TESSERA_REQUIRE(reduced[i][0] == (own == 1 ? num_devices - 1 : own), reduced[i][0]);
      TESSERA_REQUIRE(copies[i][0] == 3, copies[i][0]);
      for (int k = 0; k < num_devices; ++k) {
        TESSERA_REQUIRE(gathered[i][k] == 10 * k, gathered[i][k]);
      }
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run(body), IsOk());
}

TEST_P(ClientGroupsTest, SomeDevicesInTheirOwnOrder) {
  const auto body = [](Client& client) -> Status {
    const std::vector<int> ids = {5, 1, 4};
    std::vector<int> ordinals;
    for (const int id : {1, 4, 5}) {
      const Device& device = client.devices()[id];
      if (device.client_id == client.client_id()) ordinals.push_back(device.ordinal);
    }
    if (ordinals.empty()) {
      return expect_error(
          client.groups(ids).status(), absl::StatusCode::kInvalidArgument,
          {absl::StrCat("group of devices 5, 1, 4 has no local device of client ",
                        client.client_id(), "; only clients with a device in the list")});
    }
    TESSERA_ASSIGN_OR_RETURN(const std::vector<Group> groups, client.groups(ids));
    TESSERA_RETURN_IF_ERROR(expect_members(client, groups, ids, ordinals));
    std::vector<std::vector<float>> values(groups.size(), {1.0f});
    std::vector<Work> works;
    for (size_t i = 0; i < groups.size(); ++i) {
      works.push_back(groups[i].all_reduce(values[i], ReduceOp::kSum));
    }
    TESSERA_RETURN_IF_ERROR(await_all(works, kLimit));
    for (const std::vector<float>& value : values) TESSERA_REQUIRE(value[0] == 3, value[0]);
    return absl::OkStatus();
  };
  EXPECT_THAT(run(body), IsOk());
}

TEST(ClientGroupTest, AllDevicesAsTheOnlyLocalDevice) {
  for (const Setting setting : {Setting::kThreads, Setting::kProcesses}) {
    const auto body = [](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Group group, client.group());
      TESSERA_RETURN_IF_ERROR(expect_members(client, {group}, {0, 1, 2}, {0}));
      TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> x, client.allocate<float>(0, 2));
      x[0] = 1;
      x[1] = static_cast<float>(client.client_id());
      TESSERA_RETURN_IF_ERROR(group.all_reduce(x, ReduceOp::kSum).wait(kLimit));
      TESSERA_REQUIRE(x[0] == 3 && x[1] == 3, x[0], x[1]);
      return absl::OkStatus();
    };
    EXPECT_THAT(run_clients({.setting = setting, .num_clients = 3}, body), IsOk());
  }
}

// The operations of a list have one deadline; the first error of the list is the result.
TEST(ClientGroupTest, AwaitAllEndsAtItsDeadline) {
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Group pair, client.group({0, 1}, 0));
    TESSERA_ASSIGN_OR_RETURN(const Group alone, client.group({0}, 0));
    const std::vector<Work> works = {alone.barrier(), pair.barrier(), pair.barrier()};
    return expect_error(await_all(works, absl::Milliseconds(10)),
                        absl::StatusCode::kDeadlineExceeded, {"barrier"});
  };
  EXPECT_THAT(run_clients({.devices_per_client = 2}, body), IsOk());
}

}  // namespace
}  // namespace tessera::testing
