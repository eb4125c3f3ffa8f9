// SPDX-License-Identifier: Apache-2.0
//
// Clients that call operations in orders of which none can be: each waits for the next one in a
// group of the two, around a circle.
//
//   client 0   {0, 1}, then {2, 0}
//   client 1   {1, 2}, then {0, 1}
//   client 2   {2, 0}, then {1, 2}
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/group.h"
#include "dtensor/client.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/matchers.h"
#include "tests/support/members.h"

namespace tessera::testing {
namespace {

// Far longer than needed: the circle is found immediately.
constexpr absl::Duration kLimit = absl::Seconds(60);

struct Row {
  const char* name;
  Setting setting;
  int num_clients;
  int num_hosts = 1;
};
std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.name; }

constexpr Row kRows[] = {
    {"two_threads", Setting::kThreads, 2},
    {"three_threads", Setting::kThreads, 3},
    {"four_threads", Setting::kThreads, 4},
    {"three_processes", Setting::kProcesses, 3},
    {"four_processes", Setting::kProcesses, 4},
    // With two hosts, neighbours are on one host or on two.
    {"three_on_two_hosts", Setting::kThreads, 3, 2},
    {"four_on_two_hosts", Setting::kProcesses, 4, 2},
    {"five_on_three_hosts", Setting::kThreads, 5, 3},
    {"three_on_three_hosts", Setting::kThreads, 3, 3},
};

class CirclesTest : public ::testing::TestWithParam<Row> {
 protected:
  static Status run(const ClientBody& body) {
    const Row& row = GetParam();
    return run_clients({.setting = row.setting,
                        .num_clients = row.num_clients,
                        .hooks = {.host_ids = on_hosts(row.num_clients, row.num_hosts)}},
                       body);
  }
};
INSTANTIATE_TEST_SUITE_P(Rows, CirclesTest, ::testing::ValuesIn(kRows),
                         [](const auto& info) { return std::string(info.param.name); });

// Issue 15, R11.
TEST_P(CirclesTest, AllClientsOfACircleAreTold) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        const int n = client.num_clients();
        const int own = client.client_id();
        const auto pair_from = [&](int first) {
          // Two clients have only one pair: its order tells the groups apart.
          return client.group({first, (first + 1) % n});
        };
        for (int round = 0; round < 3; ++round) {
          TESSERA_ASSIGN_OR_RETURN(const Group mine, pair_from(own));
          TESSERA_ASSIGN_OR_RETURN(const Group theirs, pair_from((own + n - 1) % n));
          const Work first = mine.barrier();
          const Work second = theirs.barrier();
          for (const Work& work : {first, second}) {
            const Status status = work.wait(kLimit);
            TESSERA_REQUIRE(status.code() == absl::StatusCode::kInvalidArgument, status.ToString());
            for (int other = 0; other < n; ++other) {
              TESSERA_REQUIRE(
                  absl::StrContains(status.message(), absl::StrCat("client ", other, " (")),
                  status.ToString());
            }
            TESSERA_REQUIRE(
                absl::StrContains(status.message(), "make the same calls in the same order"),
                status.ToString());
          }
          // All groups go on.
          TESSERA_ASSIGN_OR_RETURN(const Group all, client.group(all_devices(client)));
          TESSERA_RETURN_IF_ERROR(all.barrier().wait(kLimit));
          const Group& even = own % 2 == 0 ? mine : theirs;
          const Group& odd = own % 2 == 0 ? theirs : mine;
          if (n % 2 == 1) continue;
          TESSERA_RETURN_IF_ERROR(even.barrier().wait(kLimit));
          TESSERA_RETURN_IF_ERROR(odd.barrier().wait(kLimit));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// Clients 0 and 1 are on one host, client 2 is on another one. All are told, whichever of them
// waits last.
TEST(CirclesBetweenHostsTest, ACircleOnOneHostIsFound) {
  const JobSpec job = {.num_clients = 3, .hooks = {.host_ids = on_hosts(3, 2)}};
  EXPECT_THAT(run_clients(job,
                          [](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(const Group a, client.group({0, 1, 2}));
                            TESSERA_ASSIGN_OR_RETURN(const Group b, client.group({1, 0, 2}));
                            const bool is_b_first = client.client_id() == 1;
                            for (int round = 0; round < 3; ++round) {
                              const Work first = (is_b_first ? b : a).barrier();
                              const Work second = (is_b_first ? a : b).barrier();
                              for (const Work& work : {first, second}) {
                                TESSERA_RETURN_IF_ERROR(expect_error(
                                    work.wait(kLimit), absl::StatusCode::kInvalidArgument,
                                    {"operations differ between clients: client ", " waits in ",
                                     "client 1 (", "; make the same calls in the same order"}));
                              }
                              TESSERA_RETURN_IF_ERROR(a.barrier().wait(kLimit));
                              TESSERA_RETURN_IF_ERROR(b.barrier().wait(kLimit));
                            }
                            return absl::OkStatus();
                          }),
              IsOk());
}

// A chain that ends is no circle: the last client comes later.
TEST_P(CirclesTest, AChainOfWaitsIsNoError) {
  EXPECT_THAT(run([](Client& client) -> Status {
                const int n = client.num_clients();
                const int own = client.client_id();
                std::vector<Work> works;
                // Client k waits for client k + 1, which reaches their group last.
                for (int first = own; first >= 0 && first >= own - 1; --first) {
                  if (first + 1 >= n) continue;
                  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({first, first + 1}));
                  works.push_back(group.barrier());
                }
                for (const Work& work : works) TESSERA_RETURN_IF_ERROR(work.wait(kLimit));
                return absl::OkStatus();
              }),
              IsOk());
}

// A device looks for a circle when it has waited for 5 ms: at about that time the other devices of
// its client are made to arrive, one after the other. An error that a search made of a device that
// was just arriving came once in some 160 rounds.
TEST(CirclesBetweenHostsTest, DevicesThatArriveAreInNoCircle) {
  constexpr int kDevices = 32;
  JobSpec job = {
      .num_clients = 2, .devices_per_client = kDevices, .hooks = {.host_ids = on_hosts(2, 2)}};
  job.hooks.barrier_term = [](int device_id) {
    static thread_local absl::Time others_start;
    static thread_local int round = 0;
    const int ordinal = device_id % kDevices;
    if (ordinal == 0) {
      others_start = steady_now() + absl::Microseconds(5000 + 10 * (++round % 30));
    } else {
      while (steady_now() < others_start + absl::Microseconds(2 * ordinal)) continue;
    }
    return 1;
  };
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2 * kDevices}}));
    for (int round = 0; round < 200; ++round) {
      TESSERA_RETURN_IF_ERROR(mesh.barrier("epoch", kLimit));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients(job, body), IsOk());
}

}  // namespace
}  // namespace tessera::testing
