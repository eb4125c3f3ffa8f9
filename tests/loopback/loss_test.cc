// SPDX-License-Identifier: Apache-2.0
//
// Jobs over two hosts that lose a client, and waits that end at a deadline: what the clients of
// both hosts are told. Clients 0 and 1 are on one host, client 2 on another.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"
#include "tests/support/shared.h"
#include "tests/support/tensors.h"
#include "tests/support/verdicts.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using ::testing::Each;

// Far longer than the deadline of every test: a job that reaches it fails the test.
constexpr absl::Duration kNever = absl::Hours(1);
constexpr int kClients = 3;

JobSpec two_hosts() {
  return {.num_clients = kClients, .hooks = {.host_ids = on_hosts(kClients, 2)}};
}

// The victim is on the host of another client, or alone on its own.
class LossBetweenHostsTest : public ::testing::TestWithParam<int> {
 protected:
  static int victim() { return GetParam(); }
  static std::string victim_name() { return absl::StrCat("client ", victim(), " "); }
  static std::vector<int> rest() {
    std::vector<int> rest;
    for (int i = 0; i < kClients; ++i) {
      if (i != victim()) rest.push_back(i);
    }
    return rest;
  }
  static void expect_survivors(const std::vector<Status>& statuses) {
    for (const int survivor : rest()) EXPECT_THAT(statuses[survivor], IsOk()) << survivor;
  }
};
INSTANTIATE_TEST_SUITE_P(Clients, LossBetweenHostsTest, ::testing::Values(1, 2));

TEST_P(LossBetweenHostsTest, KilledInAllReduce) {
  Shared<std::atomic<pid_t>> target;
  const std::vector<Status> statuses = run_processes(two_hosts(), [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2}));
    std::vector<float> data(4 << 20, 0.0f);  // 16 MiB
    if (client.client_id() == victim()) *target = getpid();
    // One after another, so that one is running wherever the signal strikes.
    Status status;
    for (int i = 0; status.ok(); ++i) {
      const Work work = group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum);
      if (i == 2 && client.client_id() == 0) kill(*target, SIGKILL);
      status = work.wait(kNever);
    }
    TESSERA_RETURN_IF_ERROR(
        expect_error(status, StatusCode::kUnavailable, {victim_name(), "lost"}));
    // The processes live: a job of the rest goes on.
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}, rest()));
    const DTensor x = iota<float>({5}, Layout::parse(mesh, "[x]"));
    TESSERA_RETURN_IF_ERROR(expect_iota<float>(relayout(x, Layout::parse(mesh, "[-]"))));
    return client.shutdown(absl::Seconds(20));
  });
  expect_survivors(statuses);
  EXPECT_THAT(statuses[victim()], StatusIs(StatusCode::kAborted));
}

TEST_P(LossBetweenHostsTest, ExitsBetweenCollectives) {
  Gate reduced;
  const std::vector<Status> statuses = run_processes(two_hosts(), [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2}));
    std::vector<float> data(8, 1.0f);
    const auto reduce = [&] {
      return group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum).wait(kNever);
    };
    TESSERA_RETURN_IF_ERROR(reduce());
    if (client.client_id() == victim()) {
      for (int i = 0; i < kClients - 1; ++i) TESSERA_RETURN_IF_ERROR(reduced.wait());
      _exit(0);
    }
    reduced.open();
    // More of them than the group has records.
    for (int i = 0; i < 20; ++i) {
      TESSERA_RETURN_IF_ERROR(
          expect_error(reduce(), StatusCode::kUnavailable, {victim_name(), "lost"}));
    }
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}, rest()));
    TESSERA_RETURN_IF_ERROR(mesh.barrier("rest", absl::Seconds(60)));
    return client.shutdown();
  });
  expect_survivors(statuses);
}

// A client that has shut down without the others is told to them on both hosts.
TEST_P(LossBetweenHostsTest, LeavesWithoutTheOthers) {
  Gate told;
  const std::vector<Status> statuses = run_processes(two_hosts(), [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2}));
    TESSERA_RETURN_IF_ERROR(group.barrier().wait(kNever));
    if (client.client_id() == victim()) {
      const Status alone = client.shutdown(absl::Milliseconds(100));
      for (int i = 0; i < kClients - 1; ++i) TESSERA_RETURN_IF_ERROR(told.wait());
      return expect_error(alone, StatusCode::kDeadlineExceeded, {"shutdown"});
    }
    for (int i = 0; i < 3; ++i) {
      TESSERA_RETURN_IF_ERROR(expect_error(group.barrier().wait(kNever), StatusCode::kUnavailable,
                                           {victim_name(), "has left the job"}));
    }
    told.open();
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}, rest()));
    TESSERA_RETURN_IF_ERROR(mesh.barrier("rest", absl::Seconds(60)));
    return client.shutdown();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST_P(LossBetweenHostsTest, StoppedClientIsFoundByHeartbeats) {
  Shared<std::atomic<pid_t>> target;
  Gate resumed;
  JobSpec spec = two_hosts();
  spec.options.heartbeat_interval = absl::Milliseconds(500);
  const std::vector<Status> statuses = run_processes(spec, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2}));
    std::vector<float> data(1024, 1.0f);
    const auto reduce = [&] {
      return group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum).wait(kNever);
    };
    TESSERA_RETURN_IF_ERROR(reduce());
    if (client.client_id() == victim()) {
      *target = getpid();
      kill(getpid(), SIGSTOP);
      TESSERA_RETURN_IF_ERROR(
          expect_error(reduce(), StatusCode::kUnavailable, {victim_name(), "declared lost"}));
      resumed.open(2);
      return absl::OkStatus();
    }
    TESSERA_RETURN_IF_ERROR(
        expect_error(reduce(), StatusCode::kUnavailable, {victim_name(), "lost"}));
    if (client.client_id() == 0) kill(*target, SIGCONT);
    return resumed.wait();
  });
  for (const Status& status : statuses) EXPECT_THAT(status, IsOk());
}

