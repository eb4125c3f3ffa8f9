// SPDX-License-Identifier: Apache-2.0
//
// Clients that reach the coordinator through a relay: the end of the relay, the calls that it
// refuses, and its stream. The other files of this program show that these clients are served as
// other clients are: their fixture runs a relay here.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
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
#include "job/environment/build.h"
#include "tessera/job/coordinator/coordinator.grpc.pb.h"
#include "tests/support/coordinator/clients.h"
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
using testing::IsOk;
using testing::Losses;
using ::testing::Pair;
using ::testing::SizeIs;
using testing::soon;
using testing::StatusIs;

using HostRequests = grpc::ClientReaderWriter<rpc::HostRequest, rpc::HostEvent>;

class CoordinatorRelayTest : public CoordinatorTest {
 protected:
  std::unique_ptr<CoordinatorServer> start(int num_clients) {
    auto server = CoordinatorServer::start(
        {.address = options(0, 2).address, .token = "secret", .num_clients = num_clients});
    EXPECT_THAT(server, IsOk());
    return *std::move(server);
  }
  // Client 0 without the relay, the others with it.
  std::vector<std::unique_ptr<Coordinator>> connect_elsewhere(int num_clients) {
    return connect_all(num_clients, [](CoordinatorOptions& options) {
      options.service_host = ServiceHost::kElsewhere;
      options.heartbeat_interval = absl::Hours(1);
    });
  }
};

// The others continue; the clients of the relay get a loss that names the relay.
TEST_F(CoordinatorRelayTest, EndOfTheRelayIsTheLossOfItsClients) {
  const auto server = start(4);
  const auto clients = connect_elsewhere(4);
  ASSERT_THAT(clients, SizeIs(4));
  Losses own(*clients[2]);
  std::atomic<int> num_lost{0};
  clients[0]->set_lost_callback([&](int, const Status&) { ++num_lost; });
  Status under_way;
  std::thread waiter([&] { under_way = clients[1]->get("k", 0, soon()).status(); });
  relay_ = nullptr;
  waiter.join();
  const auto through_relay =
      StatusIs(StatusCode::kUnavailable,
               Eq(absl::StrCat("the coordinator at ", options(0, 4).address,
                               " is lost: its connections through the relay of this host broke "
                               "off")));
  EXPECT_THAT(under_way, through_relay);
  EXPECT_THAT(own.first(), ElementsAre(Pair(2, through_relay)));
  while (num_lost < 3) std::this_thread::yield();
  EXPECT_THAT(clients[0]->check_in("b", "v", {0, 1, 2, 3}, soon()),
              StatusIs(StatusCode::kUnavailable, HasSubstr("its connections broke off")));
  for (const auto& client : clients) client->set_lost_callback(nullptr);
  EXPECT_THAT(clients[0]->leave(soon()), IsOk());
}

TEST_F(CoordinatorRelayTest, RelayThatStopsInOrderBlamesNoClient) {
  const auto server = start(2);
  const auto clients = connect_elsewhere(2);
  ASSERT_THAT(clients, SizeIs(2));
  Losses losses(*clients[1]);
  relay_->stop();
  EXPECT_THAT(losses.first(), ElementsAre(Pair(1, StatusIs(StatusCode::kCancelled))));
  clients[1]->set_lost_callback(nullptr);
}

// Together they are longer than a message may be.
TEST_F(CoordinatorRelayTest, LargeValuesOfManyClientsPass) {
  const auto server = start(4);
  const auto clients = connect_elsewhere(4);
  ASSERT_THAT(clients, SizeIs(4));
  constexpr size_t kBytes = (4 << 20) - 100;
  EXPECT_THAT(on_all(clients,
                     [&](Coordinator& client) {
                       const int id = client.client_id();
                       return client.put(absl::StrCat("key ", id), std::string(kBytes, 'a' + id));
                     }),
              Each(IsOk()));
  for (int id = 0; id < 4; ++id) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string value,
                                 clients[3]->get(absl::StrCat("key ", id), id, soon()));
    EXPECT_EQ(value.size(), kBytes);
    EXPECT_EQ(value.front(), 'a' + id);
  }
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
}

TEST_F(CoordinatorRelayTest, WrongTokenAtTheRelay) {
  CoordinatorOptions client = options(1, 2);
  client.token = "guess";
  EXPECT_THAT(connect_coordinator(client),
              StatusIs(StatusCode::kUnauthenticated, HasSubstr("refuses client 1")));
}

TEST_F(CoordinatorRelayTest, RelayWithAnotherTokenThanTheService) {
  const auto server = start(2);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      relay_, CoordinatorServer::start(
                  {.address = "127.0.0.1:0", .token = "guess", .upstream = options(1, 2).address}));
  CoordinatorOptions client = options(1, 2);
  client.token = "guess";
  EXPECT_THAT(connect_coordinator(client),
              StatusIs(StatusCode::kUnauthenticated, HasSubstr("refuses client 1")));
}

