// SPDX-License-Identifier: Apache-2.0
//
// The coordinator of a job of real processes when processes are stopped and resumed, die while they
// connect, shut down while others wait, or do not make the same calls.
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/group.h"
#include "device/arithmetic.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator/connect_coordinator.h"
#include "job/coordinator/coordinator_server.h"
#include "job/environment/host.h"
#include "job/environment/port.h"
#include "tests/support/coordinator/silent_proxy.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"
#include "tests/support/shared.h"
#include "tests/support/verdicts.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kClients = 3;
constexpr absl::Duration kDeadline = absl::Seconds(100);

// Three clients as processes of their own, and beside them `beside`, which is no client.
class CoordinatorFailuresTest : public ::testing::Test {
 protected:
  using Body = std::function<Status(int id, const ClientOptions& options)>;

  std::vector<Status> run(
      const Body& body, const std::function<Status()>& beside = [] { return absl::OkStatus(); }) {
    const StatusOr<ReservedPort> port = ReservedPort::create();
    if (!port.ok()) return {port.status()};
    port_ = port->port();
    std::vector<Status> told = run_forked(kClients + 1, kDeadline, [&](int child) -> Status {
      return child < kClients ? body(child, options(child)) : beside();
    });
    EXPECT_THAT(told.back(), IsOk());
    told.pop_back();
    return told;
  }

  ClientOptions options(int id) const {
    ClientOptions result;
    result.coordinator = absl::StrCat("127.0.0.1:", port_);
    result.client_id = id;
    result.num_clients = kClients;
    result.num_local_devices = 1;
    result.token = "secret";
    result.heartbeat_interval = interval;
    return result;
  }

  int port() const { return port_; }

  absl::Duration interval = absl::Seconds(1);

 private:
  int port_ = 0;
};

class PauseTest : public CoordinatorFailuresTest {
 protected:
  // Stops the first processes of a job for a time, and lets all of them go on working together.
  std::vector<Status> pause(int num_stopped, absl::Duration time) {
    return run(
        [&](int id, const ClientOptions& options) -> Status {
          TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
          TESSERA_ASSIGN_OR_RETURN(const Mesh all, create_mesh(client, {{"x", kClients}}));
          TESSERA_RETURN_IF_ERROR(all.barrier("before"));
          (*pids_)[id] = getpid();
          ready_.open();
          TESSERA_RETURN_IF_ERROR(resumed_.wait());
          TESSERA_RETURN_IF_ERROR(all.barrier("after"));
          TESSERA_RETURN_IF_ERROR(create_mesh(client, {{"y", kClients}}).status());
          return client.shutdown();
        },
        [&]() -> Status {
          for (int i = 0; i < kClients; ++i) TESSERA_RETURN_IF_ERROR(ready_.wait());
          for (int i = 0; i < num_stopped; ++i) kill((*pids_)[i], SIGSTOP);
          absl::SleepFor(time);  // sleep: the test is about the length of the pause
          for (int i = 0; i < num_stopped; ++i) kill((*pids_)[i], SIGCONT);
          absl::SleepFor(5 * interval);  // sleep: all sides judge by the state after it
          resumed_.open(kClients);
          return absl::OkStatus();
        });
  }

 private:
  Shared<std::array<std::atomic<pid_t>, kClients>> pids_;
  Gate ready_;
  Gate resumed_;
};

TEST_F(PauseTest, OfTheHostOfTheService) { EXPECT_THAT(pause(1, 3 * interval), Each(IsOk())); }

// As by docker pause, the lid of a laptop, or the migration of a virtual machine.
TEST_F(PauseTest, OfTheWholeJob) {
  interval = absl::Milliseconds(200);
  EXPECT_THAT(pause(kClients, 15 * interval), Each(IsOk()));
}

class ConnectTest : public CoordinatorFailuresTest {};

// Registered, and dead before it shares memory with the others: they are told at once, although no
// heartbeat is missed for an hour.
TEST_F(ConnectTest, DeathAfterRegistrationIsToldToAll) {
  interval = absl::Hours(1);
  const std::vector<Status> told = run([](int id, const ClientOptions& options) -> Status {
    if (id != 1) return Client::connect(options).status();
    CoordinatorOptions coordinator;
    coordinator.address = options.coordinator;
    coordinator.token = options.token;
    coordinator.num_clients = kClients;
    coordinator.self = describe_this_process();
    coordinator.self.client_id = id;
    coordinator.self.num_local_devices = 1;
    coordinator.self.device_type = "cpu";
    coordinator.self.arithmetic = Arithmetic::of_this_host().to_string();
    coordinator.heartbeat_interval = *options.heartbeat_interval;
    TESSERA_ASSIGN_OR_RETURN(const auto connected, connect_coordinator(coordinator));
    kill(getpid(), SIGKILL);
    return absl::OkStatus();
  });
  for (const int id : {0, 2}) {
    EXPECT_THAT(told[id], StatusIs(StatusCode::kUnavailable, HasSubstr("client 1 (")));
  }
}

