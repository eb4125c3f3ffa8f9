// SPDX-License-Identifier: Apache-2.0
//
// Hosts that cannot be reached or are gone, in the middle of collectives and barriers: what the
// clients of each host are told, that none keeps waiting, and how the others go on.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/hosts/hosts.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/shared.h"
#include "tests/support/tensors.h"
#include "tests/support/verdicts.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using ::testing::Each;

// Far longer than the deadline of every test: a job that reaches it fails the test.
constexpr absl::Duration kNever = absl::Hours(1);

constexpr char kCoordinator[] = "10.77.0.254:4000";
constexpr char kHostLost[] =
    "host-b is unreachable: clients 2, 3 missed more than 3 heartbeats of 500 ms";

HostsJob job_of(std::vector<int> clients_per_host, Backend backend = Backend::kAuto) {
  HostsJob job = {.clients_per_host = std::move(clients_per_host)};
  job.options.backend = backend;
  // A host that is silent is found by these alone.
  job.options.heartbeat_interval = absl::Milliseconds(500);
  return job;
}

// Runs `step` until it fails. Opens the gate in the third round.
Status repeat(Gate& third, const std::function<Status()>& step) {
  Status status;
  for (int i = 0; status.ok(); ++i) {
    if (i == 2) third.open();
    status = step();
  }
  return status;
}

// A job of the devices of the clients that are left.
Status go_on(const Client& client, std::vector<int> rest) {
  const int64_t size = static_cast<int64_t>(rest.size());
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", size}}, rest));
  const DTensor x = iota<float>({7, 3}, Layout::parse(mesh, "[x, -]"));
  TESSERA_RETURN_IF_ERROR(expect_iota<float>(relayout(x, Layout::parse(mesh, "[-, x]"))));
  return mesh.barrier("rest", absl::Seconds(60));
}

struct Interruption {
  const char* name;
  // The failure of host 1, and its repair.
  Status (*strike)(const Hosts& hosts);
  Status (*repair)(const Hosts& hosts);
  Backend backend = Backend::kAuto;
};
const Interruption kCable = {"Cable", [](const Hosts& hosts) { return hosts.set_link(1, false); },
                             [](const Hosts& hosts) { return hosts.set_link(1, true); }};
const Interruption kSwitch = {"Switch",
                              [](const Hosts& hosts) { return hosts.set_switch(1, false); },
                              [](const Hosts& hosts) { return hosts.set_switch(1, true); }};
std::ostream& operator<<(std::ostream& out, const Interruption& i) { return out << i.name; }

// Under sanitizers the cable alone: nearly all of the time is heartbeats.
std::vector<Interruption> interruptions() {
  if (kSanitized) return {kCable};
  std::vector<Interruption> all = {kCable, kSwitch};
  if (kHasGloo) all.push_back({"CableByGloo", kCable.strike, kCable.repair, Backend::kGloo});
  return all;
}

class InterruptionTest : public ::testing::TestWithParam<Interruption> {};
INSTANTIATE_TEST_SUITE_P(Kinds, InterruptionTest, ::testing::ValuesIn(interruptions()),
                         [](const auto& info) { return info.param.name; });

class BarriersTest : public ::testing::TestWithParam<Interruption> {};
INSTANTIATE_TEST_SUITE_P(Kinds, BarriersTest,
                         ::testing::ValuesIn(kSanitized ? std::vector{kCable}
                                                        : std::vector{kCable, kSwitch}),
                         [](const auto& info) { return info.param.name; });

// Clients 0 and 1 keep the coordinator, clients 2 and 3 do not.
TEST_P(InterruptionTest, InAnAllReduceAndRepairedForTheNextJob) {
  TESSERA_MAKE_HOSTS(hosts, 2);
  Gate third;
  HostsJob job = job_of({2, 2}, GetParam().backend);
  job.outside = [&]() -> Status {
    TESSERA_RETURN_IF_ERROR(third.wait());
    return GetParam().strike(hosts);
  };
  const std::vector<Status> statuses = run_on_hosts(hosts, job, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2, 3}));
    std::vector<float> data(4 << 20, 0.0f);  // 16 MiB
    const Status status = repeat(third, [&] {
      return group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum).wait(kNever);
    });
    if (client.client_id() >= 2) {
      return expect_error(status, StatusCode::kUnavailable, {kCoordinator});
    }
    TESSERA_RETURN_IF_ERROR(expect_error(status, StatusCode::kUnavailable, {kHostLost}));
    TESSERA_RETURN_IF_ERROR(go_on(client, {0, 1}));
    return client.shutdown();
  });
  EXPECT_THAT(statuses, Each(IsOk()));

  EXPECT_THAT(GetParam().repair(hosts), IsOk());
  EXPECT_THAT(run_on_hosts(hosts, job_of({2, 2}, GetParam().backend),
                           [](Client& client) -> Status {
                             TESSERA_RETURN_IF_ERROR(go_on(client, {0, 1, 2, 3}));
                             return client.shutdown();
                           }),
              Each(IsOk()));
}

