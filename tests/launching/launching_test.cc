// SPDX-License-Identifier: Apache-2.0
//
// The reports of launchers about real jobs that lose a client: which client is the cause
// (tests/facts/dtensor.md, "Launching").
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/spawn.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/launcher/status_channel.h"
#include "tests/support/clients.h"
#include "tests/support/forked.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/shared.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// R4. A launcher can distinguish a survivor from the cause only if the survivor has reported before
// its call returns: the program may end immediately after, before the coordinator notices anything.
TEST(StatusChannelTest, SurvivorHasReportedWhenItsCallReturns) {
  for (int round = 0; round < 5; ++round) {
    Shared<std::atomic<int>> num_told;
    const std::vector<Status> statuses =
        run_processes({.num_clients = 3}, [&](Client& client) -> Status {
          int ends[2];
          TESSERA_REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
          setenv(kStatusFdVariable, absl::StrCat(ends[0]).c_str(), 1);
          TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 3}}));
          TESSERA_RETURN_IF_ERROR(mesh.barrier("here"));
          if (client.client_id() == 1) kill(getpid(), SIGKILL);
          const Status lost = mesh.barrier("wait");
          const std::string report = receive_fatal_status(ends[1]);
          // A survivor that ends is a loss too.
          ++*num_told;
          while (*num_told < 2) sched_yield();
          TESSERA_RETURN_IF_ERROR(
              expect_error(lost, StatusCode::kUnavailable, {"client 1 ", "lost"}));
          TESSERA_REQUIRE(absl::StartsWith(report, "UNAVAILABLE: "), report);
          TESSERA_REQUIRE(absl::StrContains(report, "client 1 "), report);
          return absl::OkStatus();
        });
    EXPECT_THAT(statuses[0], IsOk());
    EXPECT_THAT(statuses[2], IsOk());
  }
}

// A11.
TEST(SpawnLossTest, KilledClientIsNamedAndNoSurvivor) {
  for (int round = 0; round < 10; ++round) {
    const Status status = run_isolated(absl::Seconds(100), [] {
      return spawn(4, [](const Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}}));
        TESSERA_RETURN_IF_ERROR(mesh.barrier("here"));
        if (client.client_id() == 1) kill(getpid(), SIGKILL);
        return mesh.barrier("wait");
      });
    });
    ASSERT_THAT(status, StatusIs(StatusCode::kUnavailable,
                                 AllOf(StartsWith("client 1 (pid "),
                                       HasSubstr(") was killed by SIGKILL (Killed)"))));
  }
}

// A death may be seen late, after the parent has asked the client to end. Its signal tells.
TEST(SpawnLossTest, KillOfAnotherSenderIsTheCauseThoughTheClientWasAskedToEnd) {
  const Status status = run_isolated(absl::Seconds(100), [] {
    return spawn(2, [](const Client& client) -> Status {
      signal(SIGTERM, [](int) { kill(getpid(), SIGKILL); });
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
      TESSERA_RETURN_IF_ERROR(mesh.barrier("ready"));
      if (client.client_id() == 0) return absl::UnavailableError("client 1 is lost, it seems");
      while (true) pause();
    });
  });
  EXPECT_THAT(status, StatusIs(StatusCode::kUnavailable, ContainsRegex("^client 1 .*SIGKILL")));
}

// The kernel frees 512 MiB of the killed client while the others report and end.
TEST(SpawnLossTest, KilledClientWithMuchMemoryIsNamed) {
  const Status status = run_isolated(absl::Seconds(100), [] {
    return spawn(2, [](const Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
      std::vector<char> held(client.client_id() == 1 ? size_t{512} << 20 : 0, 'x');
      TESSERA_RETURN_IF_ERROR(mesh.barrier("here"));
      if (client.client_id() == 1) kill(getpid(), SIGKILL);
      return mesh.barrier("wait");
    });
  });
  EXPECT_THAT(status, StatusIs(StatusCode::kUnavailable, ContainsRegex("^client 1 .*SIGKILL")));
}

