// SPDX-License-Identifier: Apache-2.0
//
// The reports to connected clients when a client or the service ends, in order or not, over real
// gRPC. Part of the program of coordinator_test.cc.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator/connect_coordinator.h"
#include "job/coordinator/coordinator.h"
#include "job/coordinator/coordinator_server.h"
#include "tests/support/coordinator/clients.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using testing::CoordinatorTest;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::Losses;
using ::testing::Pair;
using ::testing::SizeIs;
using testing::soon;
using testing::StatusIs;

// The calls of the others are Cancelled, and the others learn that the host has left, not that it
// is lost.
TEST_F(CoordinatorTest, HostThatShutsDownInOrderHasLeft) {
  const auto clients = connect_all(3);
  ASSERT_THAT(clients, SizeIs(3));
  Losses losses(*clients[1]);
  Status told;
  std::thread waiter([&] { told = clients[1]->get("k", 2, soon()).status(); });
  clients[0]->leave(steady_now() + absl::Milliseconds(100)).IgnoreError();
  waiter.join();
  EXPECT_THAT(told, StatusIs(StatusCode::kCancelled, HasSubstr(options(0, 3).address)));
  EXPECT_THAT(clients[2]->check_in("b", "v", {1, 2}, soon()), StatusIs(StatusCode::kCancelled));
  EXPECT_THAT(clients[1]->leave(soon()), IsOk());
  clients[1]->set_lost_callback(nullptr);
  EXPECT_THAT(
      losses.so_far(),
      ElementsAre(Pair(0, StatusIs(StatusCode::kUnavailable, EndsWith("has left the job")))));
}

TEST_F(CoordinatorTest, ClientThatGoesWithoutLeavingIsLost) {
  // No heartbeat is missed: the end of the connection says it.
  auto clients = connect_all(
      3, [](CoordinatorOptions& options) { options.heartbeat_interval = absl::Hours(1); });
  ASSERT_THAT(clients, SizeIs(3));
  Losses host(*clients[0]);
  Losses other(*clients[1]);
  const std::string name = clients[0]->members()[2].to_string();
  std::thread waiter([&] {
    EXPECT_THAT(clients[1]->check_in("b", "v", {0, 1, 2}, soon()),
                StatusIs(StatusCode::kUnavailable, HasSubstr(name)));
  });
  clients[2].reset();
  waiter.join();
  for (Losses* losses : {&host, &other}) {
    EXPECT_THAT(losses->first(),
                ElementsAre(Pair(2, StatusIs(StatusCode::kUnavailable,
                                             AllOf(HasSubstr(name), HasSubstr("broke off"))))));
  }
  // A callback that is set later is told at once.
  clients[1]->set_lost_callback(nullptr);
  Losses late(*clients[1]);
  EXPECT_THAT(late.so_far(), SizeIs(1));
  clients.pop_back();
  for (const auto& client : clients) client->set_lost_callback(nullptr);
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
}

// The callback of a loss may wait for other clients. Heartbeats go on meanwhile, on both sides, and
// so do calls and other signs of the service.
TEST_F(CoordinatorTest, CallbackThatWaitsDelaysNoHeartbeat) {
  constexpr absl::Duration kInterval = absl::Milliseconds(300);
  auto clients =
      connect_all(3, [&](CoordinatorOptions& options) { options.heartbeat_interval = kInterval; });
  ASSERT_THAT(clients, SizeIs(3));
  testing::Gate told;
  testing::Gate resumed;
  std::vector<int> losses;
  clients[1]->set_lost_callback([&](int client, const Status&) {
    losses.push_back(client);
    told.open();
    EXPECT_THAT(resumed.wait(), IsOk());
  });
  clients.pop_back();
  EXPECT_THAT(told.wait(), IsOk());
  // Longer than either side waits for the other.
  const absl::Time end = steady_now() + 2 * (kMissedHeartbeats + 2) * kInterval;
  while (steady_now() < end) {
    EXPECT_THAT(on_all(clients,
                       [](Coordinator& client) {
                         return client.check_in("b", "v", {0, 1}, soon());
                       }),
                Each(IsOk()));
  }
  resumed.open();
  clients[1]->set_lost_callback(nullptr);
  EXPECT_THAT(losses, ElementsAre(2));
}

