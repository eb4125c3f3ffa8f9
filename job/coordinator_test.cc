// SPDX-License-Identifier: Apache-2.0
//
// The coordinator over real gRPC: clients are threads of this process; client 0 hosts the service,
// or none does.
#include "job/coordinator.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator.grpc.pb.h"
#include "job/coordinator_server.h"
#include "job/file_descriptor.h"
#include "job/host.h"
#include "job/port.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::IsOkAndHolds;
using ::testing::Pair;
using ::testing::SizeIs;
using testing::StatusIs;

using Connection = StatusOr<std::unique_ptr<Coordinator>>;

absl::Time soon() { return steady_now() + absl::Seconds(30); }

// The losses that one client hears of.
class Losses {
 public:
  explicit Losses(Coordinator& coordinator) {
    coordinator.set_lost_callback([this](int client, const Status& reason) {
      std::lock_guard<std::mutex> lock(mutex_);
      heard_.emplace_back(client, reason);
      changed_.notify_all();
    });
  }

  // All so far, once there is one; empty if there is none in time.
  std::vector<std::pair<int, Status>> first() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, to_chrono_steady(soon()), [this] { return !heard_.empty(); });
    return heard_;
  }
  std::vector<std::pair<int, Status>> so_far() {
    std::lock_guard<std::mutex> lock(mutex_);
    return heard_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<int, Status>> heard_;
};

class CoordinatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(ReservedPort port, ReservedPort::create());
    port_ = std::make_unique<ReservedPort>(std::move(port));
  }

  CoordinatorOptions options(int client_id, int num_clients) const {
    CoordinatorOptions result;
    result.address = absl::StrCat("127.0.0.1:", port_->port());
    result.token = "secret";
    result.num_clients = num_clients;
    result.self = describe_this_process();
    result.self.client_id = client_id;
    result.self.num_local_devices = client_id + 1;
    result.self.device_type = "cpu";
    return result;
  }

  static std::vector<Connection> connect(const std::vector<CoordinatorOptions>& options) {
    std::vector<Connection> result(options.size());
    in_parallel(options.size(), [&](size_t i) { result[i] = connect_coordinator(options[i]); });
    return result;
  }
  // All clients of a job, connected.
  std::vector<std::unique_ptr<Coordinator>> connect_all(
      int num_clients, const std::function<void(CoordinatorOptions&)>& change = nullptr) {
    std::vector<CoordinatorOptions> all;
    for (int i = 0; i < num_clients; ++i) {
      all.push_back(options(i, num_clients));
      if (change) change(all.back());
    }
    std::vector<std::unique_ptr<Coordinator>> clients;
    for (Connection& connection : connect(all)) {
      EXPECT_THAT(connection, IsOk());
      if (connection.ok()) clients.push_back(*std::move(connection));
    }
    return clients;
  }

  static void in_parallel(size_t count, const std::function<void(size_t)>& body) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
    for (std::thread& thread : threads) thread.join();
  }
  // What each client is told by one call that all make.
  template <class Clients>
  static std::vector<Status> on_all(const Clients& clients,
                                    const std::function<Status(Coordinator&)>& body) {
    std::vector<Status> result(clients.size());
    in_parallel(clients.size(), [&](size_t i) { result[i] = body(*clients[i]); });
    return result;
  }
  template <class Clients>
  static std::vector<Status> leave_all(const Clients& clients) {
    return on_all(clients, [](Coordinator& client) { return client.leave(soon()); });
  }

  std::unique_ptr<ReservedPort> port_;
  testing::TestDeadline deadline_{absl::Seconds(100),
                                  ::testing::UnitTest::GetInstance()->current_test_info()->name()};
};

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
      EXPECT_EQ(member.boot_id, own.boot_id);
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

TEST_F(CoordinatorTest, WrongToken) {
  std::vector<CoordinatorOptions> all = {options(0, 2), options(1, 2)};
  all[0].connect_timeout = absl::Seconds(2);
  all[1].token = "guess";
  const std::vector<Connection> told = connect(all);
  EXPECT_THAT(told[1],
              StatusIs(StatusCode::kUnauthenticated,
                       AllOf(HasSubstr(all[1].address), HasSubstr("refuses client 1"),
                             HasSubstr("TESSERA_TOKEN"), ::testing::Not(HasSubstr("secret")))));
  EXPECT_THAT(told[0], StatusIs(StatusCode::kDeadlineExceeded,
                                HasSubstr("client 1 did not connect within 2 s")));
}

