// SPDX-License-Identifier: Apache-2.0
//
// The classes of networks by tables; and over loopback, that all clients get the same numbers, and
// that a client that does not take part ends it for all, with its name.
#include "transport/link_measurement.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/expect_error.h"
#include "tests/support/matchers.h"
#include "transport/ucx/ucx_engine.h"

namespace tessera::transport {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::FakeJob;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

TEST(LinkMeasurementTest, Classes) {
  struct Row {
    double microseconds, gigabytes, class_microseconds, class_gigabytes;
  };
  for (const Row& row : {
           Row{30, 0.118, 50, 0.125},    // 1 Gbit/s
           Row{30, 0.25, 50, 0.125},     // with a burst of 256 KiB
           Row{60, 0.3, 50, 0.125},      // 2.5 Gbit/s
           Row{15, 1.18, 50, 1.25},      // 10 Gbit/s
           Row{10, 3, 50, 1.25},         // 25 Gbit/s; TCP of one client
           Row{3, 6, 50, 1.25},          // 50 Gbit/s
           Row{2, 12, 50, 12.5},         // 100 Gbit/s
           Row{2, 46, 50, 12.5},         // 400 Gbit/s
           Row{100, 1, 50, 1.25},        // a cloud
           Row{600, 0.5, 1000, 1.25},    // between its sites
           Row{2e4, 0.01, 1000, 0.125},  // far
           Row{5e5, 0.001, 1000, 0.125},
           Row{199, 0.399, 50, 0.125},
           Row{201, 0.401, 1000, 1.25},
           Row{0, 7.99, 50, 1.25},
           Row{0, 8.01, 50, 12.5},
       }) {
    SCOPED_TRACE(absl::StrCat(row.microseconds, " us, ", row.gigabytes, " GB/s"));
    const NetworkCost found = network_class({row.microseconds * 1e-6, row.gigabytes * 1e9});
    EXPECT_DOUBLE_EQ(found.latency_s, row.class_microseconds * 1e-6);
    EXPECT_DOUBLE_EQ(found.bytes_per_s, row.class_gigabytes * 1e9);
    // A number that stands for a class is of it.
    EXPECT_EQ(network_class(found), found);
  }
}

TEST(LinkMeasurementTest, Median) {
  const std::vector<NetworkCost> costs = {{3, 10}, {1, 30}, {2, 20}, {9, 40}};
  EXPECT_EQ(median(absl::MakeSpan(costs).first(1)), (NetworkCost{3, 10}));
  EXPECT_EQ(median(absl::MakeSpan(costs).first(2)), (NetworkCost{1, 30}));
  EXPECT_EQ(median(absl::MakeSpan(costs).first(3)), (NetworkCost{2, 20}));
  EXPECT_EQ(median(costs), (NetworkCost{2, 30}));
}

TEST(LinkMeasurementTest, Text) {
  const std::vector<NetworkCost> costs = {{0.5, 1000}, {0, 12}};
  EXPECT_EQ(to_text(costs), "500000000:1000,0:12");
  EXPECT_THAT(parse_costs(to_text(costs)), testing::IsOkAndHolds(costs));
  for (const char* text : {"", "1", "1:2,", "1:x", "1:2:3"}) {
    EXPECT_THAT(parse_costs(text).status(),
                StatusIs(absl::StatusCode::kInternal,
                         absl::StrCat("\"", text,
                                      "\" is not a measurement of a network, such as "
                                      "31000:117000000")));
  }
}

TEST(LinkMeasurementTest, Distances) {
  EXPECT_THAT(measured_distances(2), ElementsAre(1));
  EXPECT_THAT(measured_distances(3), ElementsAre(1));
  EXPECT_THAT(measured_distances(4), ElementsAre(1, 2));
  EXPECT_THAT(measured_distances(9), ElementsAre(1, 4));
}

using Body = std::function<Status(int client, Engine& engine, Coordinator& coordinator)>;

// Runs `body` as each client of hosts, by client.
std::vector<Status> run_on(FakeJob& job, const std::vector<int>& host_of, const Body& body) {
  const auto num_clients = static_cast<int>(host_of.size());
  for (int i = 0; i < num_clients; ++i) job.set_host_id(i, absl::StrCat("host-", host_of[i]));
  const auto run = [&](int client) -> Status {
    Coordinator& coordinator = job.coordinator(client);
    TESSERA_ASSIGN_OR_RETURN(
        const std::unique_ptr<Engine> engine,
        ucx::make_ucx_engine(coordinator, {.interface = "lo", .wait_policy = {}}));
    std::vector<int> others;
    for (int other = 0; other < num_clients; ++other) {
      if (host_of[other] != host_of[client]) others.push_back(other);
    }
    TESSERA_RETURN_IF_ERROR(engine->connect(others, steady_now() + absl::Minutes(1)));
    const Status status = body(client, *engine, coordinator);
    // All are done before the first engine stops.
    coordinator.leave(steady_now() + absl::Minutes(1)).IgnoreError();
    return status;
  };
  std::vector<Status> results(num_clients);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < num_clients; ++i) {
      threads.emplace_back([&, i] { results[i] = run(i); });
    }
  }
  return results;
}

