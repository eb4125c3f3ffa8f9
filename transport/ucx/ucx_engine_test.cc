// SPDX-License-Identifier: Apache-2.0
//
// UcxEngine passes the suite for engines over loopback, and UCX leaves no traces in the process:
// nothing is loaded before it is needed, no signal handler stays, the code of libc does not
// change, nothing is printed.
#include "transport/ucx/ucx_engine.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/deadline.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "transport/testing/delayed_engine.h"
#include "transport/testing/engine_conformance.h"
#include "transport/testing/outcomes.h"
#include "transport/ucx/ucx_api.h"

namespace tessera::ucx {
namespace {

using ::testing::AllOf;
using testing::FakeJob;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;
using transport::EngineCase;

StatusOr<std::unique_ptr<transport::Engine>> make_on_loopback(Coordinator& coordinator) {
  return make_ucx_engine(coordinator, {.interface = "lo", .wait_policy = {}});
}

absl::Span<std::byte> bytes_of(int64_t& value) {
  return {reinterpret_cast<std::byte*>(&value), sizeof value};
}

class UcxEngineTest : public ::testing::TestWithParam<EngineCase> {};

TEST_P(UcxEngineTest, PassesAsThreads) {
  if (GetParam().loses_client_1) return;  // as processes only
  testing::TestDeadline deadline(absl::Minutes(4), GetParam().name);
  EXPECT_THAT(run_as_threads(GetParam(), make_on_loopback), IsOk());
}

TEST_P(UcxEngineTest, PassesAsProcesses) {
  EXPECT_THAT(run_as_processes(GetParam(), make_on_loopback), IsOk());
}

// The wrappers that tests put around an engine keep the contract too.
TEST_P(UcxEngineTest, PassesWithDelays) {
  if (GetParam().loses_client_1 || testing::kSanitized) return;
  testing::TestDeadline deadline(absl::Minutes(4), GetParam().name);
  const auto make = [](Coordinator& coordinator) -> StatusOr<std::unique_ptr<transport::Engine>> {
    TESSERA_ASSIGN_OR_RETURN(auto engine, make_on_loopback(coordinator));
    return transport::make_delayed(std::move(engine), coordinator.client_id());
  };
  EXPECT_THAT(run_as_threads(GetParam(), make), IsOk());
}

INSTANTIATE_TEST_SUITE_P(Cases, UcxEngineTest, ::testing::ValuesIn(transport::engine_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

bool is_loaded(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  std::stringstream text;
  text << maps.rdbuf();
  return absl::StrContains(text.str(), library);
}

TEST(UcxProcessTest, LoadsUcxOnlyToConnect) {
  if (is_loaded("libucp")) GTEST_SKIP() << "another test of this process has loaded UCX";
  EXPECT_THAT(testing::run_isolated(absl::Minutes(1),
                                    []() -> Status {
                                      FakeJob job({1, 1});
                                      auto engine = make_on_loopback(job.coordinator(0));
                                      TESSERA_RETURN_IF_ERROR(engine);
                                      TESSERA_RETURN_IF_ERROR((*engine)->connect({}, steady_now()));
                                      TESSERA_REQUIRE(!is_loaded("libucp"));
                                      TESSERA_REQUIRE(!is_loaded("libucs"));
                                      // Client 1 does not exist: the result is no matter.
                                      (void)(*engine)->connect({1}, steady_now());
                                      TESSERA_REQUIRE(is_loaded("libucp"));
                                      return absl::OkStatus();
                                    }),
              IsOk());
}

TEST(UcxProcessTest, LeavesSignalHandlersAsTheyWere) {
  EXPECT_THAT(testing::run_isolated(absl::Minutes(1),
                                    []() -> Status {
                                      for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) {
                                        signal(number, SIG_IGN);
                                      }
                                      TESSERA_RETURN_IF_ERROR(open_ucx_api());
                                      for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) {
                                        TESSERA_REQUIRE(signal(number, SIG_DFL) == SIG_IGN, number);
                                      }
                                      return absl::OkStatus();
                                    }),
              IsOk());
}

// The first bytes of the functions that UCX changes by default.
std::string code_of_libc() {
  void* const libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);  // not the sanitizer's functions
  std::string code;
  for (const char* const name :
       {"mmap", "munmap", "mremap", "shmat", "shmdt", "sbrk", "brk", "madvise"}) {
    code.append(static_cast<const char*>(dlsym(libc, name)), 16);
  }
  return code;
}

// Before any test.
const std::string code_at_start = code_of_libc();

// Runs in a child that connects. Client 1 does not exist, so the result is ignored.
Status require_code(bool is_as_at_start) {
  FakeJob job({1, 1});
  auto engine = make_on_loopback(job.coordinator(0));
  TESSERA_RETURN_IF_ERROR(engine);
  (void)(*engine)->connect({1}, steady_now());
  TESSERA_REQUIRE(is_loaded("libucp"));
  TESSERA_REQUIRE((code_of_libc() == code_at_start) == is_as_at_start);
  return absl::OkStatus();
}

TEST(UcxProcessTest, LeavesTheCodeOfLibcAsItWas) {
  EXPECT_THAT(testing::run_isolated(absl::Minutes(1), [] { return require_code(true); }), IsOk());
}

TEST(UcxProcessTest, LeavesMemoryToUcxWhereTheEnvironmentChoosesTransports) {
  EXPECT_THAT(testing::run_isolated(absl::Minutes(1),
                                    [] {
                                      setenv("UCX_TLS", "tcp", 1);
                                      return require_code(false);
                                    }),
              IsOk());
}

TEST(UcxProcessTest, SaysWhatIsMissing) {
  EXPECT_THAT(
      open_ucx_api("libthere_is_none.so"),
      StatusIs(absl::StatusCode::kUnimplemented,
               HasSubstr("clients on several hosts need UCX 1.13 or later: install libucx0")));
  EXPECT_THAT(open_ucx_api("libucs.so.0", "libm.so.6"),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("too old")));
}

