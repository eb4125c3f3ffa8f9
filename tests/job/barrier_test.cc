// SPDX-License-Identifier: Apache-2.0
//
// The barrier, by the rows of tests/facts/barrier.md, with clients as threads, as processes and
// as processes of two hosts. A row's name is the test's.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "dtensor/client.h"
#include "dtensor/local_map.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"
#include "tests/support/shared.h"
#include "tests/support/verdicts.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;

// Where the message counts the clients that came in time: more than a busy machine pauses.
constexpr absl::Duration kTimeout = absl::Seconds(1);

StatusOr<Mesh> line(const Client& client, int n) { return create_mesh(client, {{"x", n}}); }

struct Form {
  const char* name;
  Setting setting;
  int num_hosts;
};
constexpr Form kForms[] = {{"Threads", Setting::kThreads, 1},
                           {"Processes", Setting::kProcesses, 1},
                           {"Hosts", Setting::kProcesses, 2}};
std::ostream& operator<<(std::ostream& out, const Form& form) { return out << form.name; }

class BarrierTest : public ::testing::TestWithParam<Form> {
 protected:
  Status run(int num_clients, const ClientBody& body, JobSpec spec = {}) {
    spec.setting = GetParam().setting;
    spec.num_clients = num_clients;
    if (GetParam().num_hosts > 1) spec.hooks.host_ids = on_hosts(num_clients, GetParam().num_hosts);
    return run_clients(spec, body);
  }

  // The clients `callers` of a mesh make the call, which gives all of them the same error. The
  // other clients have the mesh too, and wait.
  void expect_same_error(int num_clients, const std::vector<int>& callers,
                         const std::function<Status(const Client&, const Mesh&)>& call,
                         StatusCode code, const std::vector<std::string>& texts) {
    Verdicts verdicts;
    Gate done;
    const auto body = [&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, line(client, num_clients));
      const int id = client.client_id();
      if (std::find(callers.begin(), callers.end(), id) == callers.end()) return done.wait();
      const Status status = expect_error(verdicts.add(id, call(client, mesh)), code, texts);
      if (id == callers.front()) done.open(num_clients - callers.size());
      return status;
    };
    EXPECT_THAT(run(num_clients, body), IsOk());
    EXPECT_THAT(verdicts.same(callers), IsOk());
  }
};

// Each client adds 1 before each call, one client after the other, with another first one in each
// round: no call returns before all clients have added theirs.
Status all_come_first(Client& client, Shared<std::atomic<int>>& calls, Gate* gates, int rounds) {
  const int n = client.num_clients();
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, line(client, n));
  for (int round = 0; round < rounds; ++round) {
    const int place = (client.client_id() + round) % n;
    if (place > 0) TESSERA_RETURN_IF_ERROR(gates[place].wait());
    if (place + 1 < n) gates[place + 1].open();
    calls->fetch_add(1);
    TESSERA_RETURN_IF_ERROR(mesh.barrier("all_arrive", absl::Seconds(50)));
    const int now = calls->load();
    TESSERA_REQUIRE(now >= (round + 1) * n, "passed round ", round, " after ", now, " calls");
  }
  return absl::OkStatus();
}

TEST_P(BarrierTest, AllArrive) {
  Shared<std::atomic<int>> calls;
  Gate gates[3];
  EXPECT_THAT(run(3, [&](Client& client) { return all_come_first(client, calls, gates, 300); }),
              IsOk());
}

TEST_P(BarrierTest, ValueIsTheMeshSize) {
  JobSpec spec;
  spec.devices_per_client = 3;
  EXPECT_THAT(
      run(
          2,
          [](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}, {"y", 3}}));
            return mesh.barrier("sum", absl::Seconds(10));
          },
          spec),
      IsOk());
}

