// SPDX-License-Identifier: Apache-2.0
//
// Clients connect to the coordinator over real gRPC, and get errors where they cannot: tokens, ids,
// addresses, other jobs, silence. Part of the program of coordinator_test.cc.
#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
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
#include "job/environment/build.h"
#include "job/environment/file_descriptor.h"
#include "job/environment/host.h"
#include "job/environment/port.h"
#include "tessera/job/coordinator/coordinator.grpc.pb.h"
#include "tests/support/coordinator/clients.h"
#include "tests/support/coordinator/silent_proxy.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using testing::Connection;
using testing::CoordinatorTest;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::Losses;
using ::testing::SizeIs;
using testing::soon;
using testing::StatusIs;

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

TEST_F(CoordinatorTest, DifferentBuilds) {
  std::vector<CoordinatorOptions> all = {options(0, 2), options(1, 2)};
  all[1].self.build = "Tessera 9.0.0, protocol 77";
  EXPECT_THAT(connect(all),
              Each(StatusIs(StatusCode::kInvalidArgument,
                            Eq(absl::StrCat(all[1].self.to_string(), " has ", all[1].self.build,
                                            ", and the coordinator at ", all[0].address, " has ",
                                            build_text(),
                                            "; build all programs of a job, and tessera_run, "
                                            "from one Tessera")))));
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

// A socket that listens, without SO_REUSEPORT, and never answers.
struct SilentSocket {
  SilentSocket() : fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in name = {};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof name;
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&name), length), 0);
    EXPECT_EQ(listen(fd.get(), 16), 0);
    EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &length), 0);
    address = absl::StrCat("127.0.0.1:", ntohs(name.sin_port));
  }
  FileDescriptor fd;
  std::string address;
};

// R9. The connection is accepted, and no answer follows, as when a host is stopped.
TEST_F(CoordinatorTest, SilentServiceIsGivenUpAtTheDeadline) {
  const SilentSocket silent;
  CoordinatorOptions client = options(1, 2);
  client.address = silent.address;
  client.connect_timeout = absl::Milliseconds(300);
  EXPECT_THAT(connect_coordinator(client),
              StatusIs(StatusCode::kDeadlineExceeded,
                       Eq(absl::StrCat("client 1: the coordinator at ", silent.address,
                                       " (client 0) did not answer within 300 ms; see whether "
                                       "client 0 was started"))));
}

// R9 too: no answer after that to the registration. A call ends by its deadline, although the
// client would miss no heartbeat for an hour. Later calls end when the client gives the service up.
TEST_F(CoordinatorTest, ServiceThatGoesSilentEndsNoCallLate) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const ReservedPort port, ReservedPort::create());
  const std::string address = absl::StrCat("127.0.0.1:", port.port());
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto proxy,
      testing::SilentProxy::start(address, port_->port(), describe_this_process().host_id));
  const auto clients = connect_all(2, [&](CoordinatorOptions& options) {
    options.heartbeat_interval = absl::Hours(1);
    if (options.self.client_id == 1) options.address = address;
  });
  ASSERT_THAT(clients, SizeIs(2));
  while (!proxy->is_silent()) std::this_thread::yield();
  EXPECT_THAT(clients[1]->get("k", 0, steady_now() + absl::Milliseconds(100)),
              StatusIs(StatusCode::kDeadlineExceeded,
                       HasSubstr("(client 0) did not answer by the deadline")));
  EXPECT_THAT(clients[1]->check_in("b", "v", {0, 1}, steady_now() + absl::Milliseconds(100)),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("did not answer by the deadline")));
}

// Breaks off the first session, as a service does that many clients reach at once, and answers the
// second one. Refuses every registration, with the number of sessions.
class HastyService : public rpc::CoordinatorService::Service {
 public:
  grpc::Status Session(grpc::ServerContext*,
                       grpc::ServerReaderWriter<rpc::Event, rpc::Heartbeat>* session) override {
    if (++num_sessions_ == 1) return {grpc::StatusCode::UNAVAILABLE, "cut off"};
    rpc::Event event;
    event.set_session(1);
    session->Write(event);
    rpc::Heartbeat heartbeat;
    while (session->Read(&heartbeat)) {
    }
    return grpc::Status::OK;
  }
  grpc::Status Register(grpc::ServerContext*, const rpc::RegisterRequest*,
                        rpc::RegisterResponse* response) override {
    response->mutable_outcome()->set_code(static_cast<int>(StatusCode::kInvalidArgument));
    response->mutable_outcome()->set_message(absl::StrCat(num_sessions_.load(), " sessions"));
    return grpc::Status::OK;
  }

 private:
  std::atomic<int> num_sessions_{0};
};

// 4,000 clients that start at once on two cores: some are cut off before the service has read their
// token. A client whose session ends unanswered opens another one.
TEST_F(CoordinatorTest, SessionThatEndsUnansweredIsOpenedAgain) {
  HastyService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  CoordinatorOptions client = options(1, 2);
  client.address = absl::StrCat("127.0.0.1:", port);
  EXPECT_THAT(connect_coordinator(client),
              StatusIs(StatusCode::kInvalidArgument, Eq("2 sessions")));
}

TEST_F(CoordinatorTest, PortInUse) {
  const SilentSocket other;
  CoordinatorOptions host = options(0, 2);
  host.address = other.address;
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

// Without a name of the job, the first client 1 becomes the member, whichever job it belongs to.
// When the second one registers, that is in doubt, so every client gets an error.
TEST_F(CoordinatorTest, MixOfTwoJobsWithoutNamesIsToldToAll) {
  CoordinatorOptions of_a = options(1, 2);
  of_a.self.pid = 4711;
  const auto mixed = connect_all(
      2, [](CoordinatorOptions& options) { options.heartbeat_interval = absl::Milliseconds(20); });
  ASSERT_THAT(mixed, SizeIs(2));
  Losses client0(*mixed[0]);
  Losses of_b(*mixed[1]);
  const std::string name_of_b = mixed[0]->members()[1].to_string();
  EXPECT_THAT(connect_coordinator(of_a),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("two clients have the id 1: "), HasSubstr(name_of_b),
                             HasSubstr(of_a.self.to_string()))));
  const auto told = ElementsAre(
      Pair(1, StatusIs(StatusCode::kUnavailable,
                       AllOf(HasSubstr(absl::StrCat(name_of_b, " is lost: ", of_a.self.to_string(),
                                                    " came with the same id and token")),
                             HasSubstr("TESSERA_JOB of its own")))));
  EXPECT_THAT(client0.first(), told);
  EXPECT_THAT(of_b.first(), told);
  EXPECT_THAT(mixed[1]->put("k", "v"), StatusIs(StatusCode::kFailedPrecondition,
                                                HasSubstr("this client was declared lost")));
  for (const auto& client : mixed) client->set_lost_callback(nullptr);
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

}  // namespace
}  // namespace tessera