TEST_F(CoordinatorTest, SessionOfAStrangerIsRefused) {
  const auto clients = connect_all(2);
  ASSERT_THAT(clients, SizeIs(2));
  Losses losses(*clients[0]);
  const auto stub = rpc::CoordinatorService::NewStub(
      grpc::CreateChannel(options(0, 2).address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.AddMetadata("tessera-token", "guess");
  context.set_deadline(to_chrono_wall(soon()));
  const auto session = stub->Session(&context);
  session->Write(rpc::Heartbeat());
  rpc::Event event;
  EXPECT_FALSE(session->Read(&event));
  EXPECT_EQ(session->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(on_all(clients,
                     [](Coordinator& client) {
                       return client.check_in("b", "v", {0, 1}, soon());
                     }),
              Each(IsOk()));
  EXPECT_THAT(losses.so_far(), IsEmpty());
  clients[0]->set_lost_callback(nullptr);
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
}

TEST_F(CoordinatorTest, TokenIsNeeded) {
  CoordinatorOptions none = options(0, 2);
  none.token = "";
  EXPECT_THAT(connect_coordinator(none),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("set TESSERA_TOKEN")));
}

TEST_F(CoordinatorTest, TwoClientsOfOneId) {
  std::vector<CoordinatorOptions> all = {options(0, 3), options(1, 3), options(1, 3)};
  all[2].self.pid = 1;
  const std::vector<Connection> told = connect(all);
  EXPECT_THAT(told, Each(StatusIs(StatusCode::kInvalidArgument,
                                  AllOf(HasSubstr("two clients have the id 1"),
                                        HasSubstr(all[1].self.to_string()),
                                        HasSubstr(all[2].self.to_string())))));
}

TEST_F(CoordinatorTest, DifferentNumbersOfClients) {
  const std::vector<Connection> told = connect({options(0, 2), options(1, 3)});
  EXPECT_THAT(told, Each(StatusIs(StatusCode::kInvalidArgument,
                                  AllOf(HasSubstr("a job of 3 clients"), HasSubstr("one of 2")))));
}

TEST_F(CoordinatorTest, MissingClientsAreNamedOnAll) {
  std::vector<CoordinatorOptions> all = {options(0, 4), options(2, 4)};
  for (CoordinatorOptions& one : all) one.connect_timeout = absl::Seconds(1);
  EXPECT_THAT(connect(all), Each(StatusIs(StatusCode::kDeadlineExceeded,
                                          HasSubstr("clients 1, 3 did not connect within 1 s"))));
}

TEST_F(CoordinatorTest, NoCoordinator) {
  CoordinatorOptions alone = options(1, 2);
  alone.connect_timeout = absl::Milliseconds(300);
  EXPECT_THAT(connect_coordinator(alone),
              StatusIs(StatusCode::kDeadlineExceeded,
                       Eq(absl::StrCat("client 1: the coordinator at ", alone.address,
                                       " (client 0) did not answer within 300 ms; see whether "
                                       "client 0 was started"))));
  alone.service_host = ServiceHost::kElsewhere;
  EXPECT_THAT(connect_coordinator(alone),
              StatusIs(StatusCode::kDeadlineExceeded,
                       Eq(absl::StrCat("client 1: the coordinator at ", alone.address,
                                       " did not answer within 300 ms; see whether the launcher or "
                                       "tessera_coordinator runs there"))));
}

TEST_F(CoordinatorTest, EarlierDeadlineOfTheCallerCounts) {
  CoordinatorOptions alone = options(1, 2);
  alone.connect_timeout = absl::Hours(1);
  alone.deadline = steady_now() + absl::Milliseconds(100);
  EXPECT_THAT(connect_coordinator(alone),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("did not answer")));
}

TEST_F(CoordinatorTest, PortInUse) {
  // Without SO_REUSEPORT: a service of somebody else.
  const FileDescriptor other(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(other.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(other.get(), 1), 0);
  ASSERT_EQ(getsockname(other.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  CoordinatorOptions host = options(0, 2);
  host.address = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  EXPECT_THAT(connect_coordinator(host),
              StatusIs(StatusCode::kUnavailable,
                       Eq(absl::StrCat("the coordinator cannot listen on ", host.address,
                                       ": Address already in use; use a free port of this host"))));
}

// Two services of this software: the port that a launcher has reserved is of the first one alone.
TEST_F(CoordinatorTest, SecondServiceAtTheAddressIsRefused) {
  const auto clients = connect_all(2);
  ASSERT_THAT(clients, SizeIs(2));
  EXPECT_THAT(connect_coordinator(options(0, 2)),
              StatusIs(StatusCode::kUnavailable, HasSubstr("Address already in use")));
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
}

// Both started with one address and one token, as from a script: the clients of the second job do
// not get into the first one.
TEST_F(CoordinatorTest, ClientsOfTwoJobsDoNotMix) {
  std::vector<CoordinatorOptions> all = {options(0, 2), options(1, 2), options(1, 2)};
  all[0].job = all[1].job = "run-a";
  all[2].job = "run-b";
  std::vector<Connection> told(3);
  in_parallel(2, [&](size_t i) {
    if (i == 0) told[0] = connect_coordinator(all[0]);
    if (i == 1) {
      told[2] = connect_coordinator(all[2]);
      told[1] = connect_coordinator(all[1]);
    }
  });
  EXPECT_THAT(told[0], IsOk());
  EXPECT_THAT(told[1], IsOk());
  EXPECT_THAT(told[2],
              StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("belongs to job \"run-b\""),
                                                           HasSubstr("serves job \"run-a\""),
                                                           HasSubstr(all[2].self.to_string()))));
}

TEST_F(CoordinatorTest, MalformedAddresses) {
  for (const char* address : {"nonsense", ":1234", "host:", "host:99999", "host:0", "host:-1"}) {
    for (const int client_id : {0, 1}) {
      CoordinatorOptions wrong = options(client_id, 2);
      wrong.address = address;
      EXPECT_THAT(connect_coordinator(wrong),
                  StatusIs(StatusCode::kInvalidArgument,
                           Eq(absl::StrCat("the coordinator's address is \"", address,
                                           "\"; it must be HOST:PORT, as in host-a:4000, the same "
                                           "on all clients"))));
    }
  }
  EXPECT_THAT(CoordinatorServer::start({.address = "nonsense", .token = "t"}),
              StatusIs(StatusCode::kInvalidArgument,
                       Eq("the coordinator's address is \"nonsense\"; it must be HOST:PORT, as in "
                          "host-a:4000")));
}

// gRPC would end the process on bytes that are not printable, and log them.
TEST_F(CoordinatorTest, TokensMayHaveAnyBytes) {
  for (const std::string& token :
       {std::string("secret\n"), std::string("schl\xc3\xbcssel"), std::string("a\0b", 3)}) {
    const auto clients =
        connect_all(2, [&](CoordinatorOptions& options) { options.token = token; });
    ASSERT_THAT(clients, SizeIs(2));
    EXPECT_THAT(leave_all(clients), Each(IsOk()));
  }
  CoordinatorOptions longest = options(1, 2);
  longest.token = std::string(5000, 't');
  EXPECT_THAT(
      connect_coordinator(longest),
      StatusIs(StatusCode::kInvalidArgument, Eq("the job token has 5000 bytes; use at most 1024")));
}

TEST_F(CoordinatorTest, HeartbeatIntervalIsChecked) {
  CoordinatorOptions hasty = options(1, 2);
  hasty.heartbeat_interval = absl::ZeroDuration();
  EXPECT_THAT(connect_coordinator(hasty),
              StatusIs(StatusCode::kInvalidArgument,
                       Eq("heartbeat_interval is 0 ms; it must be 1 ms or longer")));
}

// The clients that come with an interval of their own agree on the shortest.
TEST_F(CoordinatorTest, DifferentHeartbeatIntervals) {
  const auto clients = connect_all(2, [](CoordinatorOptions& options) {
    const bool is_host = options.self.client_id == 0;
    options.heartbeat_interval = is_host ? absl::Milliseconds(20) : absl::Hours(1);
  });
  ASSERT_THAT(clients, SizeIs(2));
  Losses losses(*clients[0]);
  // Far longer than the short one.
  EXPECT_THAT(clients[0]->get("none", 1, steady_now() + absl::Milliseconds(400)),
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
                         AllOf(HasSubstr("shutdown: 1 of 3 clients came in"),
                               HasSubstr(clients[2]->members()[2].to_string()))));
    std::vector<Status> told(3);
    in_parallel(3, [&](size_t i) {
      if (i != hasty) told[i] = clients[i]->leave(soon());
    });
    EXPECT_THAT(told, Each(IsOk()));
    for (size_t i = 0; i < 3; ++i) {
      clients[i]->set_lost_callback(nullptr);
      EXPECT_THAT(losses[i]->so_far(), IsEmpty());
    }
  }
}

