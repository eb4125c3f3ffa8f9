// SPDX-License-Identifier: Apache-2.0
//
// How a job over several hosts comes about: the coordinator alone, addresses by name and number,
// and hosts that $TESSERA_HOST_ID makes of one.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "dtensor/client.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator/connect_coordinator.h"
#include "job/environment/host.h"
#include "job/environment/port.h"
#include "tests/hosts/hosts.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using ::testing::Each;

constexpr absl::Duration kDeadline = absl::Seconds(100);
constexpr absl::Duration kTimeout = absl::Seconds(60);

// The sum of 1 + id over all clients, and a barrier.
Status add_ids(const Client& client) {
  const int num_clients = client.num_clients();
  std::vector<int> all(num_clients);
  for (int i = 0; i < num_clients; ++i) all[i] = i;
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group(all));
  // More than the letters of a group carry.
  std::vector<int64_t> data(10'000, client.client_id() + 1);
  TESSERA_RETURN_IF_ERROR(
      group.all_reduce<int64_t>(data, absl::MakeSpan(data), ReduceOp::kSum).wait(kTimeout));
  for (const int64_t sum : data) TESSERA_REQUIRE(sum == num_clients * (num_clients + 1) / 2, sum);
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", num_clients}}));
  return mesh.barrier("added", kTimeout);
}

TEST(JobsTest, CoordinatorServesTwoHosts) {
  TESSERA_MAKE_HOSTS(hosts, 2);
  // By the name and the address of host 0, and by version 6 of it.
  for (const char* address : {"host-a:4000", "10.77.0.1:4001", "[fd77::1]:4002"}) {
    const std::string token = random_token();
    const auto join = [&](int id) -> Status {
      CoordinatorOptions options = {
          .address = address, .token = token, .num_clients = 2, .self = describe_this_process()};
      options.self.client_id = id;
      options.self.num_local_devices = 1;
      options.self.device_type = "cpu";
      TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Coordinator> client,
                               connect_coordinator(options));
      TESSERA_REQUIRE(client->members()[0].host == "host-a", client->members()[0].to_string());
      TESSERA_REQUIRE(client->members()[1].host == "host-b", client->members()[1].to_string());
      TESSERA_REQUIRE(client->members()[0].host_id != client->members()[1].host_id);
      const absl::Time deadline = steady_now() + kTimeout;
      TESSERA_RETURN_IF_ERROR(client->put(absl::StrCat("from ", id), absl::StrCat("value ", id)));
      TESSERA_ASSIGN_OR_RETURN(const std::string value,
                               client->get(absl::StrCat("from ", 1 - id), 1 - id, deadline));
      TESSERA_REQUIRE(value == absl::StrCat("value ", 1 - id), value);
      TESSERA_RETURN_IF_ERROR(client->check_in("here", "same", {0, 1}, deadline));
      return client->leave(deadline);
    };
    EXPECT_THAT(run_forked(2, kDeadline,
                           [&](int host) -> Status {
                             TESSERA_RETURN_IF_ERROR(hosts.enter(host));
                             return run_isolated(kDeadline, [&] { return join(host); });
                           }),
                Each(IsOk()))
        << address;
  }
}

TEST(JobsTest, ClientZeroHostsTheCoordinator) {
  TESSERA_MAKE_HOSTS(hosts, 3);
  EXPECT_THAT(
      run_on_hosts(hosts, {.clients_per_host = {1, 2, 1}, .coordinator_is_hosted = false},
                   [](Client& client) -> Status {
                     TESSERA_REQUIRE(client.local_rank() == (client.client_id() == 2 ? 1 : 0));
                     TESSERA_RETURN_IF_ERROR(add_ids(client));
                     return client.shutdown();
                   }),
      Each(IsOk()));
}

// Row token_two_hosts of tests/facts/cluster.md. The token that client 0 makes stays on its host;
// no client makes one where the coordinator is on neither host.
TEST(JobsTest, RefusedWithoutATokenOnBothHosts) {
  TESSERA_MAKE_HOSTS(hosts, 2);
  const auto is_refused = [](int id, const char* address) {
    const ClientOptions options = {.coordinator = address, .client_id = id, .num_clients = 2};
    return expect_error(Client::connect(options).status(), absl::StatusCode::kInvalidArgument,
                        {address, "is not on the host of all clients", "set TESSERA_TOKEN"});
  };
  EXPECT_THAT(run_forked(2, kDeadline,
                         [&](int host) -> Status {
                           TESSERA_RETURN_IF_ERROR(hosts.enter(host));
                           return run_isolated(kDeadline, [&]() -> Status {
                             if (host == 1) {
                               TESSERA_RETURN_IF_ERROR(is_refused(host, "10.77.0.1:4000"));
                             }
                             return is_refused(host, "10.77.0.254:4000");
                           });
                         }),
              Each(IsOk()));
}

// Needs no privileges: all is on the loopback interface of this machine.
TEST(JobsTest, TwoHostIdsOnTheLoopbackInterface) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const ReservedPort port, ReservedPort::create());
  ClientOptions options = {.coordinator = absl::StrCat("127.0.0.1:", port.port()),
                           .num_clients = 4,
                           .token = random_token()};
  EXPECT_THAT(run_forked(4, kDeadline,
                         [&](int id) -> Status {
                           setenv("TESSERA_HOST_ID", id % 2 == 0 ? "even" : "odd", 1);
                           options.client_id = id;
                           TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
                           TESSERA_REQUIRE(client.local_rank() == id / 2);
                           TESSERA_RETURN_IF_ERROR(add_ids(client));
                           return client.shutdown();
                         }),
              Each(IsOk()));
}

}  // namespace
}  // namespace tessera::testing