// Addresses of the TCP sockets of this network that listen and are in `inodes`, as /proc/net has
// them.
std::vector<std::string> listening_addresses(const std::set<std::string>& inodes) {
  std::vector<std::string> addresses;
  for (const char* const path : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream table(path);
    std::string line;
    while (std::getline(table, line)) {
      const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
      constexpr char kListens[] = "0A";
      if (fields.size() < 10 || fields[3] != kListens || inodes.count(fields[9]) == 0) continue;
      addresses.push_back(fields[1].substr(0, fields[1].find(':')));
    }
  }
  return addresses;
}

// The sockets that this process has open.
std::set<std::string> open_sockets() {
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string name = std::filesystem::read_symlink(entry, error).string();
    absl::string_view inode = name;
    if (!absl::ConsumePrefix(&inode, "socket:[") || !absl::ConsumeSuffix(&inode, "]")) continue;
    inodes.insert(std::string(inode));
  }
  return inodes;
}

TEST(UcxProcessTest, ListensOnTheChosenInterfaceAlone) {
  EXPECT_THAT(testing::run_isolated(absl::Minutes(1),
                                    []() -> Status {
                                      FakeJob job({1, 1});
                                      auto engine = make_on_loopback(job.coordinator(0));
                                      TESSERA_RETURN_IF_ERROR(engine);
                                      (void)(*engine)->connect({1}, steady_now());
                                      const std::vector<std::string> addresses =
                                          listening_addresses(open_sockets());
                                      TESSERA_REQUIRE(!addresses.empty());
                                      for (const std::string& address : addresses) {
                                        TESSERA_REQUIRE(address == "0100007F", address);
                                      }
                                      return absl::OkStatus();
                                    }),
              IsOk());
}

TEST(UcxProcessTest, NamesTheInterfacesThatExist) {
  FakeJob job({1, 1});
  auto engine = make_ucx_engine(job.coordinator(0), {.interface = "no_such", .wait_policy = {}});
  ASSERT_THAT(engine, IsOk());
  EXPECT_THAT(
      (*engine)->connect({1}, steady_now() + absl::Seconds(10)),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("network interface \"no_such\" does not exist or has no address; this "
                         "host has lo (127.0.0.1")));
}

TEST(UcxProcessTest, NamesTheClientThatDoesNotConnect) {
  FakeJob job({1, 1});
  auto engine = make_on_loopback(job.coordinator(0));
  ASSERT_THAT(engine, IsOk());
  EXPECT_THAT((*engine)->connect({1}, steady_now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("connecting to client 1 ("),
                             HasSubstr("from 127.0.0.1 (interface \"lo\")"))));
}

// Both engines are of this process, so the child has copies of both.
TEST(UcxProcessTest, ChildThatDestroysEnginesChangesNothing) {
  EXPECT_THAT(testing::run_isolated(
                  absl::Minutes(1),
                  []() -> Status {
                    FakeJob job({1, 1});
                    StatusOr<std::unique_ptr<transport::Engine>> engines[2];
                    for (int i = 0; i < 2; ++i) {
                      engines[i] = make_on_loopback(job.coordinator(i));
                      TESSERA_RETURN_IF_ERROR(engines[i]);
                    }
                    Status second;
                    std::thread connecting([&] {
                      second = (*engines[1])->connect({0}, steady_now() + absl::Seconds(30));
                    });
                    const Status first =
                        (*engines[0])->connect({1}, steady_now() + absl::Seconds(30));
                    connecting.join();
                    TESSERA_RETURN_IF_ERROR(first);
                    TESSERA_RETURN_IF_ERROR(second);
                    const pid_t child = fork();
                    if (child == 0) {
                      for (auto& engine : engines) engine->reset();
                      _exit(0);
                    }
                    int result = 0;
                    TESSERA_REQUIRE(waitpid(child, &result, 0) == child && result == 0, result);
                    transport::Outcomes ends;
                    int64_t in = 0, out = 42;
                    (*engines[0])->receive(1, 1, bytes_of(in), nullptr, ends.next());
                    (*engines[1])->send(0, 1, bytes_of(out), nullptr, ends.next());
                    TESSERA_RETURN_IF_ERROR(ends.wait());
                    TESSERA_REQUIRE(in == 42, in);
                    return absl::OkStatus();
                  }),
              IsOk());
}

// A setting that UCX does not know is a warning of UCX; so is a partly filled receive.
TEST(UcxProcessTest, PrintsNothing) {
  setenv("UCX_NO_SUCH_SETTING", "1", 1);
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  for (const EngineCase& c : transport::engine_cases()) {
    if (c.name == std::string("peer_stopped_in_the_middle")) {
      EXPECT_THAT(run_as_processes(c, make_on_loopback), IsOk());
    }
  }
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  unsetenv("UCX_NO_SUCH_SETTING");
}

}  // namespace
}  // namespace tessera::ucx