// A call of another thread without a deadline, of a client that gives up: nobody would answer it.
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

// The calls of the others are Cancelled, and no client is blamed.
TEST_F(CoordinatorTest, HostThatShutsDownInOrderIsNotLost) {
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
  EXPECT_THAT(losses.so_far(), IsEmpty());
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
  // Who asks later hears of it at once.
  clients[1]->set_lost_callback(nullptr);
  Losses late(*clients[1]);
  EXPECT_THAT(late.so_far(), SizeIs(1));
  clients.pop_back();
  for (const auto& client : clients) client->set_lost_callback(nullptr);
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
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
                                             HasSubstr("connection to the coordinator broke")))));
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
  });
  ASSERT_THAT(clients, SizeIs(2));
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
}

TEST_F(HostedElsewhereTest, ServiceThatStopsInOrderBlamesNoClient) {
  auto server = start(2);
  const auto clients = connect_elsewhere(2);
  ASSERT_THAT(clients, SizeIs(2));
  Losses first(*clients[0]);
  server->stop();
  EXPECT_THAT(clients[0]->check_in("b", "v", {0, 1}, soon()), StatusIs(StatusCode::kCancelled));
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
  clients[0]->set_lost_callback(nullptr);
  EXPECT_THAT(first.so_far(), IsEmpty());
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