TEST_P(BarrierTest, WrongSum) {
  Verdicts verdicts;
  JobSpec spec;
  spec.devices_per_client = 3;
  spec.hooks.barrier_term = [](int device_id) { return device_id == 4 ? 0 : 1; };
  EXPECT_THAT(
      run(
          2,
          [&](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}, {"y", 3}}));
            return expect_error(
                verdicts.add(client.client_id(), mesh.barrier("sum", absl::Seconds(10))),
                StatusCode::kInternal, {"the sum over the devices is 5", "expected 6"});
          },
          spec),
      IsOk());
  EXPECT_THAT(verdicts.same({0, 1}), IsOk());
}

TEST_P(BarrierTest, SameNameTwice) {
  EXPECT_THAT(run(3,
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, line(client, 3));
                    TESSERA_RETURN_IF_ERROR(mesh.barrier("b", absl::Seconds(10)));
                    return mesh.barrier("b", absl::Seconds(10));
                  }),
              IsOk());
}

// Rows subset_of_the_job and outsider_calls.
TEST_P(BarrierTest, SubsetOfTheJobAndOutsiderCalls) {
  EXPECT_THAT(
      run(3,
          [](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}, {0, 1}));
            // Client 2 owns none of its devices: it returns at once.
            return mesh.barrier("subset", absl::Seconds(10));
          }),
      IsOk());
}

TEST(BarrierAloneTest, OneClient) {
  EXPECT_THAT(
      run_isolated(
          absl::Seconds(60),
          []() -> Status {
            TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 4}));
            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}, {"y", 2}}));
            TESSERA_RETURN_IF_ERROR(mesh.barrier());
            TESSERA_RETURN_IF_ERROR(mesh.barrier("named", absl::Seconds(5)));
            return client.shutdown();
          }),
      IsOk());
}

TEST(BarrierAloneTest, AbstractMeshHasNone) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::create({{"x", 2}}));
  EXPECT_THAT(mesh.barrier("b"),
              StatusIs(StatusCode::kFailedPrecondition, ::testing::HasSubstr("create_mesh")));
}

// The clients call one after the other: the last one comes when all others wait.
TEST_P(BarrierTest, StaggeredArrivals) {
  Shared<std::atomic<int>> calls;
  Gate gates[8];
  EXPECT_THAT(run(8, [&](Client& client) { return all_come_first(client, calls, gates, 40); }),
              IsOk());
}

// Row barrier_tensor: one element per device; the fault makes the terms differ, so that the sum
// says which of them were added.
TEST_P(BarrierTest, AddsOneElementOfEachDevice) {
  JobSpec spec;
  spec.devices_per_client = 4;
  spec.hooks.barrier_term = [](int device_id) { return 1 << (3 * device_id); };
  EXPECT_THAT(
      run(
          2,
          [](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}, {"y", 4}}));
            // In octal a digit 1 for each of eight devices.
            return expect_error(
                mesh.barrier("sum", absl::Seconds(50)), StatusCode::kInternal,
                {absl::StrCat("the sum over the devices is ", 011111111, ", expected 8")});
          },
          spec),
      IsOk());
}

// The time passes from the first call on, whichever client's it is.
TEST_P(BarrierTest, LateClientGetsTheVerdict) {
  Verdicts verdicts;
  Shared<std::atomic<int64_t>> called_ns[2];
  Gate timed_out;
  Gate late_done;
  const auto on_time = [&](const Mesh& mesh, int id) -> Status {
    *called_ns[id] = absl::ToUnixNanos(steady_now());
    const Status status = verdicts.add(id, mesh.barrier("epoch_end", kTimeout));
    const absl::Time first =
        absl::FromUnixNanos(std::min(called_ns[0]->load(), called_ns[1]->load()));
    const absl::Duration took = steady_now() - first;
    timed_out.open();
    TESSERA_REQUIRE(took >= kTimeout, absl::FormatDuration(took));
    TESSERA_RETURN_IF_ERROR(late_done.wait());
    return expect_error(status, StatusCode::kDeadlineExceeded,
                        {"barrier \"epoch_end\" on {x=3}", "2 of 3 clients arrived in 1 s",
                         "missing client 2", "pid "});
  };
  const auto late = [&](const Mesh& mesh) -> Status {
    TESSERA_RETURN_IF_ERROR(timed_out.wait());
    TESSERA_RETURN_IF_ERROR(timed_out.wait());
    // At once: it would wait for longer than the test.
    const Status status = verdicts.add(2, mesh.barrier("epoch_end", absl::Hours(1)));
    late_done.open(2);
    return expect_error(status, StatusCode::kDeadlineExceeded);
  };
  EXPECT_THAT(run(3,
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, line(client, 3));
                    const int id = client.client_id();
                    TESSERA_RETURN_IF_ERROR(id == 2 ? late(mesh) : on_time(mesh, id));
                    return mesh.barrier("next", absl::Seconds(20));
                  }),
              IsOk());
  EXPECT_THAT(verdicts.same({0, 1, 2}), IsOk());
}