// A client that does not come is named to the clients of both hosts, in one
// text; and the mesh can be used when it has come.
TEST_P(LossBetweenHostsTest, ALateClientIsNamedAtTheDeadline) {
  const std::vector<Status> statuses = run_processes(two_hosts(), [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", kClients}}));
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2}));
    TESSERA_RETURN_IF_ERROR(mesh.barrier("start", absl::Seconds(60)));
    // Messages tell that the others have given up: they follow the verdict.
    std::vector<uint8_t> note(1);
    if (client.client_id() == victim()) {
      for (const int other : rest()) {
        TESSERA_RETURN_IF_ERROR(group.recv<uint8_t>(absl::MakeSpan(note), other).wait(kNever));
      }
    }
    const Status status = mesh.barrier("middle", absl::Milliseconds(300));
    TESSERA_RETURN_IF_ERROR(expect_error(
        status, StatusCode::kDeadlineExceeded,
        {"barrier \"middle\" on {x=3}: 2 of 3 clients arrived in 300 ms", victim_name()}));
    if (client.client_id() != victim()) {
      TESSERA_RETURN_IF_ERROR(group.send<uint8_t>(note, victim()).wait(kNever));
    }
    TESSERA_RETURN_IF_ERROR(mesh.barrier("end", absl::Seconds(60)));
    return client.shutdown();
  });
  for (const Status& status : statuses) EXPECT_THAT(status, IsOk());
}

// A client comes 50 ms or more after the deadline of another one: either both pass the
// barrier or none does.
TEST(DeadlineBetweenHostsTest, OneThatIsLateDoesNotPassAlone) {
  constexpr int kRounds = 8;
  Verdicts verdicts[kRounds];
  Gate called[kRounds];
  constexpr absl::Duration kTimeout = absl::Milliseconds(100);
  const JobSpec spec = {.num_clients = 2, .hooks = {.host_ids = on_hosts(2, 2)}};
  const std::vector<Status> statuses = run_processes(spec, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
    for (int round = 0; round < kRounds; ++round) {
      const bool is_late = client.client_id() == 1;
      if (is_late) {
        TESSERA_RETURN_IF_ERROR(called[round].wait());
        const absl::Duration delay = kTimeout + absl::Milliseconds(50 * (round + 1));
        absl::SleepFor(delay);  // sleep: it is to come late
      } else {
        called[round].open();
      }
      const Status status = mesh.barrier("b", is_late ? absl::Seconds(50) : kTimeout);
      verdicts[round].add(client.client_id(), status).IgnoreError();
      TESSERA_RETURN_IF_ERROR(mesh.barrier("end of round", absl::Seconds(50)));
    }
    return client.shutdown();
  });
  EXPECT_THAT(statuses, ::testing::Each(IsOk()));
  for (Verdicts& verdict : verdicts) EXPECT_THAT(verdict.same({0, 1}), IsOk());
}

// Each host may find a mistake of the program by itself, and two members of its own that differ.
TEST(MismatchBetweenHostsTest, IsToldInOneText) {
  constexpr int kMembers = 4;
  constexpr int kRounds = 300;
  constexpr size_t kTextBytes = 512;
  struct Texts {
    char of[kRounds][kMembers][kTextBytes];
  };
  Shared<Texts> texts;
  const JobSpec spec = {.num_clients = kMembers, .hooks = {.host_ids = on_hosts(kMembers, 2)}};
  const std::vector<Status> statuses = run_processes(spec, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2, 3}));
    const int id = client.client_id();
    for (int round = 0; round < kRounds; ++round) {
      std::vector<float> data(id == 2 ? 65 : 64, 1.0f);
      const Status told =
          group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum).wait(kNever);
      TESSERA_RETURN_IF_ERROR(
          expect_error(told, StatusCode::kInvalidArgument, {"count differs between clients"}));
      told.message().copy(texts->of[round][id], kTextBytes - 1);
    }
    return client.shutdown();
  });
  for (const Status& status : statuses) EXPECT_THAT(status, IsOk());
  for (int round = 0; round < kRounds; ++round) {
    for (int id = 1; id < kMembers; ++id) {
      ASSERT_STREQ(texts->of[round][id], texts->of[round][0]) << round;
    }
  }
}

}  // namespace
}  // namespace tessera::testing
