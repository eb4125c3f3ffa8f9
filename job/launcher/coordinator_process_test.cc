// SPDX-License-Identifier: Apache-2.0
//
// The service in a process of its own: how it starts and ends. Each test runs in a child, because
// gRPC must not be in a process that forks.
#include "job/launcher/coordinator_process.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator/connect_coordinator.h"
#include "job/coordinator/coordinator.h"
#include "job/coordinator/coordinator_server.h"
#include "job/environment/file_descriptor.h"
#include "job/environment/host.h"
#include "job/environment/port.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using absl::StatusCode;
using testing::expect_error;
using testing::IsOk;
using testing::run_isolated;

constexpr absl::Duration kDeadline = absl::Seconds(60);

bool accepts_connections(int port) {
  const FileDescriptor caller(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(caller.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

// Some supervisors give a program no standard streams: other descriptors get their numbers.
TEST(CoordinatorProcessTest, StandardStreamsMayBeClosed) {
  for (const int num_closed : {1, 2, 3}) {
    EXPECT_THAT(
        run_isolated(
            kDeadline,
            [&]() -> Status {
              TESSERA_ASSIGN_OR_RETURN(const ReservedPort port, ReservedPort::create());
              for (int fd = 0; fd < num_closed; ++fd) close(fd);
              TESSERA_ASSIGN_OR_RETURN(
                  const CoordinatorProcess process,
                  CoordinatorProcess::start({.address = absl::StrCat("127.0.0.1:", port.port()),
                                             .token = "secret",
                                             .num_clients = 2}));
              TESSERA_REQUIRE(accepts_connections(port.port()));
              return absl::OkStatus();
            }),
        IsOk())
        << num_closed;
  }
}

TEST(CoordinatorProcessTest, ServiceThatDoesNotStartIsGivenUpAtItsTimeout) {
  const auto body = []() -> Status {
    pthread_atfork(nullptr, nullptr, [] {
      while (true) pause();
    });
    return expect_error(
        CoordinatorProcess::start({.address = "127.0.0.1:0", .token = "secret", .num_clients = 2},
                                  ProcessGroup::kOwn, absl::Milliseconds(50))
            .status(),
        StatusCode::kDeadlineExceeded,
        {"the coordinator did not listen on 127.0.0.1:0 within 50 ms; see whether this host finds "
         "the address of that name"});
  };
  EXPECT_THAT(run_isolated(kDeadline, body), IsOk());
}

TEST(CoordinatorProcessTest, AddressInUseIsToldByTheChild) {
  const auto body = []() -> Status {
    TESSERA_ASSIGN_OR_RETURN(const ReservedPort port, ReservedPort::create());
    const CoordinatorServerOptions options = {
        .address = absl::StrCat("127.0.0.1:", port.port()), .token = "secret", .num_clients = 2};
    TESSERA_ASSIGN_OR_RETURN(const CoordinatorProcess first, CoordinatorProcess::start(options));
    return expect_error(CoordinatorProcess::start(options).status(), StatusCode::kUnavailable,
                        {"the coordinator cannot listen on", "Address already in use"});
  };
  EXPECT_THAT(run_isolated(kDeadline, body), IsOk());
}

// Clients of other hosts may have answers that are under way when the launcher of this one ends.
TEST(CoordinatorProcessTest, EndsInOrder) {
  const auto body = []() -> Status {
    TESSERA_ASSIGN_OR_RETURN(const ReservedPort port, ReservedPort::create());
    const std::string address = absl::StrCat("127.0.0.1:", port.port());
    auto process = std::make_unique<StatusOr<CoordinatorProcess>>(
        CoordinatorProcess::start({.address = address, .token = "secret", .num_clients = 2}));
    TESSERA_RETURN_IF_ERROR(process->status());
    std::vector<StatusOr<std::unique_ptr<Coordinator>>> clients(2);
    std::vector<std::thread> threads;
    for (int id = 0; id < 2; ++id) {
      threads.emplace_back([&, id] {
        CoordinatorOptions options;
        options.address = address;
        options.service_host = ServiceHost::kElsewhere;
        options.token = "secret";
        options.num_clients = 2;
        options.self = describe_this_process();
        options.self.client_id = id;
        options.self.num_local_devices = 1;
        clients[id] = connect_coordinator(options);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& client : clients) TESSERA_RETURN_IF_ERROR(client.status());
    process.reset();
    for (const auto& client : clients) {
      TESSERA_RETURN_IF_ERROR(
          expect_error((*client)->get("k", 1, steady_now() + kDeadline).status(),
                       StatusCode::kCancelled, {"has shut down in order"}));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_isolated(kDeadline, body), IsOk());
}

// spawn() must not fork such a process.
TEST(ServiceOfThisProcessTest, CountsAsUseOfGrpc) {
  const auto body = []() -> Status {
    TESSERA_REQUIRE(!coordinator_service_was_used());
    TESSERA_ASSIGN_OR_RETURN(
        const std::unique_ptr<CoordinatorServer> server,
        CoordinatorServer::start({.address = "127.0.0.1:0", .token = "secret", .num_clients = 2}));
    TESSERA_REQUIRE(coordinator_service_was_used());
    return absl::OkStatus();
  };
  EXPECT_THAT(run_isolated(kDeadline, body), IsOk());
}

}  // namespace
}  // namespace tessera