// R9. The network to the coordinator fails when a client has registered: its connect() and the
// connect() of the others end by their deadlines, although no heartbeat is missed for an hour.
TEST_F(ConnectTest, SilenceAfterRegistrationEndsByTheDeadline) {
  interval = absl::Hours(1);
  const StatusOr<ReservedPort> proxy_port = ReservedPort::create();
  ASSERT_THAT(proxy_port.status(), IsOk());
  const std::string address = absl::StrCat("127.0.0.1:", proxy_port->port());
  Gate ready;
  Gate ended;
  const std::vector<Status> told = run(
      [&](int id, const ClientOptions& options) -> Status {
        ClientOptions own = options;
        own.connect_timeout = absl::Seconds(3);
        if (id == 1) {
          own.coordinator = address;
          TESSERA_RETURN_IF_ERROR(ready.wait());
        }
        const StatusOr<Client> client = Client::connect(own);
        ended.open();
        return client.status();
      },
      [&]() -> Status {
        TESSERA_ASSIGN_OR_RETURN(
            const auto proxy, SilentProxy::start(address, port(), describe_this_process().host_id));
        ready.open();
        for (int i = 0; i < kClients; ++i) TESSERA_RETURN_IF_ERROR(ended.wait());
        TESSERA_REQUIRE(proxy->is_silent());
        return absl::OkStatus();
      });
  EXPECT_THAT(told[1],
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("the coordinator at " + address)));
  for (const int id : {0, 2}) EXPECT_THAT(told[id], ::testing::Not(IsOk()));
}

// A client that dies while others still register is not missed: its restart takes its place.
TEST_F(ConnectTest, RestartWhileOthersRegister) {
  Gate dead;
  const std::vector<Status> told = run(
      [&](int id, const ClientOptions& options) -> Status {
        if (id != 0) TESSERA_RETURN_IF_ERROR(dead.wait());
        TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
        TESSERA_RETURN_IF_ERROR(create_mesh(client, {{"x", kClients}}).status());
        return client.shutdown();
      },
      [&]() -> Status {
        // Client 2 before a supervisor starts it again.
        const Status killed = run_isolated(kDeadline, [&]() -> Status {
          ClientOptions first = options(2);
          std::thread connecting([&] { Client::connect(first).status().IgnoreError(); });
          connecting.detach();
          absl::SleepFor(absl::Milliseconds(300));  // sleep: nothing tells that it has registered
          kill(getpid(), SIGKILL);
          return absl::OkStatus();
        });
        TESSERA_REQUIRE(killed.code() == StatusCode::kAborted, killed.ToString());
        dead.open(2);
        return absl::OkStatus();
      });
  EXPECT_THAT(told, Each(IsOk()));
}

// The network between client 1 and the coordinator fails, and no heartbeat is missed for an hour:
// the deadlines of client 1 hold all the same, though the verdict of a run between hosts is the
// coordinator's to say.
class SilenceTest : public CoordinatorFailuresTest {};

