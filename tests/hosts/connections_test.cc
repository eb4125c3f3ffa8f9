// SPDX-License-Identifier: Apache-2.0
//
// Connections between clients of two hosts that break while both clients live: a call under way
// fails with one text, and later calls work. Clients 0 and 1 are on one host, client 2 on another.
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/matchers.h"
#include "tests/support/verdicts.h"
#include "transport/engine.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using network::Engine;

// Beyond the deadline of every test.
constexpr absl::Duration kNever = absl::Hours(1);
constexpr int kClients = 3;
constexpr int kFar = 2;  // the client on the other host
constexpr int kMostDescriptors = 1024;
constexpr char kBroken[] = "the connection to client ";
constexpr char kRepeat[] = "; it is made again for later calls: repeat this call on every client";

// The connected TCP sockets of this process.
std::set<int> find_sockets() {
  std::set<int> sockets;
  for (int fd = 0; fd < kMostDescriptors; ++fd) {
    sockaddr_in peer = {};
    socklen_t size = sizeof peer;
    const bool is_connected = getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0;
    if (is_connected && (peer.sin_family == AF_INET || peer.sin_family == AF_INET6)) {
      sockets.insert(fd);
    }
  }
  return sockets;
}

// The connections between the clients of a job whose clients are threads: only connections made
// later than the first engine, when all clients have reached the coordinator.
class Connections {
 public:
  JobSpec job(Backend backend) {
    JobSpec spec = {.num_clients = kClients, .hooks = {.host_ids = on_hosts(kClients, 2)}};
    spec.options.backend = backend;
    spec.hooks.wrap_engine = [this](std::unique_ptr<Engine> engine) {
      std::call_once(once_, [this] { of_coordinator_ = find_sockets(); });
      return StatusOr<std::unique_ptr<Engine>>(std::move(engine));
    };
    return spec;
  }

  // Ends the first connection, or all, as a reset does: both ends are told by the kernel. How many
  // sockets had to be ended.
  int reset(bool all) const {
    int num_ended = 0;
    for (const int fd : find_sockets()) {
      if (of_coordinator_.count(fd) > 0) continue;
      num_ended += shutdown(fd, SHUT_RDWR) == 0 ? 1 : 0;
      if (!all) break;
    }
    return num_ended;
  }

 private:
  std::once_flag once_;
  std::set<int> of_coordinator_;
};

// Not twice in a row: a reset of a socket that Gloo is about to accept is an exception on a thread
// of Gloo, which ends the process.
enum class Break { kNone, kOne, kAll };
Break break_in(int call) {
  if (call == 3 || call == 8) return Break::kOne;
  return call == 15 || call == 19 ? Break::kAll : Break::kNone;
}
// An end that is told late fails its next call.
bool may_fail(int call) {
  return break_in(call) != Break::kNone || (call > 0 && break_in(call - 1) != Break::kNone);
}
constexpr int kCalls = 25;
constexpr int64_t kLargeCount = 1 << 20;

std::vector<Backend> backends() {
#ifdef TESSERA_TESTS_HAVE_GLOO
  return {Backend::kUcx, Backend::kGloo};
#else
  return {Backend::kUcx};
#endif
}

class ConnectionsTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, ConnectionsTest, ::testing::ValuesIn(backends()),
                         [](const auto& info) { return std::string(backend_name(info.param)); });

// Every client makes every call, also after a failed call.
TEST_P(ConnectionsTest, AreMadeAgainForLaterCalls) {
  Connections connections;
  Verdicts verdicts[kCalls];
  const auto body = [&](Client& client) -> Status {
    const int id = client.client_id();
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2}));
    for (int call = 0; call < kCalls; ++call) {
      // Small inputs are in the letters; large ones go in blocks.
      std::vector<float> data(call % 2 == 0 ? 8 : kLargeCount, static_cast<float>(id + call));
      const Work work = group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum);
      const Break broken = break_in(call);
      if (broken != Break::kNone && id == kFar) {
        TESSERA_REQUIRE(connections.reset(broken == Break::kAll) > 0, call);
      }
      const Status status = work.wait(kNever);
      if (status.ok()) {
        const float sum = static_cast<float>(3 * call + 3);
        for (const float value : data) TESSERA_REQUIRE(value == sum, call, ": ", value);
        continue;
      }
      verdicts[call].add(id, status).IgnoreError();
      TESSERA_REQUIRE(may_fail(call), call, ": ", status.ToString());
      TESSERA_RETURN_IF_ERROR(
          expect_error(status, StatusCode::kUnavailable, {"all_reduce", kBroken, kRepeat}));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients(connections.job(GetParam()), body), IsOk());
  // A client that had its result keeps it.
  for (Verdicts& verdict : verdicts) EXPECT_THAT(verdict.same_of_those_told(), IsOk());
}

}  // namespace
}  // namespace tessera::testing
