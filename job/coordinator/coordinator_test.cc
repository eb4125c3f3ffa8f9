// SPDX-License-Identifier: Apache-2.0
//
// Calls of connected clients to the coordinator over real gRPC: members, values, check-ins, and
// leaving in order. Other parts of the program: coordinator_connect_test.cc,
// coordinator_loss_test.cc.
#include "job/coordinator/coordinator.h"

#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator/connect_coordinator.h"
#include "job/coordinator/device_wait.h"
#include "job/coordinator/id_ranges.h"
#include "job/environment/host.h"
#include "tests/support/coordinator/clients.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using testing::CoordinatorTest;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::IsOkAndHolds;
using testing::Losses;
using ::testing::Pair;
using ::testing::SizeIs;
using testing::soon;
using testing::StatusIs;

TEST_F(CoordinatorTest, MembersAreEqualOnAll) {
  const auto clients = connect_all(3);
  ASSERT_THAT(clients, SizeIs(3));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(clients[i]->client_id(), i);
    EXPECT_EQ(clients[i]->num_clients(), 3);
    for (int j = 0; j < 3; ++j) {
      const MemberInfo& member = clients[i]->members()[j];
      const MemberInfo& own = clients[j]->members()[j];
      EXPECT_EQ(member.client_id, j);
      EXPECT_EQ(member.num_local_devices, j + 1);
      EXPECT_EQ(member.device_type, "cpu");
      EXPECT_EQ(member.pid, getpid());
      EXPECT_EQ(member.host, own.host);
      EXPECT_EQ(member.host_id, own.host_id);
      EXPECT_EQ(member.incarnation, own.incarnation);
    }
  }
  EXPECT_NE(clients[0]->members()[0].incarnation, clients[0]->members()[1].incarnation);
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
}

TEST_F(CoordinatorTest, PutAndGet) {
  const auto clients = connect_all(2);
  ASSERT_THAT(clients, SizeIs(2));
  const std::string binary("a\0\xff", 3);
  std::thread waiter([&] { EXPECT_THAT(clients[0]->get("k", 1, soon()), IsOkAndHolds(binary)); });
  EXPECT_THAT(clients[1]->put("k", binary), IsOk());
  waiter.join();
  EXPECT_THAT(clients[0]->put("k", "other"),
              StatusIs(StatusCode::kAlreadyExists, HasSubstr("key \"k\"")));
  EXPECT_THAT(clients[1]->get("none", 0, steady_now() + absl::Milliseconds(50)),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("key \"none\" was not set")));
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
}

TEST_F(CoordinatorTest, Propose) {
  const auto clients = connect_all(3);
  ASSERT_THAT(clients, SizeIs(3));
  const std::string binary("a\0\xff", 3);
  std::thread waiter(
      [&] { EXPECT_THAT(clients[0]->get_proposal("s", 7, 2, soon()), IsOkAndHolds(binary)); });
  EXPECT_THAT(clients[2]->propose("s", 7, binary, soon()), IsOkAndHolds(binary));
  waiter.join();
  EXPECT_THAT(clients[1]->propose("s", 7, "other", soon()), IsOkAndHolds(binary));
  EXPECT_THAT(clients[1]->propose("s", 8, "other", soon()), IsOkAndHolds("other"));
  EXPECT_THAT(clients[1]->get_proposal("s", 9, 0, steady_now() + absl::Milliseconds(50)),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("key \"s 9\" was not set")));
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
}