TEST_F(CoordinatorTest, HostThatGoesIsLost) {
  auto clients = connect_all(3);
  ASSERT_THAT(clients, SizeIs(3));
  Losses first(*clients[1]);
  Losses second(*clients[2]);
  const std::string name = clients[1]->members()[0].to_string();
  clients[0].reset();
  for (Losses* losses : {&first, &second}) {
    EXPECT_THAT(losses->first(),
                ElementsAre(Pair(0, StatusIs(StatusCode::kUnavailable, HasSubstr(name)))));
  }
  EXPECT_THAT(clients[1]->check_in("b", "v", {1, 2}, soon()),
              StatusIs(StatusCode::kUnavailable,
                       AllOf(HasSubstr("b: "), HasSubstr(name), HasSubstr("is lost: "))));
  for (size_t i : {1, 2}) clients[i]->set_lost_callback(nullptr);
}

// Client 0 ends the service when it is told of the loss: the others know the cause all the same.
TEST_F(CoordinatorTest, FirstLossIsTheCauseOfAFailedStart) {
  auto clients = connect_all(3);
  ASSERT_THAT(clients, SizeIs(3));
  const std::string name = clients[2]->members()[1].to_string();
  const std::string host = clients[2]->members()[0].to_string();
  clients[1].reset();
  EXPECT_THAT(clients[0]->get("k", 1, soon()), StatusIs(StatusCode::kUnavailable, HasSubstr(name)));
  clients[0].reset();
  const Status told = clients[2]->get("l", 0, soon()).status();
  EXPECT_THAT(told, StatusIs(StatusCode::kUnavailable, HasSubstr(host)));
  EXPECT_THAT(clients[2]->cause_of_failed_start(told),
              StatusIs(StatusCode::kUnavailable, HasSubstr(name)));
  const Status other = absl::ResourceExhaustedError("no shared memory");
  EXPECT_EQ(clients[2]->cause_of_failed_start(other), other);
}

// A service that no client hosts, as a launcher or tessera_coordinator starts it.
class HostedElsewhereTest : public CoordinatorTest {
 protected:
  std::unique_ptr<CoordinatorServer> start(int num_clients) const {
    const CoordinatorOptions client = options(0, num_clients);
    StatusOr<std::unique_ptr<CoordinatorServer>> server = CoordinatorServer::start(
        {.address = client.address, .token = client.token, .num_clients = num_clients});
    EXPECT_THAT(server, IsOk());
    return server.ok() ? *std::move(server) : nullptr;
  }
  std::vector<std::unique_ptr<Coordinator>> connect_elsewhere(int num_clients) {
    return connect_all(num_clients, [](CoordinatorOptions& options) {
      options.service_host = ServiceHost::kElsewhere;
    });
  }
};

TEST_F(HostedElsewhereTest, LossOfClient0LeavesTheServiceRunning) {
  const auto server = start(3);
  auto clients = connect_elsewhere(3);
  ASSERT_THAT(clients, SizeIs(3));
  Losses first(*clients[1]);
  Losses second(*clients[2]);
  clients[0].reset();
  for (Losses* losses : {&first, &second}) {
    EXPECT_THAT(losses->first(),
                ElementsAre(Pair(0, StatusIs(StatusCode::kUnavailable,
                                             HasSubstr("its connections broke off")))));
  }
  clients.erase(clients.begin());
  EXPECT_THAT(on_all(clients,
                     [](Coordinator& client) {
                       return client.check_in("survivors", "v", {1, 2}, soon());
                     }),
              Each(IsOk()));
  for (const auto& client : clients) client->set_lost_callback(nullptr);
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
}