// A process that a client leaves behind holds a copy of all its descriptors. It is no client: spawn
// returns while it runs, with the end of the client.
TEST(SpawnTest, ReturnsWhileAProcessThatAClientLeftBehindRuns) {
  for (const bool is_killed : {false, true}) {
    const Status status = run_isolated(absl::Seconds(30), [is_killed]() -> Status {
      int until_spawn_returns[2];
      TESSERA_REQUIRE(pipe(until_spawn_returns) == 0);
      const Status spawned = spawn(2, [&](const Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
        TESSERA_RETURN_IF_ERROR(mesh.barrier("here"));
        if (client.client_id() == 1) {
          if (fork() == 0) {
            close(until_spawn_returns[1]);
            char byte;
            const ssize_t ignored = read(until_spawn_returns[0], &byte, 1);
            _exit(static_cast<int>(ignored));
          }
          if (is_killed) kill(getpid(), SIGKILL);
        }
        return mesh.barrier("after");
      });
      close(until_spawn_returns[1]);
      if (!is_killed) return spawned;
      return expect_error(spawned, StatusCode::kUnavailable,
                          {"client 1 (pid ", ") was killed by SIGKILL (Killed)"});
    });
    EXPECT_THAT(status, IsOk()) << "killed: " << is_killed;
  }
}

// Clients that are threads have started gRPC in their process.
TEST(SpawnTest, IsRefusedOnceGrpcRuns) {
  EXPECT_THAT(
      run_clients({.setting = Setting::kThreads, .num_clients = 2},
                  [](Client&) {
                    const Status refused = spawn(2, [](const Client&) { return absl::OkStatus(); });
                    return expect_error(
                        refused, StatusCode::kFailedPrecondition,
                        {"spawn forks, and gRPC already runs in this process; call it before "});
                  }),
      IsOk());
}

// The parent is stopped while the others go on without client 0: it would ask them to end.
TEST(SpawnLossTest, LossOfClient0IsSurvived) {
  Shared<std::atomic<int>> num_survivors;
  const Status status = run_isolated(absl::Seconds(100), [&] {
    return spawn(3, [&](const Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 3}}));
      if (client.client_id() == 1) kill(getppid(), SIGSTOP);
      TESSERA_RETURN_IF_ERROR(mesh.barrier("here"));
      if (client.client_id() == 0) kill(getpid(), SIGKILL);
      const Status lost = mesh.barrier("wait");
      const auto survive = [&]() -> Status {
        TESSERA_RETURN_IF_ERROR(
            expect_error(lost, StatusCode::kUnavailable, {"client 0 ", "lost"}));
        TESSERA_ASSIGN_OR_RETURN(const Mesh rest, create_mesh(client, {{"x", 2}}, {1, 2}));
        return rest.barrier("after");
      };
      const Status survived = survive();
      if (survived.ok()) ++*num_survivors;
      // Both have said so before the parent goes on; a client of an error does not wait for it.
      while (survived.ok() && *num_survivors < 2) sched_yield();
      if (client.client_id() == 1) kill(getppid(), SIGCONT);
      return survived;
    });
  });
  EXPECT_EQ(*num_survivors, 2);
  EXPECT_THAT(status, StatusIs(StatusCode::kUnavailable, ContainsRegex("^client 0 .*SIGKILL")));
}

std::atomic<bool> was_asked_to_end{false};