// Device 0 waits for device 1 in run a, and device 1 for device 0 in run b.
TEST_F(CoordinatorTest, ACircleIsConfirmedAndEndedStepByStep) {
  const auto clients = connect_all(2);
  ASSERT_THAT(clients, SizeIs(2));
  const auto wait_of = [](int device) {
    return DeviceWait{.device = device,
                      .run = {.group = 70u + device, .seq = 7},
                      .spans_hosts = true,
                      .name_hash = 5u + device,
                      .label = device == 0 ? "barrier a" : "barrier b",
                      .group = IdRanges::list_of({1, 0}),
                      .missing = IdRanges::of({1 - device})};
  };
  // By client, the steps in the order in which they came.
  std::vector<std::vector<CircleStep>> steps(2);
  in_parallel(2, [&](size_t i) {
    const int id = static_cast<int>(i);
    WaitsReport report = {.waits = {wait_of(id)}};
    while (steps[id].empty() || steps[id].back().kind != CircleStep::kRelease) {
      const StatusOr<CircleStep> step = clients[id]->report_waits(report, soon());
      ASSERT_THAT(step, IsOk());
      ASSERT_NE(step->kind, CircleStep::kNone);
      steps[id].push_back(*step);
      report.circle = step->number;
      report.at = step->at;
      report.is_done = true;
    }
  });
  const auto expect_wait = [&](const DeviceWait& wait, int device) {
    const DeviceWait expected = wait_of(device);
    EXPECT_EQ(wait.device, device);
    EXPECT_EQ(wait.run, expected.run);
    EXPECT_TRUE(wait.spans_hosts);
    EXPECT_EQ(wait.name_hash, expected.name_hash);
    EXPECT_EQ(wait.label, expected.label);
    EXPECT_EQ(wait.group, expected.group);
    EXPECT_EQ(wait.missing, expected.missing);
  };
  for (int id = 0; id < 2; ++id) {
    ASSERT_THAT(steps[id], SizeIs(3));
    EXPECT_EQ(steps[id][0].kind, CircleStep::kConfirm);
    EXPECT_EQ(steps[id][1].kind, CircleStep::kEnd);
    EXPECT_EQ(steps[id][2].kind, CircleStep::kRelease);
    for (int k = 0; k < 2; ++k) {
      ASSERT_THAT(steps[id][k].waits, SizeIs(2));
      expect_wait(steps[id][k].waits[0], 1 - id);
      expect_wait(steps[id][k].waits[1], id);
    }
    // The device of the first one was held.
    const bool is_first = steps[id][1].at == 1;
    EXPECT_THAT(steps[id][2].waits, SizeIs(is_first ? 2 : 0));
    ASSERT_THAT(steps[id][1].named, SizeIs(2));
    expect_wait(steps[id][1].named[0], is_first ? id : 1 - id);
  }
  EXPECT_NE(steps[0][1].at, steps[1][1].at);
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
}

TEST_F(CoordinatorTest, AReportOfWaitsEndsAtItsDeadlineOrWithTheNextOne) {
  const auto clients = connect_all(2);
  ASSERT_THAT(clients, SizeIs(2));
  const WaitsReport report = {
      .waits = {{.device = 1, .run = {7, 1}, .missing = IdRanges::of({0})}}};
  const auto kind = [&](const WaitsReport& waits, absl::Time deadline) {
    const StatusOr<CircleStep> step = clients[1]->report_waits(waits, deadline);
    EXPECT_THAT(step, IsOk());
    return step.ok() ? step->kind : CircleStep::kConfirm;
  };
  EXPECT_EQ(kind(report, steady_now() + absl::Milliseconds(50)), CircleStep::kNone);
  std::thread waiter([&] { EXPECT_EQ(kind(report, soon()), CircleStep::kNone); });
  // The open report may not have come yet.
  std::atomic<bool> is_over{false};
  std::thread ender([&] {
    while (!is_over) EXPECT_EQ(kind({}, soon()), CircleStep::kNone);
  });
  waiter.join();
  is_over = true;
  ender.join();
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
  EXPECT_FALSE(clients[1]->report_waits(report, soon()).ok());
}

TEST_F(CoordinatorTest, CheckIn) {
  const auto clients = connect_all(3);
  ASSERT_THAT(clients, SizeIs(3));
  const auto check_in = [](Coordinator& client, const std::string& value,
                           absl::Duration timeout = absl::Seconds(30)) {
    return client.check_in("b", value, {0, 1, 2}, steady_now() + timeout);
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(on_all(clients, [&](Coordinator& client) { return check_in(client, "v"); }),
                Each(IsOk()));
  }
  const std::vector<Status> told = on_all(clients, [&](Coordinator& client) {
    return check_in(client, client.client_id() == 1 ? "step" : "ckpt");
  });
  EXPECT_THAT(told, Each(told[0]));
  EXPECT_THAT(told[0], StatusIs(StatusCode::kInvalidArgument,
                                AllOf(HasSubstr("b: clients disagree"), HasSubstr("has step"),
                                      HasSubstr("has ckpt"), HasSubstr("client 1 ("))));
  std::vector<Status> late = {absl::OkStatus(), absl::OkStatus(), absl::OkStatus()};
  in_parallel(2, [&](size_t i) {
    late[i] = check_in(*clients[i], "v", i == 0 ? absl::Milliseconds(200) : absl::Seconds(60));
  });
  late[2] = check_in(*clients[2], "v");
  EXPECT_THAT(late, Each(late[0]));
  EXPECT_THAT(late[0], StatusIs(StatusCode::kDeadlineExceeded,
                                HasSubstr(clients[0]->members()[2].to_string())));
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
}

