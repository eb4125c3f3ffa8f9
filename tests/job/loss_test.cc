// SPDX-License-Identifier: Apache-2.0
//
// Jobs that lose a client, from the view of the other processes (tests/facts/collectives.md,
// "Failure"; tests/facts/dtensor.md, "Asynchrony and failure"), and the resources that a job leaves
// behind. A row's name is the test's.
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/gate.h"
#include "tests/support/job_forms.h"
#include "tests/support/leaks.h"
#include "tests/support/matchers.h"
#include "tests/support/shared.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;

// Far longer than the deadline of every test: a job that reaches it fails the test.
constexpr absl::Duration kNever = absl::Hours(1);

// The error of the other clients after the loss of client 1. The loss causes it: no deadline ends a
// wait here.
Status expect_lost(const Status& status) {
  return expect_error(status, StatusCode::kUnavailable, {"client 1 ", "lost"});
}

TEST(LossTest, KilledInAllReduce) {
  Shared<std::atomic<pid_t>> victim;
  Shared<std::atomic<int>> killed;
  const std::vector<Status> statuses =
      run_processes({.num_clients = 3}, [&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2}));
        std::vector<float> data(16 << 20, 0.0f);  // 64 MiB
        if (client.client_id() == 1) *victim = getpid();
        // One after another, so that one is running wherever the signal strikes.
        Status status;
        for (int i = 0; status.ok(); ++i) {
          const Work work = group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum);
          if (i == 2 && client.client_id() == 0) {
            *killed = 1;
            kill(*victim, SIGKILL);
          }
          status = work.wait(kNever);
        }
        TESSERA_REQUIRE(*killed == 1, status.ToString());
        return expect_lost(status);
      });
  EXPECT_THAT(statuses[0], IsOk());
  EXPECT_THAT(statuses[1], StatusIs(StatusCode::kAborted));
  EXPECT_THAT(statuses[2], IsOk());
}

TEST(LossTest, ExitsBetweenCollectives) {
  const std::vector<Status> statuses =
      run_processes({.num_clients = 3}, [](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2}));
        std::vector<float> data(8, 1.0f);
        const auto reduce = [&] {
          return group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum).wait(kNever);
        };
        TESSERA_RETURN_IF_ERROR(reduce());
        if (client.client_id() == 1) _exit(0);
        // More of them than the group has records, none of which the lost one leaves any more.
        for (int i = 0; i < 50; ++i) TESSERA_RETURN_IF_ERROR(expect_lost(reduce()));
        // The processes live: a job of the two goes on.
        TESSERA_ASSIGN_OR_RETURN(const Mesh rest, create_mesh(client, {{"x", 2}}, {0, 2}));
        const DTensor x = iota<float>({5}, Layout::parse(rest, "[x]"));
        TESSERA_RETURN_IF_ERROR(expect_iota<float>(relayout(x, Layout::parse(rest, "[-]"))));
        return client.shutdown(absl::Seconds(20));
      });
  EXPECT_THAT(statuses[0], IsOk());
  EXPECT_THAT(statuses[2], IsOk());
}

// Row stopped_then_resumed of tests/facts/dtensor.md.
TEST(LossTest, ResumedAfterStop) {
  JobSpec spec = {.num_clients = 3};
  Shared<std::atomic<pid_t>> stopped;
  Gate resumed;
  const std::vector<Status> statuses = run_processes(spec, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 3}}));
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2}));
    std::vector<float> in(8, 1.0f);
    std::vector<float> out(8, 0.0f);
    const auto reduce = [&] {
      return group.all_reduce<float>(in, absl::MakeSpan(out), ReduceOp::kSum).wait(kNever);
    };
    if (client.client_id() == 1) {
      *stopped = getpid();
      kill(getpid(), SIGSTOP);
      TESSERA_RETURN_IF_ERROR(
          expect_error(reduce(), StatusCode::kUnavailable, {"client 1 ", "declared lost"}));
      TESSERA_RETURN_IF_ERROR(expect_error(mesh.barrier("late", kNever), StatusCode::kUnavailable,
                                           {"client 1 ", "declared lost"}));
      resumed.open(2);
      return absl::OkStatus();
    }
    TESSERA_RETURN_IF_ERROR(
        expect_error(reduce(), StatusCode::kUnavailable, {"client 1 ", "lost"}));
    if (client.client_id() == 0) kill(*stopped, SIGCONT);
    TESSERA_RETURN_IF_ERROR(resumed.wait());
    TESSERA_REQUIRE(out == std::vector<float>(8, 0.0f), "no result changes");
    return absl::OkStatus();
  });
  for (const Status& status : statuses) EXPECT_THAT(status, IsOk());
}

// Shuts down one direction of every connection of this process to other clients of its host.
int shut_down_links(int direction) {
  int num_links = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_un peer = {};
    socklen_t size = sizeof peer;
    // Pipes and files are no sockets, and gRPC's are of another family.
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.sun_family == AF_UNIX && shutdown(fd, direction) == 0) ++num_links;
  }
  return num_links;
}

class HalfOpenTest : public ::testing::TestWithParam<int> {};

// Row half_open.
TEST_P(HalfOpenTest, IsALossOnBothSides) {
  const int direction = GetParam();
  const std::vector<Status> statuses =
      run_processes({.num_clients = 3}, [&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 3}}));
        TESSERA_RETURN_IF_ERROR(mesh.barrier("before", kNever));
        if (client.client_id() == 1) TESSERA_REQUIRE(shut_down_links(direction) == 2);
        // Barriers go through shared memory, and pass until the notice of the connection comes.
        Status status;
        while (status.ok()) status = mesh.barrier("after", kNever);
        return expect_error(status, StatusCode::kUnavailable, {"lost"});
      });
  for (const Status& status : statuses) EXPECT_THAT(status, IsOk());
}

INSTANTIATE_TEST_SUITE_P(Directions, HalfOpenTest, ::testing::Values(SHUT_RD, SHUT_WR),
                         [](const auto& info) {
                           return std::string(info.param == SHUT_RD ? "Reading" : "Writing");
                         });

// Jobs that end well, and jobs that lose a client by SIGKILL.
TEST(LossTest, NothingIsLeftBehind) {
  const std::set<std::string> shm = tessera_entries_of("/dev/shm");
  const std::set<std::string> fds = entries_of("/proc/self/fd");
  for (const bool killed : {false, true}) {
    const Status status =
        run_clients({.setting = Setting::kProcesses, .num_clients = 3, .devices_per_client = 2},
                    [&](Client& client) -> Status {
                      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 6}}));
                      const DTensor x = iota<float>({1 << 16}, Layout::parse(mesh, "[x]"));
                      TESSERA_RETURN_IF_ERROR(relayout(x, Layout::parse(mesh, "[-]")).await());
                      if (killed && client.client_id() == 1) kill(getpid(), SIGKILL);
                      return killed ? mesh.barrier("b", kNever) : absl::OkStatus();
                    });
    if (killed) {
      EXPECT_THAT(status, StatusIs(StatusCode::kUnavailable, HasSubstr("client 1 ")));
    } else {
      EXPECT_THAT(status, IsOk());
    }
    EXPECT_EQ(entries_of("/proc/self/fd"), fds);
    EXPECT_EQ(tessera_entries_of("/dev/shm"), shm);
    // No child of this process is left, running or dead.
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  }
}

}  // namespace
}  // namespace tessera::testing