// R25. Client 1 needs some of the time that it is given after the failure of client 0, and signals
// reach the parent meanwhile.
TEST(SpawnLossTest, SignalsToTheParentDoNotEndTheGracePeriod) {
  static Shared<std::atomic<int>> alarms;
  Shared<std::atomic<bool>> has_ended_by_itself;
  const Status status = run_isolated(absl::Seconds(100), [&] {
    struct sigaction action = {};
    action.sa_handler = [](int) { alarms->fetch_add(1); };
    sigaction(SIGALRM, &action, nullptr);
    const itimerval often = {{0, 5000}, {0, 5000}};
    setitimer(ITIMER_REAL, &often, nullptr);
    return spawn(2, [&](const Client& client) -> Status {
      signal(SIGTERM, [](int) { was_asked_to_end = true; });
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
      TESSERA_RETURN_IF_ERROR(mesh.barrier("ready"));
      if (client.client_id() == 0) return absl::DataLossError("no such shard");
      while (!was_asked_to_end) sched_yield();
      const int first = *alarms;
      while (*alarms < first + 5) sched_yield();
      *has_ended_by_itself = true;
      return absl::OkStatus();
    });
  });
  EXPECT_THAT(status, StatusIs(StatusCode::kDataLoss, HasSubstr("client 0 ")));
  EXPECT_TRUE(*has_ended_by_itself);
}

// As Ctrl-Z and fg do. While the job is stopped more heartbeats pass than those after which a
// coordinator that went on would declare all clients lost. They are so long that a busy machine
// loses no client.
TEST(SpawnTest, StopOfTheGroupByTheTerminalLosesNobody) {
  Shared<std::atomic<int>> num_ready;
  Shared<std::atomic<bool>> is_resumed;
  constexpr absl::Duration kHeartbeat = absl::Milliseconds(400);
  const Status status = run_isolated(absl::Seconds(100), [&]() -> Status {
    const pid_t job = fork();
    if (job == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      setpgid(0, 0);
      const Status done =
          spawn(2,
                [&](const Client& client) -> Status {
                  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
                  TESSERA_RETURN_IF_ERROR(mesh.barrier("before"));
                  ++*num_ready;
                  while (!*is_resumed) sched_yield();
                  return mesh.barrier("after");
                },
                {.heartbeat_interval = kHeartbeat});
      if (!done.ok()) std::fprintf(stderr, "%s\n", done.ToString().c_str());
      _exit(done.ok() ? 0 : 1);
    }
    while (*num_ready < 2) sched_yield();
    kill(-job, SIGTSTP);
    int wait_status = 0;
    TESSERA_REQUIRE(waitpid(job, &wait_status, WUNTRACED) == job);
    TESSERA_REQUIRE(WIFSTOPPED(wait_status));
    absl::SleepFor(5 * kHeartbeat);  // sleep: a coordinator misses heartbeats by the time
    kill(-job, SIGCONT);
    *is_resumed = true;
    TESSERA_REQUIRE(waitpid(job, &wait_status, 0) == job);
    TESSERA_REQUIRE(WIFEXITED(wait_status));
    TESSERA_REQUIRE(WEXITSTATUS(wait_status) == 0);
    return absl::OkStatus();
  });
  EXPECT_THAT(status, IsOk());
}

// It neither unwinds the child's copy of spawn(), nor ends the coordinator, which the other needs.
TEST(SpawnTest, ExceptionOfTheFunctionIsReported) {
  Status status = run_isolated(absl::Seconds(100), [] {
    return spawn(2, [](const Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
      TESSERA_RETURN_IF_ERROR(mesh.barrier("here"));
      // NOTIDY(banned): what a function of the user may do
      if (client.client_id() == 1) throw std::runtime_error("row 7 of 4");
      return mesh.barrier("wait");
    });
  });
  EXPECT_THAT(status,
              StatusIs(StatusCode::kUnknown,
                       ContainsRegex("^client 1 .*the function raised an exception: row 7 of 4$")));
  status = run_isolated(absl::Seconds(100), [] {
    return spawn(1, [](const Client&) -> Status {
      // NOTIDY(banned): what a function of the user may do
      throw 7;
    });
  });
  EXPECT_THAT(status, StatusIs(StatusCode::kUnknown,
                               HasSubstr("the function raised an exception that is not")));
}

}  // namespace
}  // namespace tessera::testing