TEST_P(BarrierTest, AllMissingAreNamed) {
  expect_same_error(
      8, {0, 2, 5}, [](const Client&, const Mesh& mesh) { return mesh.barrier("b", kTimeout); },
      StatusCode::kDeadlineExceeded,
      {"3 of 8 clients", "client 1 ", "client 3 ", "client 4 ", "client 6 ", "client 7 "});
}

TEST_P(BarrierTest, EarliestDeadlineDecides) {
  const auto call = [](const Client& client, const Mesh& mesh) {
    // An hour is longer than the test may take.
    return mesh.barrier("b", client.client_id() == 0 ? absl::Hours(1) : kTimeout);
  };
  expect_same_error(3, {0, 1}, call, StatusCode::kDeadlineExceeded, {"in 1 s", "client 2"});
}

// A poll once a second returns later in every round. A busy machine does so in some.
TEST_P(BarrierTest, DeadlineIsNotPolled) {
  Gate done;
  EXPECT_THAT(
      run(2,
          [&](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, line(client, 2));
            if (client.client_id() == 1) return done.wait();
            absl::Duration shortest = absl::InfiniteDuration();
            for (int round = 0; round < 40 && shortest > absl::Milliseconds(800); ++round) {
              const absl::Time start = steady_now();
              TESSERA_RETURN_IF_ERROR(expect_error(mesh.barrier("b", absl::Milliseconds(300)),
                                                   StatusCode::kDeadlineExceeded, {"client 1"}));
              const absl::Duration took = steady_now() - start;
              TESSERA_REQUIRE(took >= absl::Milliseconds(300));
              shortest = std::min(shortest, took);
            }
            done.open();
            TESSERA_REQUIRE(shortest <= absl::Milliseconds(800));
            return absl::OkStatus();
          }),
      IsOk());
}

TEST_P(BarrierTest, ZeroTimeout) {
  expect_same_error(
      2, {0},
      [](const Client&, const Mesh& mesh) { return mesh.barrier("b", absl::ZeroDuration()); },
      StatusCode::kDeadlineExceeded,
      {"barrier \"b\" on {x=2}: the timeout is 0 or had already passed: 1 of 2 clients arrived; "
       "missing client 1 "});
}

TEST_P(BarrierTest, UsableAfterATimeout) {
  Gate timed_out;
  EXPECT_THAT(
      run(3,
          [&](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, line(client, 3));
            if (client.client_id() == 2) {
              TESSERA_RETURN_IF_ERROR(timed_out.wait());
              TESSERA_RETURN_IF_ERROR(timed_out.wait());
            } else {
              TESSERA_RETURN_IF_ERROR(expect_error(mesh.barrier("a", absl::Milliseconds(300)),
                                                   StatusCode::kDeadlineExceeded));
              timed_out.open();
            }
            return mesh.barrier("c", absl::Seconds(20));
          }),
      IsOk());
}