// The barrier waits for the other host when that is cut off.
TEST_P(InterruptionTest, InABarrier) {
  TESSERA_MAKE_HOSTS(hosts, 2);
  for (const int waiting_host : {0, 1}) {
    Gate waits;
    Gate is_told;
    HostsJob job = job_of({2, 2}, GetParam().backend);
    job.outside = [&]() -> Status {
      TESSERA_RETURN_IF_ERROR(waits.wait());
      TESSERA_RETURN_IF_ERROR(waits.wait());
      return GetParam().strike(hosts);
    };
    const std::vector<Status> statuses = run_on_hosts(hosts, job, [&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}}));
      TESSERA_RETURN_IF_ERROR(mesh.barrier("start", absl::Seconds(60)));
      const int host = client.client_id() / 2;
      if (host == waiting_host) {
        waits.open();
      } else {
        TESSERA_RETURN_IF_ERROR(is_told.wait());
      }
      const Status status = mesh.barrier("middle");
      if (host == waiting_host) is_told.open();
      if (host == 1) {
        // Clients 2 and 3 have the letters that host 0 sent before, and may pass the barrier that
        // failed there (docs/internals/between_hosts.md). They are told at the next one.
        const bool passes = status.ok() && waiting_host == 0;
        return expect_error(passes ? mesh.barrier("next") : status, StatusCode::kUnavailable,
                            {kCoordinator});
      }
      TESSERA_RETURN_IF_ERROR(expect_error(status, StatusCode::kUnavailable, {kHostLost}));
      TESSERA_RETURN_IF_ERROR(go_on(client, {0, 1}));
      return client.shutdown();
    });
    EXPECT_THAT(statuses, Each(IsOk())) << "host " << waiting_host << " waits";
    EXPECT_THAT(GetParam().repair(hosts), IsOk());
  }
}

// The link is interrupted at any moment of a series of barriers. The clients of a host pass as many
// as each other. Clients of the other host may pass one more or less: the letters of one host have
// arrived, and the other's have not.
TEST_P(BarriersTest, ClientsOfAHostPassTheSameBarriers) {
  TESSERA_MAKE_HOSTS(hosts, 2);
  struct Counts {
    std::atomic<int> of[4];
  };
  for (int round = 0; round < 3; ++round) {
    Shared<Counts> passed;
    Gate third;
    HostsJob job = job_of({2, 2});
    job.outside = [&]() -> Status {
      TESSERA_RETURN_IF_ERROR(third.wait());
      return GetParam().strike(hosts);
    };
    EXPECT_THAT(
        run_on_hosts(hosts, job,
                     [&](Client& client) -> Status {
                       TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}}));
                       const Status status = repeat(third, [&]() -> Status {
                         TESSERA_RETURN_IF_ERROR(mesh.barrier("next"));
                         ++passed->of[client.client_id()];
                         return absl::OkStatus();
                       });
                       return expect_error(status, StatusCode::kUnavailable);
                     }),
        Each(IsOk()));
    EXPECT_EQ(passed->of[0], passed->of[1]);
    EXPECT_EQ(passed->of[2], passed->of[3]);
    EXPECT_LE(std::abs(passed->of[0] - passed->of[2]), 1);
    EXPECT_THAT(GetParam().repair(hosts), IsOk());
  }
}

// All clients keep the coordinator, so none is lost, and no host reaches the other. The clients of
// a host are told one thing, and each host goes on by itself.
class PartitionTest : public ::testing::Test {
 protected:
  static void run(absl::Duration heartbeat_interval, absl::Duration timeout,
                  const std::function<Status(const Status&)>& check) {
    TESSERA_MAKE_HOSTS(hosts, 2);
    Gate third;
    Verdicts verdicts;
    HostsJob job = job_of({2, 2});
    job.options.heartbeat_interval = heartbeat_interval;
    job.outside = [&]() -> Status {
      TESSERA_RETURN_IF_ERROR(third.wait());
      return hosts.set_apart(true);
    };
    const auto body = [&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2, 3}));
      std::vector<float> data(4 << 20, 0.0f);  // 16 MiB
      const Status status = repeat(third, [&] {
        return group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum).wait(timeout);
      });
      verdicts.add(client.client_id(), status).IgnoreError();
      TESSERA_RETURN_IF_ERROR(check(status));
      TESSERA_RETURN_IF_ERROR(
          go_on(client, client.client_id() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3}));
      return client.shutdown();
    };
    EXPECT_THAT(run_on_hosts(hosts, job, body), Each(IsOk()));
    // A host may have passed one all_reduce more than the other.
    EXPECT_THAT(verdicts.same({0, 1}), IsOk());
    EXPECT_THAT(verdicts.same({2, 3}), IsOk());
  }
};

