// SPDX-License-Identifier: Apache-2.0
//
// The engine on Gloo passes the suite for engines over loopback, and its errors name missing parts.
#include "transport/gloo/gloo_engine.h"

#include <sys/socket.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/matchers.h"
#include "transport/testing/engine_conformance.h"
#include "transport/testing/outcomes.h"

// Gloo leaks its list of interfaces where it cannot use the requested interface.
extern "C" const char* __lsan_default_suppressions() { return "leak:libgloo\n"; }
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }

namespace tessera::gloo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;
using transport::EngineCase;

StatusOr<std::unique_ptr<transport::Engine>> make_on_loopback(Coordinator& coordinator) {
  return make_gloo_engine(coordinator, {.interface = "lo"});
}

class GlooEngineTest : public ::testing::TestWithParam<EngineCase> {};

// A death before the pair is connected is not found (docs/internals/between_hosts.md).
TEST_P(GlooEngineTest, PassesAsProcesses) {
  EXPECT_THAT(run_as_processes(GetParam(), make_on_loopback, {.finds_death = false}), IsOk());
}

INSTANTIATE_TEST_SUITE_P(Cases, GlooEngineTest, ::testing::ValuesIn(transport::engine_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

Status connect_with(GlooOptions options) {
  testing::FakeJob job({1, 1});
  TESSERA_ASSIGN_OR_RETURN(const auto engine,
                           make_gloo_engine(job.coordinator(0), std::move(options)));
  return engine->connect({1}, steady_now() + absl::Minutes(1));
}

TEST(GlooErrorsTest, MissingLibraries) {
  EXPECT_THAT(
      connect_with({.interface = "lo", .library = "libthere_is_none.so"}),
      StatusIs(absl::StatusCode::kUnimplemented,
               HasSubstr("backend \"gloo\" between hosts needs the Gloo of the build: install "
                         "libgloo0, or set LD_LIBRARY_PATH")));
  EXPECT_THAT(
      connect_with({.interface = "lo", .library = "libm.so.6"}),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("libm.so.6 has no CreateDevice()")));
}

// Ends all connections of this process that are open.
int shut_down_sockets() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int fd = 0;
    sockaddr_storage peer = {};
    socklen_t size = sizeof peer;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &fd)) continue;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.ss_family == AF_INET && shutdown(fd, SHUT_RDWR) == 0) ++count;
  }
  return count;
}

// Both ends name the other, and what Gloo says.
TEST(GlooErrorsTest, BrokenConnection) {
  testing::FakeJob job({1, 1});
  std::vector<std::unique_ptr<transport::Engine>> engines;
  for (const int client : {0, 1}) {
    StatusOr<std::unique_ptr<transport::Engine>> engine = make_on_loopback(job.coordinator(client));
    ASSERT_THAT(engine, IsOk());
    engines.push_back(*std::move(engine));
  }
  const absl::Time deadline = steady_now() + absl::Minutes(1);
  Status of_second;
  std::thread second([&] { of_second = engines[1]->connect({0}, deadline); });
  EXPECT_THAT(engines[0]->connect({1}, deadline), IsOk());
  second.join();
  ASSERT_THAT(of_second, IsOk());

  // Arrives once both ends have the connection.
  std::byte memory[4] = {};
  transport::Outcomes passed, ended[2];
  engines[0]->receive(1, 5, absl::MakeSpan(&memory[0], 1), nullptr, passed.next());
  engines[1]->send(0, 5, absl::MakeSpan(&memory[1], 1), nullptr, passed.next());
  EXPECT_THAT(passed.wait(), IsOk());
  for (const int client : {0, 1}) {
    engines[client]->receive(1 - client, 6, absl::MakeSpan(&memory[2 + client], 1), nullptr,
                             ended[client].next());
  }
  EXPECT_GE(shut_down_sockets(), 1);
  for (const int client : {0, 1}) {
    EXPECT_THAT(ended[client].wait(),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr(absl::StrCat("the connection to client ", 1 - client)),
                               HasSubstr(" is broken: Gloo: "), HasSubstr("127.0.0.1"))));
  }
}

TEST(GlooErrorsTest, Interfaces) {
  EXPECT_THAT(connect_with({.interface = "no_such"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("Gloo cannot use the interface \"no_such\" (Gloo: ")));
}

}  // namespace
}  // namespace tessera::gloo
