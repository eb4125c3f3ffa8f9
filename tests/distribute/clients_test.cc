// SPDX-License-Identifier: Apache-2.0
//
// Strategies over several clients: the rows "Several clients" of the facts, named as there, and
// clients that die while the others run replica functions. (multi_timeout and swapped_calls are in
// run_test, cross_assign_differs in variable_test.)
#include "tests/support/clients.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "distribute/strategy.h"
#include "distribute/values.h"
#include "distribute/variable.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "tests/support/distribute/replicas.h"
#include "tests/support/expect_error.h"
#include "tests/support/matchers.h"
#include "tests/support/shared.h"
#include "tests/support/verdicts.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using distribute::DistributedVariable;
using distribute::PerReplica;
using distribute::ReplicaContext;
using distribute::Strategy;
using distribute::ValueContext;

struct Place {
  const char* name;
  int num_hosts;
};
constexpr Place kPlaces[] = {{"OneHost", 1}, {"AHostEach", 2}};

class DistributeClientsTest : public ::testing::TestWithParam<Place> {
 protected:
  static JobSpec spec(int num_clients) {
    JobSpec spec = {.num_clients = num_clients};
    if (GetParam().num_hosts > 1) spec.hooks.host_ids = on_hosts(num_clients, num_clients);
    return spec;
  }
  static Status run(const JobSpec& spec, const ReplicaBody& body) {
    return run_clients(spec, [&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Strategy strategy,
                               distribute::multi_worker_mirrored_strategy(client));
      return body(client, strategy);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Places, DistributeClientsTest, ::testing::ValuesIn(kPlaces),
                         [](const auto& info) { return std::string(info.param.name); });

Values<float> id_of(int replica) { return {{}, {static_cast<float>(replica)}}; }
// The id in shape [id + 1].
Values<float> ids_of(int replica) {
  return vector_of(std::vector<float>(replica + 1, static_cast<float>(replica)));
}

DTensor ones(ReplicaContext& replica, int64_t size) {
  return full<float>({size}, 1, Layout::replicated(replica.mesh(), 1));
}
Status sum_of_ones(const Strategy& strategy) {
  const PerReplica sum = strategy.run(
      [](ReplicaContext& replica) { return replica.all_reduce(ReduceOp::kSum, ones(replica, 1)); });
  return expect_local<float>(
      sum, [&](int) { return vector_of<float>({1.0F * strategy.num_replicas_in_sync()}); });
}

TEST_P(DistributeClientsTest, ValuesOfTwo) {
  EXPECT_THAT(
      run(spec(2),
          [](const Client& client, const Strategy& strategy) -> Status {
            const auto values = [&](auto value) {
              return values_of<float>(client, strategy, value);
            };
            // multi_reduce
            const PerReplica next = values([](int r) { return Values<float>{{}, {r + 1.0F}}; });
            TESSERA_RETURN_IF_ERROR(
                expect_values<float>(strategy.reduce(ReduceOp::kSum, next), {}, {3}));
            TESSERA_RETURN_IF_ERROR(
                expect_values<float>(strategy.reduce(ReduceOp::kAvg, next), {}, {1.5}));
            // multi_gather
            TESSERA_RETURN_IF_ERROR(
                expect_values<float>(strategy.gather(values(ids_of), 0), {3}, {0, 1, 1}));
            // multi_uneven_avg
            TESSERA_RETURN_IF_ERROR(expect_values<float>(
                strategy.reduce(ReduceOp::kAvg, values(ids_of), {0}), {}, {0.666666666667F}));
            // multi_local
            std::vector<int> called;
            const PerReplica own = strategy.values_from_function([&](const ValueContext& context) {
              called.push_back(context.replica_id_in_sync_group);
              return next.local(0);
            });
            TESSERA_REQUIRE(called == std::vector<int>{client.client_id()});
            TESSERA_REQUIRE(own.num_replicas() == 2);
            TESSERA_REQUIRE(strategy.num_replicas_in_sync() == 2);
            const std::vector<DTensor> local = strategy.local_results(own);
            TESSERA_REQUIRE(local.size() == 1, local.size());
            return expect_values<float>(local[0], {}, {client.client_id() + 1.0F});
          }),
      IsOk());
}

// multi_devices, multi_device_counts
TEST_P(DistributeClientsTest, DevicesOfClients) {
  struct Row {
    std::vector<int> num_devices;
    std::vector<std::vector<int>> replicas;
  };
  for (const Row& row : {Row{{2, 2}, {{0, 1}, {2, 3}}}, Row{{1, 3}, {{0}, {1, 2, 3}}}}) {
    JobSpec devices = spec(2);
    devices.num_devices = row.num_devices;
    EXPECT_THAT(run(devices,
                    [&](const Client& client, const Strategy& strategy) -> Status {
                      TESSERA_REQUIRE(strategy.num_replicas_in_sync() == 4);
                      const absl::Span<const int> local = strategy.local_replicas();
                      TESSERA_REQUIRE(local == row.replicas[client.client_id()],
                                      absl::StrJoin(local, " "));
                      const PerReplica ids = values_of<float>(client, strategy, id_of);
                      return expect_values<float>(strategy.reduce(ReduceOp::kSum, ids), {}, {6});
                    }),
                IsOk());
  }
}

TEST_P(DistributeClientsTest, CallsThatDiffer) {
  Verdicts shapes;
  Verdicts names;
  EXPECT_THAT(
      run(spec(2),
          [&](const Client& client, const Strategy& strategy) -> Status {
            const int id = client.client_id();
            // multi_shape_mismatch
            const Status mismatch = strategy.run([](ReplicaContext& replica) -> Status {
              return replica
                  .all_reduce(ReduceOp::kSum, ones(replica, replica.replica_id_in_sync_group() + 1))
                  .await();
            });
            TESSERA_RETURN_IF_ERROR(expect_error(shapes.add(id, mismatch),
                                                 StatusCode::kInvalidArgument,
                                                 {"client 0", "[1]", "client 1", "[2]"}));
            // multi_after_mismatch
            TESSERA_RETURN_IF_ERROR(sum_of_ones(strategy));
            // variables_have_names
            std::vector<std::string> order = {"weights", "bias"};
            if (id == 1) std::swap(order[0], order[1]);
            const PerReplica gradient =
                values_of<float>(client, strategy, [](int) { return id_of(1); });
            const Layout everywhere = *Layout::replicated(strategy.mesh(), 0);
            const std::vector<DTensor> reduced = strategy.batch_reduce_to(
                ReduceOp::kSum, {gradient, gradient}, {everywhere, everywhere},
                {.name = absl::StrJoin(order, ", ")});
            TESSERA_RETURN_IF_ERROR(
                expect_error(names.add(id, reduced[1].await()), StatusCode::kInvalidArgument,
                             {"\"weights, bias\"", "\"bias, weights\"", "client 0", "client 1"}));
            return sum_of_ones(strategy);
          }),
      IsOk());
  EXPECT_THAT(shapes.same({0, 1}), IsOk());
  EXPECT_THAT(names.same({0, 1}), IsOk());
}

constexpr int kClients = 3;
constexpr int kVictim = 1;

// multi_dead: the others are told, and a strategy over them works in the same processes.
class DistributeLossTest : public DistributeClientsTest {
 protected:
  // OK in the survivors.
  static Status survive(Client& client, const std::function<Status(const Strategy&)>& until_loss) {
    TESSERA_ASSIGN_OR_RETURN(const Strategy strategy,
                             distribute::multi_worker_mirrored_strategy(client));
    TESSERA_RETURN_IF_ERROR(sum_of_ones(strategy));
    TESSERA_RETURN_IF_ERROR(expect_error(until_loss(strategy), StatusCode::kUnavailable,
                                         {absl::StrCat("client ", kVictim, " "), "lost"}));
    // So are later calls.
    TESSERA_RETURN_IF_ERROR(expect_error(sum_of_ones(strategy), StatusCode::kUnavailable,
                                         {absl::StrCat("client ", kVictim, " ")}));
    TESSERA_ASSIGN_OR_RETURN(const Mesh rest,
                             create_mesh(client, {{"replica", 2}}, std::vector<int>{0, 2}));
    TESSERA_ASSIGN_OR_RETURN(const Strategy survivors, Strategy::create(client, rest, {"replica"}));
    TESSERA_RETURN_IF_ERROR(sum_of_ones(survivors));
    return client.shutdown(absl::Seconds(20));
  }
  static void expect_survivors(const std::vector<Status>& statuses) {
    EXPECT_THAT(statuses[0], IsOk());
    EXPECT_THAT(statuses[2], IsOk());
    EXPECT_THAT(statuses[kVictim], StatusIs(StatusCode::kAborted));
  }
};
INSTANTIATE_TEST_SUITE_P(Places, DistributeLossTest, ::testing::ValuesIn(kPlaces),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(DistributeLossTest, KilledBeforeARun) {
  expect_survivors(run_processes(spec(kClients), [](Client& client) {
    return survive(client, [&](const Strategy& strategy) {
      if (client.client_id() == kVictim) raise(SIGKILL);
      return sum_of_ones(strategy);
    });
  }));
}

TEST_P(DistributeLossTest, KilledInItsFunctionWhileTheOthersWait) {
  expect_survivors(run_processes(spec(kClients), [](Client& client) {
    return survive(client, [&](const Strategy& strategy) {
      return strategy.run([&](ReplicaContext& replica) -> Status {
        const DTensor first = replica.all_reduce(ReduceOp::kSum, ones(replica, 1));
        TESSERA_RETURN_IF_ERROR(first.await());
        if (client.client_id() == kVictim) raise(SIGKILL);
        return replica.all_reduce(ReduceOp::kSum, first).await();
      });
    });
  }));
}

TEST_P(DistributeLossTest, KilledWhileItReduces) {
  Shared<std::atomic<pid_t>> target;
  expect_survivors(run_processes(spec(kClients), [&](Client& client) {
    if (client.client_id() == kVictim) *target = getpid();
    return survive(client, [&](const Strategy& strategy) {
      return strategy.run([&](ReplicaContext& replica) -> Status {
        // One after another, so that one is running wherever the signal strikes.
        for (int i = 0;; ++i) {
          const DTensor sum = replica.all_reduce(ReduceOp::kSum, ones(replica, 1 << 20));
          if (i == 2 && client.client_id() == 0) kill(*target, SIGKILL);
          TESSERA_RETURN_IF_ERROR(sum.await());
        }
      });
    });
  }));
}

// A client that reads a variable of kOnRead which a lost client has a part of.
TEST_P(DistributeLossTest, VariableOfALostClient) {
  expect_survivors(run_processes(spec(kClients), [](Client& client) {
    return survive(client, [&](const Strategy& strategy) -> Status {
      TESSERA_ASSIGN_OR_RETURN(
          DistributedVariable seen,
          strategy.variable("seen", zeros<float>({}, Layout::replicated(strategy.mesh(), 0)),
                            {.synchronization = distribute::VariableSynchronization::kOnRead,
                             .aggregation = distribute::VariableAggregation::kSum}));
      if (client.client_id() == kVictim) raise(SIGKILL);
      return seen.value().await();
    });
  }));
}

}  // namespace
}  // namespace tessera::testing
