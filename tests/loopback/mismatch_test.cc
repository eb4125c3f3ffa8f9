// SPDX-License-Identifier: Apache-2.0
//
// Clients of two hosts that call different things, with letters that are late by chance: all are
// told one text, whichever host finds the difference first.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/group.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"
#include "tests/support/verdicts.h"
#include "transport/engine.h"
#include "transport/testing/delayed_engine.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using transport::Engine;

constexpr absl::Duration kNever = absl::Hours(1);
constexpr int kRounds = 24;

// Clients 0 and 1 are on one host. Client 2 differs from all: its host sees it by shared memory,
// the other one by letters.
TEST(MismatchTest, HasOneTextOnBothHosts) {
  std::vector<Verdicts> verdicts(kRounds);
  JobSpec spec = {.num_clients = 4, .hooks = {.host_ids = on_hosts(4, 2)}};
  spec.hooks.wrap_engine = [](std::unique_ptr<Engine> engine) -> StatusOr<std::unique_ptr<Engine>> {
    return transport::make_delayed(std::move(engine), /*seed=*/7);
  };
  const auto body = [&](Client& client) -> Status {
    const int id = client.client_id();
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2, 3}));
    for (int round = 0; round < kRounds; ++round) {
      std::vector<float> data(id == 2 ? 65 : 64, 1.0f);
      const Status status =
          group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum).wait(kNever);
      verdicts[round].add(id, status).IgnoreError();
      TESSERA_RETURN_IF_ERROR(expect_error(status, StatusCode::kInvalidArgument,
                                           {"count differs between clients", "has 65"}));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients(spec, body), IsOk());
  for (Verdicts& verdict : verdicts) EXPECT_THAT(verdict.same({0, 1, 2, 3}), IsOk());
}

// Small inputs are in the letter of a host, large ones are not: members of one host wait for the
// others in different ways, on the host that has both and on the other one.
TEST(MismatchTest, IsFoundBetweenSmallAndLargeInputs) {
  constexpr int kClients = 4;
  for (int other = 0; other < kClients; ++other) {
    Verdicts verdicts;
    const JobSpec spec = {.num_clients = kClients, .hooks = {.host_ids = on_hosts(kClients, 2)}};
    const auto body = [&](Client& client) -> Status {
      const int id = client.client_id();
      TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2, 3}));
      std::vector<float> data(id == other ? 1 << 16 : 8, 1.0f);
      const Status status =
          group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum).wait(kNever);
      verdicts.add(id, status).IgnoreError();
      TESSERA_RETURN_IF_ERROR(expect_error(status, StatusCode::kInvalidArgument,
                                           {"count differs between clients", "has 65536"}));
      return group.barrier().wait(kNever);
    };
    EXPECT_THAT(run_clients(spec, body), IsOk()) << other;
    EXPECT_THAT(verdicts.same({0, 1, 2, 3}), IsOk()) << other;
  }
}

// Client 2 gets the entries for its host. It has not called anything yet, and has no group then; in
// the second round it has one. Clients 0 and 3 get the error before it arrives.
TEST(MismatchTest, IsFoundWhileOthersAreMissing) {
  constexpr int kTimes = 2;
  Gate told[kTimes];
  std::vector<Verdicts> verdicts(kTimes);
  const JobSpec spec = {.num_clients = 4, .hooks = {.host_ids = on_hosts(4, 2)}};
  const auto body = [&](Client& client) -> Status {
    const int id = client.client_id();
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}}));
    for (int round = 0; round < kTimes; ++round) {
      if (id == 1 || id == 2) {
        TESSERA_RETURN_IF_ERROR(told[round].wait());
        TESSERA_RETURN_IF_ERROR(told[round].wait());
      }
      const Status status = mesh.barrier(id == 3 ? "b" : "a", kNever);
      verdicts[round].add(id, status).IgnoreError();
      TESSERA_RETURN_IF_ERROR(
          expect_error(status, StatusCode::kInvalidArgument, {"\"a\"", "\"b\""}));
      if (id == 0 || id == 3) told[round].open(2);
      TESSERA_RETURN_IF_ERROR(mesh.barrier("all", kNever));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients(spec, body), IsOk());
  for (Verdicts& verdict : verdicts) EXPECT_THAT(verdict.same({0, 1, 2, 3}), IsOk());
}

}  // namespace
}  // namespace tessera::testing