// The heartbeats are too slow to detect the loss.
TEST_F(PartitionTest, EndsAtTheDeadline) {
  run(absl::Seconds(20), absl::Seconds(5), [](const Status& status) -> Status {
    const bool names_late = absl::StrContains(status.message(), "; missing client ");
    const bool names_bytes = absl::StrContains(status.message(), " waits for bytes of client ");
    TESSERA_REQUIRE(names_late || names_bytes, status.ToString());
    return expect_error(status, StatusCode::kDeadlineExceeded, {"all_reduce"});
  });
}

TEST_F(PartitionTest, EndsWithoutADeadlineWhenNoneAnswers) {
  run(absl::Milliseconds(300), kNever, [](const Status& status) {
    return expect_error(status, StatusCode::kUnavailable,
                        {"all_reduce", " cannot be reached from host-", " asked client",
                         " in vain ", "while all reach the coordinator"});
  });
}

struct Kill {
  const char* name;
  int host;
  Backend backend = Backend::kAuto;
};
std::ostream& operator<<(std::ostream& out, const Kill& kill) { return out << kill.name; }

std::vector<Kill> kills() {
  std::vector<Kill> all = {{"OfTwoClients", 0}, {"OfOneClient", 1}};
  if (kHasGloo && !kSanitized) all.push_back({"OfOneClientByGloo", 1, Backend::kGloo});
  return all;
}

class KilledHostTest : public ::testing::TestWithParam<Kill> {};
INSTANTIATE_TEST_SUITE_P(Hosts, KilledHostTest, ::testing::ValuesIn(kills()),
                         [](const auto& info) { return info.param.name; });

// Clients 0 and 1 are on host 0, client 2 on host 1, client 3 on host 2.
TEST_P(KilledHostTest, SurvivorsAreToldAndGoOn) {
  const int host = GetParam().host;
  TESSERA_MAKE_HOSTS(hosts, 3);
  Gate third;
  HostsJob job = job_of({2, 1, 1}, GetParam().backend);
  job.outside = [&]() -> Status {
    TESSERA_RETURN_IF_ERROR(third.wait());
    return hosts.kill(host);
  };
  const std::vector<int> rest = host == 0 ? std::vector<int>{2, 3} : std::vector<int>{0, 1, 3};
  const std::vector<Status> statuses = run_on_hosts(hosts, job, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2, 3}));
    std::vector<float> data(4 << 20, 0.0f);  // 16 MiB
    const auto reduce = [&] {
      return group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum).wait(kNever);
    };
    const Status status = repeat(third, reduce);
    const char* loss = host == 0
                           ? "host-a is unreachable: clients 0, 1 missed more than 3 heartbeats of "
                             "500 ms"
                           : "client 2 (host-b";
    TESSERA_RETURN_IF_ERROR(expect_error(status, StatusCode::kUnavailable, {loss}));
    TESSERA_RETURN_IF_ERROR(expect_error(reduce(), StatusCode::kUnavailable, {loss}));
    TESSERA_RETURN_IF_ERROR(go_on(client, rest));
    return client.shutdown();
  });
  for (int client = 0; client < 4; ++client) {
    const bool is_killed = std::find(rest.begin(), rest.end(), client) == rest.end();
    EXPECT_THAT(statuses[client].code(), is_killed ? StatusCode::kAborted : StatusCode::kOk)
        << statuses[client];
  }
  EXPECT_THAT(statuses.back(), IsOk());
}

// The host of the coordinator is killed, when client 0 has it: the end of the job for all.
TEST(KilledCoordinatorTest, EndsTheJob) {
  TESSERA_MAKE_HOSTS(hosts, 2);
  Gate third;
  HostsJob job = job_of({1, 2});
  job.coordinator_is_hosted = false;
  job.outside = [&]() -> Status {
    TESSERA_RETURN_IF_ERROR(third.wait());
    return hosts.kill(0);
  };
  const std::vector<Status> statuses = run_on_hosts(hosts, job, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 3}}));
    const Status status = repeat(third, [&] { return mesh.barrier("next"); });
    return expect_error(status, StatusCode::kUnavailable, {"client 0 (host-a", "lost"});
  });
  EXPECT_THAT(statuses[0].code(), StatusCode::kAborted) << statuses[0];
  for (int client = 1; client < 4; ++client) EXPECT_THAT(statuses[client], IsOk()) << client;
}

}  // namespace
}  // namespace tessera::testing