TEST_F(SilenceTest, DeadlinesBetweenHostsHold) {
  constexpr char kLastWords[] = "silent_from_now_on";
  interval = absl::Hours(1);
  const StatusOr<ReservedPort> proxy_port = ReservedPort::create();
  ASSERT_THAT(proxy_port.status(), IsOk());
  const std::string address = absl::StrCat("127.0.0.1:", proxy_port->port());
  internal::ClientHooks hooks;
  hooks.host_ids = {"host-a", "host-b", "host-a"};
  Gate ready;
  Gate ended;
  const std::vector<Status> told = run(
      [&](int id, const ClientOptions& options) -> Status {
        ClientOptions own = options;
        if (id == 1) {
          own.coordinator = address;
          TESSERA_RETURN_IF_ERROR(ready.wait());
        }
        TESSERA_ASSIGN_OR_RETURN(const Client client, internal::connect(own, hooks));
        TESSERA_ASSIGN_OR_RETURN(const Mesh all, create_mesh(client, {{"x", kClients}}));
        TESSERA_RETURN_IF_ERROR(all.barrier("go"));
        // The answer to client 1 is the last that the proxy passes on.
        const std::string axis = id == 0 ? kLastWords : "x";
        TESSERA_RETURN_IF_ERROR(expect_error(create_mesh(client, {{axis, kClients}}).status(),
                                             StatusCode::kInvalidArgument, {kLastWords}));
        for (int i = 0; id == 1 && i < 3; ++i) {
          const absl::Time start = steady_now();
          TESSERA_RETURN_IF_ERROR(expect_error(all.barrier("alone", absl::Milliseconds(200)),
                                               StatusCode::kDeadlineExceeded, {"in 200 ms"}));
          // A second after the deadline, and as much again for a busy machine. A call to the
          // coordinator may last a minute.
          const absl::Duration time = steady_now() - start;
          TESSERA_REQUIRE(time < absl::Milliseconds(2400), absl::FormatDuration(time));
        }
        if (id == 1) ended.open(kClients + 1);
        return ended.wait();
      },
      [&]() -> Status {
        TESSERA_ASSIGN_OR_RETURN(const auto proxy, SilentProxy::start(address, port(), kLastWords));
        ready.open();
        TESSERA_RETURN_IF_ERROR(ended.wait());
        TESSERA_REQUIRE(proxy->is_silent());
        return absl::OkStatus();
      });
  EXPECT_THAT(told, Each(IsOk()));
}

class ShutdownTest : public CoordinatorFailuresTest {};

// Row cancelled_for_all of tests/facts/barrier.md, with a service that no client hosts: clients 0
// and 1 wait in a barrier for client 2 when it shuts down in order.
TEST_F(ShutdownTest, CancelledForAll) {
  Gate waits;
  Gate cancelled[kClients];  // each opens when clients 0 and 1 have been told
  internal::ClientHooks hooks;
  hooks.barrier_term = [&](int) {  // the barrier has begun
    waits.open();
    return 1;
  };
  Verdicts verdicts;
  const std::vector<Status> told = run(
      [&](int id, const ClientOptions& options) -> Status {
        ClientOptions own = options;
        own.coordinator_is_hosted = true;
        TESSERA_ASSIGN_OR_RETURN(Client client, internal::connect(own, hooks));
        TESSERA_ASSIGN_OR_RETURN(const Mesh all, create_mesh(client, {{"x", kClients}}));
        if (id != 2) {
          TESSERA_RETURN_IF_ERROR(expect_error(
              verdicts.add(id, all.barrier("never")), StatusCode::kCancelled,
              {"barrier \"never\" on {x=3}: ", "the coordinator at ", " has shut down in order"}));
          for (Gate& gate : cancelled) gate.open();
        }
        for (int i = 0; i < 2; ++i) TESSERA_RETURN_IF_ERROR(cancelled[id].wait());
        return client.shutdown();
      },
      [&]() -> Status {
        TESSERA_ASSIGN_OR_RETURN(
            const std::unique_ptr<CoordinatorServer> server,
            CoordinatorServer::start({.address = absl::StrCat("127.0.0.1:", port()),
                                      .token = "secret",
                                      .num_clients = kClients}));
        for (int i = 0; i < 2; ++i) TESSERA_RETURN_IF_ERROR(waits.wait());
        server->stop();
        return absl::OkStatus();
      });
  EXPECT_THAT(told, Each(IsOk()));
  EXPECT_THAT(verdicts.same({0, 1}), IsOk());
}

// Client 0, which hosts the service, shuts down while it and client 1 wait for client 2: both are
// told Cancelled, no client is lost, and the others shut down in order later.
TEST_F(ShutdownTest, WhileOthersWait) {
  Gate waits;
  Gate cancelled;
  const std::vector<Status> told = run([&](int id, const ClientOptions& options) -> Status {
    TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
    TESSERA_ASSIGN_OR_RETURN(const Group all, client.group({0, 1, 2}));
    if (id == 2) {
      TESSERA_RETURN_IF_ERROR(cancelled.wait());
      TESSERA_RETURN_IF_ERROR(cancelled.wait());
      return client.shutdown();
    }
    const Work barrier = all.barrier();
    if (id == 0) {
      TESSERA_RETURN_IF_ERROR(waits.wait());
      TESSERA_RETURN_IF_ERROR(expect_error(client.shutdown(absl::Milliseconds(500)),
                                           StatusCode::kDeadlineExceeded, {"shutdown"}));
    } else {
      waits.open();
    }
    const Status ended = barrier.await();
    cancelled.open();
    TESSERA_RETURN_IF_ERROR(
        expect_error(ended, StatusCode::kCancelled, {"client 0 is shutting down"}));
    return id == 0 ? absl::OkStatus() : client.shutdown();
  });
  EXPECT_THAT(told, Each(IsOk()));
}