TEST(LinkMeasurementTest, AllClientsGetTheSameNumbers) {
  for (const std::vector<int>& host_of :
       std::vector<std::vector<int>>{{0, 1}, {0, 0, 1, 1}, {0, 1, 2}, {0, 1, 2, 0, 3}}) {
    FakeJob job(std::vector<int>(host_of.size(), 1));
    std::vector<NetworkCost> measured(host_of.size());
    EXPECT_THAT(run_on(job, host_of,
                       [&](int client, Engine& engine, Coordinator& coordinator) -> Status {
                         TESSERA_ASSIGN_OR_RETURN(
                             measured[client],
                             measure_network(engine, coordinator, steady_now() + absl::Minutes(1)));
                         return absl::OkStatus();
                       }),
                Each(IsOk()));
    EXPECT_THAT(measured, Each(measured[0]));
    EXPECT_GT(measured[0].latency_s, 0);
    EXPECT_GT(measured[0].bytes_per_s, 0);
  }
}

// Host 1 says that it has come, and then does nothing.
Status come_only(Coordinator& coordinator) {
  return coordinator.check_in("the measurement of the network between hosts", "", {0, 1},
                              steady_now() + absl::Minutes(1));
}

TEST(LinkMeasurementTest, WhatDoesNotArriveIsSlow) {
  FakeJob job({1, 1});
  EXPECT_THAT(run_on(job, {0, 1},
                     [&](int client, Engine& engine, Coordinator& coordinator) -> Status {
                       if (client == 1) {
                         TESSERA_RETURN_IF_ERROR(come_only(coordinator));
                         return coordinator.put("tessera/network/1", "900000000:1");
                       }
                       TESSERA_ASSIGN_OR_RETURN(
                           const NetworkCost found,
                           measure_network(engine, coordinator, steady_now() + absl::Minutes(1)));
                       TESSERA_REQUIRE(network_class(found) == (NetworkCost{1e-3, 0.125e9}));
                       return absl::OkStatus();
                     }),
              Each(IsOk()));
}

TEST(LinkMeasurementTest, ALossEndsIt) {
  const Status lost = absl::UnavailableError("client 1 (host-b, pid 7) exited");
  for (const bool comes : {false, true}) {
    FakeJob job({1, 1});
    const std::vector<Status> results =
        run_on(job, {0, 1}, [&](int client, Engine& engine, Coordinator& coordinator) -> Status {
          if (client == 1) {
            if (comes) TESSERA_RETURN_IF_ERROR(come_only(coordinator));
            job.declare_lost(1, lost);
            return lost;
          }
          return measure_network(engine, coordinator, steady_now() + absl::Minutes(1)).status();
        });
    EXPECT_EQ(results[0], lost) << comes;
  }
}

TEST(LinkMeasurementTest, OneThatDoesNotComeIsNamed) {
  FakeJob job({1, 1});
  const std::vector<Status> results =
      run_on(job, {0, 1}, [&](int client, Engine& engine, Coordinator& coordinator) -> Status {
        if (client == 1) return absl::OkStatus();
        return measure_network(engine, coordinator, steady_now() + absl::Milliseconds(10)).status();
      });
  EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                   AllOf(HasSubstr("the measurement of the network between hosts"),
                                         HasSubstr("client 1"))));
}

}  // namespace
}  // namespace tessera::transport