TEST_P(BarrierTest, IsBehindEarlierWork) {
  // A slow local_map on client 1: the barrier of client 0 does not pass before it has ended.
  Gate slow_began;
  Gate slow_may_end;
  Gate slow_ended;
  EXPECT_THAT(run(2,
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, line(client, 2));
                    const DTensor slow =
                        local_map(Layout::parse(mesh, "[x]"), {2}, DType::kInt32, {},
                                  [&, id = client.client_id()](LocalContext& local) -> Status {
                                    local.output<int32_t>().data[0] = 1;
                                    if (id == 0) return absl::OkStatus();
                                    slow_began.open();
                                    TESSERA_RETURN_IF_ERROR(slow_may_end.wait());
                                    slow_ended.open();
                                    return absl::OkStatus();
                                  });
                    if (client.client_id() == 0) {
                      TESSERA_RETURN_IF_ERROR(slow_began.wait());
                      TESSERA_RETURN_IF_ERROR(expect_error(
                          mesh.barrier("early", absl::Milliseconds(200)),
                          StatusCode::kDeadlineExceeded, {"client 1 (", "still in local_map"}));
                      slow_may_end.open();
                    } else {
                      TESSERA_RETURN_IF_ERROR(expect_error(mesh.barrier("early", absl::Seconds(20)),
                                                           StatusCode::kDeadlineExceeded));
                    }
                    TESSERA_RETURN_IF_ERROR(mesh.barrier("late", absl::Seconds(20)));
                    if (client.client_id() == 0) return slow_ended.wait();
                    return slow.await();
                  }),
              IsOk());
}

TEST_P(BarrierTest, NamesDiffer) {
  Verdicts verdicts;
  EXPECT_THAT(
      run(2,
          [&](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, line(client, 2));
            TESSERA_RETURN_IF_ERROR(expect_error(
                verdicts.add(
                    client.client_id(),
                    mesh.barrier(client.client_id() == 0 ? "ckpt" : "step", absl::Hours(1))),
                StatusCode::kInvalidArgument, {"\"ckpt\"", "\"step\"", "client 0 ", "client 1 "}));
            return mesh.barrier("again", absl::Seconds(20));
          }),
      IsOk());
  EXPECT_THAT(verdicts.same({0, 1}), IsOk());
}

TEST_P(BarrierTest, NamesDifferWhileAThirdIsMissing) {
  const auto call = [](const Client& client, const Mesh& mesh) {
    return mesh.barrier(client.client_id() == 0 ? "ckpt" : "step", absl::Seconds(60));
  };
  expect_same_error(3, {0, 1}, call, StatusCode::kInvalidArgument, {"\"ckpt\"", "\"step\""});
}

TEST_P(BarrierTest, MeshesDiffer) {
  Verdicts verdicts;
  Gate done;
  EXPECT_THAT(
      run(3,
          [&](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Mesh a, create_mesh(client, {{"x", 2}}, {0, 1}));
            TESSERA_ASSIGN_OR_RETURN(const Mesh b, create_mesh(client, {{"x", 2}}, {1, 2}));
            if (client.client_id() == 2) return done.wait();
            const Status status = expect_error(
                verdicts.add(client.client_id(),
                             (client.client_id() == 0 ? a : b).barrier("same", absl::Seconds(60))),
                StatusCode::kInvalidArgument,
                {"barrier \"same\" on {x=2}", "barrier \"same\" on {x=2} on 1,2", "client 0 ",
                 "client 1 "});
            if (client.client_id() == 0) done.open();
            return status;
          }),
      IsOk());
  EXPECT_THAT(verdicts.same({0, 1}), IsOk());
}

TEST_P(BarrierTest, BarrierAgainstCollective) {
  const auto call = [](const Client& client, const Mesh& mesh) -> Status {
    if (client.client_id() == 0) return mesh.barrier("b", absl::Hours(1));
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1}));
    const std::vector<float> in = {1};
    std::vector<float> out(1);
    return group.all_reduce(in, out, ReduceOp::kSum).wait(absl::Seconds(60));
  };
  expect_same_error(2, {0, 1}, call, StatusCode::kInvalidArgument, {"barrier \"b\"", "all_reduce"});
}

INSTANTIATE_TEST_SUITE_P(Settings, BarrierTest, ::testing::ValuesIn(kForms),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera::testing