// The clients that come with an interval of their own agree on the shortest.
TEST_F(CoordinatorTest, DifferentHeartbeatIntervals) {
  const auto clients = connect_all(2, [](CoordinatorOptions& options) {
    const bool is_host = options.self.client_id == 0;
    options.heartbeat_interval = is_host ? absl::Milliseconds(200) : absl::Hours(1);
  });
  ASSERT_THAT(clients, SizeIs(2));
  Losses losses(*clients[0]);
  // Longer than it takes to miss so many heartbeats of the short one.
  EXPECT_THAT(clients[0]->get("none", 1, steady_now() + absl::Milliseconds(1500)),
              StatusIs(StatusCode::kDeadlineExceeded));
  clients[0]->set_lost_callback(nullptr);
  EXPECT_THAT(losses.so_far(), IsEmpty());
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
}

TEST_F(CoordinatorTest, LeaveTwiceAndConnectAgain) {
  for (int i = 0; i < 2; ++i) {
    const auto clients = connect_all(2);
    ASSERT_THAT(clients, SizeIs(2));
    Losses first(*clients[0]);
    Losses second(*clients[1]);
    EXPECT_THAT(leave_all(clients), Each(IsOk()));
    EXPECT_THAT(leave_all(clients), Each(IsOk()));
    for (const auto& client : clients) client->set_lost_callback(nullptr);
    EXPECT_THAT(first.so_far(), IsEmpty());
    EXPECT_THAT(second.so_far(), IsEmpty());
  }
}

// One gives up; the others leave in order afterwards, although it hosts the service (client 0) or
// does not.
TEST_F(CoordinatorTest, LeaveNamesTheMissingAndSpoilsNothing) {
  for (const size_t hasty : {0, 1}) {
    const auto clients = connect_all(3);
    ASSERT_THAT(clients, SizeIs(3));
    std::vector<std::unique_ptr<Losses>> losses;
    for (const auto& client : clients) losses.push_back(std::make_unique<Losses>(*client));
    EXPECT_THAT(clients[hasty]->leave(steady_now() + absl::Milliseconds(100)),
                StatusIs(StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("shutdown: 1 of 3 clients arrived in"),
                               HasSubstr(clients[2]->members()[2].to_string()))));
    std::vector<Status> told(3);
    in_parallel(3, [&](size_t i) {
      if (i != hasty) told[i] = clients[i]->leave(soon());
    });
    EXPECT_THAT(told, Each(IsOk()));
    for (size_t i = 0; i < 3; ++i) {
      clients[i]->set_lost_callback(nullptr);
      if (i == hasty) {
        EXPECT_THAT(losses[i]->so_far(), IsEmpty());
      } else {
        EXPECT_THAT(
            losses[i]->so_far(),
            ElementsAre(Pair(static_cast<int>(hasty),
                             StatusIs(StatusCode::kUnavailable, EndsWith("has left the job")))));
      }
    }
  }
}

// A call of another thread without a deadline, of a client that gives up: it would never be
// answered.
TEST_F(CoordinatorTest, EndOfLeaveCancelsCallsUnderWay) {
  const auto clients = connect_all(2);
  ASSERT_THAT(clients, SizeIs(2));
  Status told;
  std::thread waiter([&] { told = clients[1]->get("k", 0, absl::InfiniteFuture()).status(); });
  EXPECT_THAT(clients[1]->leave(steady_now() + absl::Milliseconds(100)),
              StatusIs(StatusCode::kDeadlineExceeded));
  waiter.join();
  EXPECT_THAT(told, StatusIs(StatusCode::kCancelled, Eq("client 1 has left the job")));
  EXPECT_THAT(clients[0]->leave(soon()), IsOk());
}

TEST(LocalCoordinatorTest, OneClientNeedsNeitherNetworkNorToken) {
  testing::TestDeadline deadline(absl::Seconds(60), "one client");
  CoordinatorOptions options;
  options.self = describe_this_process();
  options.self.num_local_devices = 1;
  options.heartbeat_interval = absl::Milliseconds(1);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Coordinator> alone,
                               connect_coordinator(options));
  EXPECT_EQ(alone->client_id(), 0);
  ASSERT_THAT(alone->members(), SizeIs(1));
  EXPECT_EQ(alone->members()[0].pid, getpid());
  EXPECT_THAT(alone->get("k", 0, steady_now() + absl::Milliseconds(30)),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("key \"k\"")));
  std::thread waiter([&] { EXPECT_THAT(alone->get("k", 0, soon()), IsOkAndHolds("v")); });
  EXPECT_THAT(alone->put("k", "v"), IsOk());
  waiter.join();
  EXPECT_THAT(alone->check_in("b", "v", {0}, soon()), IsOk());
  EXPECT_THAT(alone->check_in("b", "v", {0, 1}, soon()), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(alone->leave(soon()), IsOk());
}

}  // namespace
}  // namespace tessera