TEST_F(ShutdownTest, OneThatGivesUpSpoilsNothing) {
  Gate gave_up;
  const std::vector<Status> told = run([&](int id, const ClientOptions& options) -> Status {
    TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
    if (id == 1) {
      const Status ended = client.shutdown(absl::Milliseconds(100));
      gave_up.open(kClients - 1);
      return expect_error(ended, StatusCode::kDeadlineExceeded,
                          {"1 of 3 clients arrived in", "missing client 0 (", "client 2 ("});
    }
    TESSERA_RETURN_IF_ERROR(gave_up.wait());
    return client.shutdown();
  });
  EXPECT_THAT(told, Each(IsOk()));
}

class CreateMeshTest : public CoordinatorFailuresTest {};

TEST_F(CreateMeshTest, WithAClientThatHasLeft) {
  Gate left;
  const std::vector<Status> told = run([&](int id, const ClientOptions& options) -> Status {
    TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
    if (id == 2) {
      client.shutdown(absl::ZeroDuration()).IgnoreError();
      left.open(kClients - 1);
      return absl::OkStatus();
    }
    TESSERA_RETURN_IF_ERROR(left.wait());
    // Without a timeout: it would wait for ever.
    TESSERA_RETURN_IF_ERROR(expect_error(create_mesh(client, {{"x", kClients}}).status(),
                                         StatusCode::kUnavailable,
                                         {"create_mesh: client 2 (", ") has left the job"}));
    TESSERA_RETURN_IF_ERROR(create_mesh(client, {{"x", 2}}, {0, 1}).status());
    return client.shutdown();
  });
  EXPECT_THAT(told, Each(IsOk()));
}

// Clients 0 and 1 wait for each other over different devices.
TEST_F(CreateMeshTest, OverDifferentDevices) {
  const std::vector<Status> told = run([](int id, const ClientOptions& options) -> Status {
    TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
    StatusOr<Mesh> mesh =
        id == 0 ? create_mesh(client, {{"x", 2}}, {0, 1}) : create_mesh(client, {{"x", kClients}});
    const Status refused = mesh.status();
    client.shutdown().IgnoreError();
    return refused;
  });
  EXPECT_THAT(told[0], StatusIs(StatusCode::kInvalidArgument,
                                AllOf(HasSubstr("create_mesh: clients disagree: client 0 ("),
                                      HasSubstr("has {x=2} of devices [0, 1] with clients [0, 1]"),
                                      HasSubstr("has {x=3} of devices [0-2] with clients [0-2]"))));
  EXPECT_THAT(told, Each(told[0]));
}

TEST_F(CreateMeshTest, OrderOfDevicesIsCompared) {
  const std::vector<Status> told = run([](int id, const ClientOptions& options) -> Status {
    TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
    const std::vector<int> devices =
        id == 0 ? std::vector<int>{2, 1, 0} : std::vector<int>{0, 1, 2};
    const Status refused = create_mesh(client, {{"x", kClients}}, devices).status();
    client.shutdown().IgnoreError();
    return refused;
  });
  EXPECT_THAT(told[0],
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("of devices [2, 1, 0]"), HasSubstr("of devices [0-2]"))));
  EXPECT_THAT(told, Each(told[0]));
}

TEST_F(CreateMeshTest, TimeoutNamesTheMissing) {
  Gate told_all;
  const std::vector<Status> told = run([&](int id, const ClientOptions& options) -> Status {
    TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
    if (id == 2) {
      TESSERA_RETURN_IF_ERROR(told_all.wait());
      TESSERA_RETURN_IF_ERROR(told_all.wait());
    } else {
      const Status status =
          create_mesh(client, {{"x", kClients}}, {.timeout = absl::Milliseconds(200)}).status();
      told_all.open();
      TESSERA_RETURN_IF_ERROR(expect_error(status, StatusCode::kDeadlineExceeded,
                                           {"create_mesh: ", "missing ", "client 2 ("}));
    }
    // Client 2 has left out a call, and is not one behind.
    TESSERA_RETURN_IF_ERROR(create_mesh(client, {{"y", kClients}}).status());
    return client.shutdown();
  });
  EXPECT_THAT(told, Each(IsOk()));
}

}  // namespace
}  // namespace tessera::testing