// The relay answers no session by itself.
TEST_F(CoordinatorRelayTest, NoCoordinator) {
  CoordinatorOptions alone = options(1, 2);
  alone.connect_timeout = absl::Milliseconds(300);
  EXPECT_THAT(connect_coordinator(alone),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("did not answer within 300 ms")));
}

TEST_F(CoordinatorRelayTest, MalformedAddress) {
  CoordinatorOptions wrong = options(1, 2);
  wrong.relay = "nonsense";
  EXPECT_THAT(connect_coordinator(wrong),
              StatusIs(StatusCode::kInvalidArgument,
                       Eq("the relay's address is \"nonsense\"; it must be HOST:PORT of this "
                          "host")));
}

TEST_F(CoordinatorRelayTest, RelayServesNoRelay) {
  const auto stub = rpc::CoordinatorService::NewStub(
      grpc::CreateChannel(options(1, 2).relay, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.AddMetadata("tessera-token", "736563726574");
  const auto stream = stub->Host(&context);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

// A service that breaks off the first stream, as one does that many reach at once, and refuses
// every registration on the second one.
class HastyService : public rpc::CoordinatorService::Service {
 public:
  grpc::Status Host(grpc::ServerContext*,
                    grpc::ServerReaderWriter<rpc::HostEvent, rpc::HostRequest>* stream) override {
    if (++num_streams_ == 1) return {grpc::StatusCode::UNAVAILABLE, "cut off"};
    rpc::HostRequest request;
    while (stream->Read(&request)) {
      rpc::HostEvent event;
      for (const uint64_t session : request.opened()) event.add_answered(session);
      for (const rpc::HostCall& call : request.calls()) {
        rpc::RegisterResponse response;
        response.mutable_outcome()->set_code(static_cast<int>(StatusCode::kInvalidArgument));
        response.mutable_outcome()->set_message(absl::StrCat(num_streams_.load(), " streams"));
        rpc::HostAnswer* const answer = event.add_answers();
        answer->set_number(call.number());
        answer->set_response(response.SerializeAsString());
      }
      stream->Write(event);
    }
    return grpc::Status::OK;
  }

 private:
  std::atomic<int> num_streams_{0};
};

TEST_F(CoordinatorRelayTest, StreamThatEndsUnansweredIsOpenedAgain) {
  HastyService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(options(1, 2).address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  EXPECT_THAT(connect_coordinator(options(1, 2)),
              StatusIs(StatusCode::kInvalidArgument, Eq("2 streams")));
  relay_ = nullptr;  // ends its stream, for which the server waits
}

// The contents of the stream of a host, without a relay: one list of members for two clients, and
// one event for the loss of both.
TEST_F(CoordinatorRelayTest, MembersAreOnAStreamOnce) {
  const auto server = start(2);
  const auto stub = rpc::CoordinatorService::NewStub(
      grpc::CreateChannel(options(1, 2).address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.AddMetadata("tessera-token", "736563726574");
  context.set_deadline(to_chrono_wall(soon()));
  const auto stream = stub->Host(&context);
  rpc::HostRequest request;
  for (const uint64_t session : {1, 2}) {
    request.add_opened(session);
    rpc::RegisterRequest registration;
    registration.set_session(session);
    registration.mutable_member()->set_client_id(static_cast<int>(session) - 1);
    registration.mutable_member()->set_num_local_devices(1);
    registration.mutable_member()->set_build(build_text());
    registration.set_num_clients(2);
    registration.set_timeout_us(30'000'000);
    registration.set_connect_timeout_us(30'000'000);
    registration.set_heartbeat_interval_us(3'600'000'000);
    rpc::HostCall* const call = request.add_calls();
    call->set_number(session);
    call->set_method(rpc::HostCall::REGISTER);
    call->set_request(registration.SerializeAsString());
  }
  ASSERT_TRUE(stream->Write(request));
  int num_answered = 0;
  int num_answers = 0;
  int num_lists = 0;
  rpc::HostEvent event;
  while (num_answered + num_answers < 4 && stream->Read(&event)) {
    num_answered += event.answered_size();
    for (const rpc::HostAnswer& answer : event.answers()) {
      rpc::RegisterResponse response;
      ASSERT_TRUE(response.ParseFromString(answer.response()));
      EXPECT_EQ(response.outcome().code(), 0) << response.outcome().message();
      num_lists += response.members().empty() ? 0 : 1;
      ++num_answers;
    }
  }
  EXPECT_EQ(num_answered, 2);
  EXPECT_EQ(num_answers, 2);
  EXPECT_EQ(num_lists, 1);
  rpc::HostRequest end;
  end.add_closed(1);
  end.add_closed(2);
  ASSERT_TRUE(stream->Write(end));
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_EQ(event.losses_size(), 2);
  context.TryCancel();
  stream->Finish();
}

}  // namespace
}  // namespace tessera