TEST_F(HostedElsewhereTest, PortIsChosenAndTold) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<CoordinatorServer> server,
      CoordinatorServer::start({.address = "127.0.0.1:0", .token = "secret", .num_clients = 2}));
  EXPECT_GT(server->port(), 0);
  const auto clients = connect_all(2, [&](CoordinatorOptions& options) {
    options.service_host = ServiceHost::kElsewhere;
    options.address = absl::StrCat("127.0.0.1:", server->port());
    options.relay.clear();  // it is at another address
  });
  ASSERT_THAT(clients, SizeIs(2));
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
}

TEST_F(HostedElsewhereTest, ServiceThatStopsInOrderBlamesNoClient) {
  auto server = start(2);
  const auto clients = connect_elsewhere(2);
  ASSERT_THAT(clients, SizeIs(2));
  Losses first(*clients[0]);
  Losses second(*clients[1]);
  server->stop();
  const auto over = StatusIs(StatusCode::kCancelled, HasSubstr("has shut down in order"));
  EXPECT_THAT(first.first(), ElementsAre(Pair(0, over)));
  EXPECT_THAT(second.first(), ElementsAre(Pair(1, over)));
  EXPECT_THAT(clients[0]->check_in("b", "v", {0, 1}, soon()), StatusIs(StatusCode::kCancelled));
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
  for (const auto& client : clients) client->set_lost_callback(nullptr);
}

// The news of the end and the answers come by streams of their own.
TEST_F(HostedElsewhereTest, AVerdictIsToldToAllThoughTheServiceStopsNext) {
  for (int trial = 0; trial < 20; ++trial) {
    auto server = start(3);
    const auto clients = connect_elsewhere(3);
    ASSERT_THAT(clients, SizeIs(3));
    EXPECT_THAT(on_all(clients,
                       [&](Coordinator& client) {
                         const Status told = client.check_in("b", "v", {0, 1, 2}, soon());
                         if (client.client_id() == 0) server->stop();
                         return told;
                       }),
                Each(IsOk()))
        << trial;
  }
}

// Calls that clients wait for when the service ends in order are not over for them.
TEST_F(HostedElsewhereTest, ServiceThatStopsWhileClientsLeaveIsNoLoss) {
  auto server = start(2);
  const auto clients = connect_elsewhere(2);
  ASSERT_THAT(clients, SizeIs(2));
  Losses leaver(*clients[0]);
  Status left = absl::UnknownError("");
  std::thread leaving([&] { left = clients[0]->leave(soon()); });
  // When its calls are refused, client 0 is known to leave.
  while (!absl::IsUnavailable(clients[1]->get("k", 0, soon()).status())) {
    std::this_thread::yield();
  }
  server->stop();
  leaving.join();
  EXPECT_THAT(left, IsOk());
  clients[0]->set_lost_callback(nullptr);
  EXPECT_THAT(leaver.so_far(), IsEmpty());
}

TEST_F(HostedElsewhereTest, LossOfTheServiceBlamesNoClient) {
  auto server = start(2);
  const auto clients = connect_elsewhere(2);
  ASSERT_THAT(clients, SizeIs(2));
  Losses first(*clients[0]);
  Losses second(*clients[1]);
  server.reset();
  const auto lost =
      StatusIs(StatusCode::kUnavailable,
               HasSubstr(absl::StrCat("the coordinator at ", options(0, 2).address, " is lost: ")));
  EXPECT_THAT(first.first(), ElementsAre(Pair(0, lost)));
  EXPECT_THAT(second.first(), ElementsAre(Pair(1, lost)));
  EXPECT_THAT(clients[0]->get("k", 1, soon()), lost);
  for (const auto& client : clients) client->set_lost_callback(nullptr);
}

TEST_F(CoordinatorTest, HostThatGoesAnswersWhoWaits) {
  auto clients = connect_all(2);
  ASSERT_THAT(clients, SizeIs(2));
  Status told;
  std::thread waiter([&] { told = clients[1]->get("k", 0, soon()).status(); });
  clients[0].reset();
  waiter.join();
  // Cancelled by the service, or refused where it came too late.
  EXPECT_THAT(told.code(), ::testing::AnyOf(StatusCode::kCancelled, StatusCode::kUnavailable));
}

}  // namespace
}  // namespace tessera
