// SPDX-License-Identifier: Apache-2.0
//
// Replica functions: the rows "Values and run", "Contexts" and "all_reduce, all_gather, gradients"
// of the facts, on one client with all replicas and on a client for each. Rows are named as there.
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "distribute/cross_device_ops.h"
#include "distribute/strategy.h"
#include "distribute/values.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/shapes.h"
#include "tests/support/clients.h"
#include "tests/support/distribute/replicas.h"
#include "tests/support/expect_error.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using distribute::PerReplica;
using distribute::ReplicaContext;
using distribute::Strategy;

// context_is_not_copyable
static_assert(!std::is_copy_constructible_v<ReplicaContext>);
static_assert(!std::is_move_constructible_v<ReplicaContext>);

class DistributeRunTest : public ::testing::TestWithParam<ReplicaForm> {
 protected:
  static Status run(int num_replicas, const ReplicaBody& body) {
    return run_replicas(GetParam(), num_replicas, body);
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, DistributeRunTest, ::testing::ValuesIn(kReplicaForms),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(DistributeRunTest, ValuesAndArguments) {
  EXPECT_THAT(
      run(3,
          [](const Client& client, const Strategy& strategy) -> Status {
            // values_from_function
            const PerReplica values = values_of<float>(
                client, strategy, [](int r) { return scalar_value(10.0F * r + 3); });
            TESSERA_RETURN_IF_ERROR(
                expect_local<float>(values, [](int r) { return scalar_value(10.0F * r + 3); }));
            TESSERA_REQUIRE(values.num_replicas() == 3);
            // run_per_replica
            const PerReplica doubled =
                strategy.run([](ReplicaContext&, const DTensor& x) { return x * 2; }, values);
            TESSERA_RETURN_IF_ERROR(
                expect_local<float>(doubled, [](int r) { return scalar_value(20.0F * r + 6); }));
            // run_replicated, run_sharded, run_partial, run_mixed
            const DTensor replicated = iota<float>({2}, Layout::replicated(strategy.mesh(), 1));
            const DTensor sharded = iota<float>({7}, Layout::parse(strategy.mesh(), "[replica]"));
            std::vector<HostTensor<float>> terms;
            for (const int r : strategy.local_replicas()) {
              terms.push_back({{}, {static_cast<float>(5 + r)}});
            }
            const DTensor partial =
                from_shards<float>({}, Layout::parse(strategy.mesh(), "[] sum{replica}"), terms);
            const std::vector<PerReplica> mixed = strategy.run(
                [](ReplicaContext& replica, const DTensor& a, const DTensor& b, const DTensor& c,
                   const DTensor& d) {
                  return std::vector<DTensor>{a + scalar_of_id(replica), b, c, d};
                },
                replicated, sharded, partial, values);
            TESSERA_REQUIRE(mixed.size() == 4);
            TESSERA_RETURN_IF_ERROR(expect_local<float>(mixed[0], [](int r) {
              return vector_of<float>({0.0F + r, 1.0F + r});
            }));
            const std::vector<float> shards[] = {{0, 1, 2}, {3, 4}, {5, 6}};
            TESSERA_RETURN_IF_ERROR(
                expect_local<float>(mixed[1], [&](int r) { return vector_of(shards[r]); }));
            TESSERA_RETURN_IF_ERROR(
                expect_local<float>(mixed[2], [](int r) { return scalar_value(5.0F + r); }));
            // local_results
            for (const distribute::DistributedValues& value :
                 {distribute::DistributedValues(values), distribute::DistributedValues(replicated),
                  distribute::DistributedValues(sharded)}) {
              TESSERA_REQUIRE(strategy.local_results(value).size() ==
                              strategy.local_replicas().size());
            }
            // run_order
            std::vector<int> order;
            const Status done = strategy.run([&](ReplicaContext& replica) -> Status {
              order.push_back(replica.replica_id_in_sync_group());
              TESSERA_REQUIRE(replica.num_replicas_in_sync() == 3);
              return absl::OkStatus();
            });
            TESSERA_RETURN_IF_ERROR(done);
            TESSERA_REQUIRE(absl::MakeConstSpan(order) == strategy.local_replicas());
            // run_shapes_differ
            const PerReplica shapes = strategy.run([](ReplicaContext& replica) {
              return full<float>({replica.replica_id_in_sync_group() + 1}, 1,
                                 Layout::replicated(replica.mesh(), 1));
            });
            TESSERA_RETURN_IF_ERROR(expect_error(strategy.reduce(ReduceOp::kSum, shapes).await(),
                                                 StatusCode::kInvalidArgument, {"[1]", "[2]"}));
            return expect_values<float>(strategy.reduce(ReduceOp::kSum, shapes, {0}), {}, {6});
          }),
      IsOk());
}

TEST_P(DistributeRunTest, Collectives) {
  EXPECT_THAT(
      run(3,
          [](const Client&, const Strategy& strategy) -> Status {
            // all_reduce_3, all_gather_3, all_gather_dim1_3, all_reduce_max, await_in_fn
            const std::vector<PerReplica> results =
                strategy.run([](ReplicaContext& replica) -> StatusOr<std::vector<DTensor>> {
                  const float r = static_cast<float>(replica.replica_id_in_sync_group());
                  const DTensor x =
                      from_host<float>({1 + r, 2 + r}, {2}, Layout::replicated(replica.mesh(), 1));
                  const DTensor row = from_host<float>({1 + r, 2 + r}, {1, 2},
                                                       Layout::replicated(replica.mesh(), 2));
                  const DTensor sum = replica.all_reduce(ReduceOp::kSum, x);
                  TESSERA_RETURN_IF_ERROR(sum.await());
                  return std::vector<DTensor>{
                      sum,
                      replica.all_reduce(ReduceOp::kAvg, x),
                      replica.all_gather(x, 0),
                      replica.all_gather(row, 1),
                      replica.all_gather(x, -1),
                      replica.all_reduce(ReduceOp::kMax, scalar(replica, r + 1))};
                });
            const std::vector<Values<float>> expected = {vector_of<float>({6, 9}),
                                                         vector_of<float>({2, 3}),
                                                         vector_of<float>({1, 2, 2, 3, 3, 4}),
                                                         {{1, 6}, {1, 2, 2, 3, 3, 4}},
                                                         vector_of<float>({1, 2, 2, 3, 3, 4}),
                                                         scalar_value(3)};
            TESSERA_REQUIRE(results.size() == expected.size());
            for (size_t k = 0; k < results.size(); ++k) {
              TESSERA_RETURN_IF_ERROR(
                  with_context(expect_local<float>(results[k], [&](int) { return expected[k]; }),
                               absl::StrCat("result ", k)));
            }
            // all_reduce_many, all_reduce_none
            const std::vector<PerReplica> many = strategy.run([](ReplicaContext& replica) {
              const float r = static_cast<float>(replica.replica_id_in_sync_group());
              if (!replica.all_reduce(ReduceOp::kSum, absl::Span<const DTensor>()).empty()) {
                return std::vector<DTensor>();
              }
              return replica.all_reduce(
                  ReduceOp::kSum,
                  {scalar(replica, 1 + r),
                   from_host<float>({2 * r, 3 * r}, {2}, Layout::replicated(replica.mesh(), 1))});
            });
            TESSERA_REQUIRE(many.size() == 2);
            TESSERA_RETURN_IF_ERROR(
                expect_local<float>(many[0], [](int) { return scalar_value(6); }));
            TESSERA_RETURN_IF_ERROR(expect_local<float>(many[1], [](int) {
              return vector_of<float>({6, 9});
            }));
            // all_reduce_bool_max, all_reduce_empty
            const std::vector<PerReplica> rest = strategy.run([](ReplicaContext& replica) {
              const bool is_first = replica.replica_id_in_sync_group() == 0;
              return std::vector<DTensor>{
                  replica.all_reduce(
                      ReduceOp::kMax,
                      full<bool>({1}, is_first, Layout::replicated(replica.mesh(), 1))),
                  replica.all_reduce(ReduceOp::kSum,
                                     full<float>({0}, 1, Layout::replicated(replica.mesh(), 1)))};
            });
            TESSERA_RETURN_IF_ERROR(
                expect_local<bool>(rest[0], [](int) { return vector_of<bool>({true}); }));
            return expect_local<float>(rest[1], [](int) { return vector_of<float>({}); });
          }),
      IsOk());
}

// all_reduce_2, all_gather_2, all_gather_dim1_2, run_returns, run_equal_values
TEST_P(DistributeRunTest, CollectivesOfTwo) {
  EXPECT_THAT(
      run(2,
          [](const Client&, const Strategy& strategy) -> Status {
            const std::vector<PerReplica> results = strategy.run([](ReplicaContext& replica) {
              const float r = static_cast<float>(replica.replica_id_in_sync_group());
              const DTensor x =
                  from_host<float>({1 + r, 2 + r}, {2}, Layout::replicated(replica.mesh(), 1));
              const DTensor row = ops::expand_dims(x, 0);
              return std::vector<DTensor>{replica.all_reduce(ReduceOp::kSum, x),
                                          replica.all_reduce(ReduceOp::kAvg, x),
                                          replica.all_gather(x, 0), replica.all_gather(row, 1)};
            });
            const std::vector<Values<float>> expected = {vector_of<float>({3, 5}),
                                                         vector_of<float>({1.5, 2.5}),
                                                         vector_of<float>({1, 2, 2, 3}),
                                                         {{1, 4}, {1, 2, 2, 3}}};
            for (size_t k = 0; k < results.size(); ++k) {
              TESSERA_RETURN_IF_ERROR(
                  expect_local<float>(results[k], [&](int) { return expected[k]; }));
            }
            const PerReplica same =
                strategy.run([](ReplicaContext& replica) { return scalar(replica, 5); });
            return expect_local<float>(same, [](int) { return scalar_value(5); });
          }),
      IsOk());
}

// values_two_clients, merge_call_two_clients
TEST(DistributeRunClientsTest, TwoClientsOfTwoReplicas) {
  EXPECT_THAT(
      run_clients(
          {.num_clients = 2, .devices_per_client = 2},
          [](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Strategy strategy,
                                     distribute::multi_worker_mirrored_strategy(client));
            const int first = 2 * client.client_id();
            TESSERA_REQUIRE(strategy.local_replicas() == (std::vector<int>{first, first + 1}));
            int num_calls = 0;
            const PerReplica sums = strategy.run([&](ReplicaContext& replica) {
              return replica.merge_call(
                  [&](const Strategy& merged, const PerReplica& ids) {
                    ++num_calls;
                    return merged.reduce(ReduceOp::kSum, ids);
                  },
                  scalar_of_id(replica));
            });
            TESSERA_REQUIRE(num_calls == 1 && sums.num_replicas() == 4);
            return expect_local<float>(sums, [](int) { return scalar_value(6); });
          }),
      IsOk());
}

// threads_do_not_matter
TEST(DistributeRunOneClientTest, TwoThreadsWithStrategiesOfTheirOwn) {
  EXPECT_THAT(run_clients({.devices_per_client = 4},
                          [](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(const Strategy first,
                                                     distribute::mirrored_strategy(client, {0, 1}));
                            TESSERA_ASSIGN_OR_RETURN(const Strategy second,
                                                     distribute::mirrored_strategy(client, {2, 3}));
                            const auto sum_ids = [](const Strategy& strategy) -> Status {
                              for (int i = 0; i < 20; ++i) {
                                const PerReplica sum = strategy.run([](ReplicaContext& replica) {
                                  return replica.all_reduce(ReduceOp::kSum, scalar_of_id(replica));
                                });
                                TESSERA_RETURN_IF_ERROR(
                                    expect_local<float>(sum, [](int) { return scalar_value(1); }));
                              }
                              return absl::OkStatus();
                            };
                            Status other;
                            std::thread thread([&] { other = sum_ids(second); });
                            const Status own = sum_ids(first);
                            thread.join();
                            TESSERA_RETURN_IF_ERROR(own);
                            return other;
                          }),
              IsOk());
}

// argument_of_a_larger_strategy, argument_of_a_smaller_strategy, values_of_any_shape
TEST(DistributeRunOneClientTest, ArgumentsOfAnotherStrategy) {
  EXPECT_THAT(
      run_clients({.devices_per_client = 3},
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Strategy two,
                                             distribute::mirrored_strategy(client, {0, 1}));
                    TESSERA_ASSIGN_OR_RETURN(const Strategy three,
                                             distribute::mirrored_strategy(client));
                    const auto shapes = [](int r) {
                      return vector_of<float>(std::vector<float>(r + 1, 1));
                    };
                    const PerReplica of_two = values_of<float>(client, two, shapes);
                    const PerReplica of_three = values_of<float>(client, three, shapes);
                    const auto same = [](ReplicaContext&, const DTensor& x) { return x; };
                    TESSERA_RETURN_IF_ERROR(expect_local<float>(three.run(same, of_three), shapes));
                    TESSERA_RETURN_IF_ERROR(expect_error(two.run(same, of_three).status(),
                                                         StatusCode::kInvalidArgument,
                                                         {"3 replicas", "of 2"}));
                    return expect_error(three.run(same, of_two).status(),
                                        StatusCode::kInvalidArgument, {"2 replicas", "of 3"});
                  }),
      IsOk());
}

TEST_P(DistributeRunTest, MergeCall) {
  EXPECT_THAT(
      run(3,
          [](const Client&, const Strategy& strategy) -> Status {
            int num_calls = 0;
            // merge_call_once, merge_call_reduce, merge_call_per_replica, run_in_merge_call,
            // two_merge_calls
            const std::vector<PerReplica> results =
                strategy.run([&](ReplicaContext& replica) -> StatusOr<std::vector<DTensor>> {
                  const DTensor sum = replica.merge_call(
                      [&](const Strategy& merged, const PerReplica& value) {
                        ++num_calls;
                        return merged.reduce(ReduceOp::kSum, value);
                      },
                      scalar(replica, 2));
                  const DTensor own = replica.merge_call(
                      [](const Strategy&, const PerReplica& value) { return value; },
                      scalar_of_id(replica));
                  const DTensor inner = replica.merge_call(
                      [](const Strategy& merged, const PerReplica& value) {
                        return merged.run(
                            [](ReplicaContext& each, const DTensor& x) {
                              return each.all_reduce(ReduceOp::kSum, x + 1);
                            },
                            value);
                      },
                      scalar_of_id(replica));
                  TESSERA_RETURN_IF_ERROR(replica.merge_call([](const Strategy& merged) {
                    return merged.num_replicas_in_sync() == 3 ? absl::OkStatus()
                                                              : absl::InternalError("count");
                  }));
                  return std::vector<DTensor>{sum, own + 1, inner};
                });
            TESSERA_REQUIRE(num_calls == 1);
            TESSERA_RETURN_IF_ERROR(
                expect_local<float>(results[0], [](int) { return scalar_value(6); }));
            TESSERA_RETURN_IF_ERROR(
                expect_local<float>(results[1], [](int r) { return scalar_value(r + 1.0F); }));
            TESSERA_RETURN_IF_ERROR(
                expect_local<float>(results[2], [](int) { return scalar_value(6); }));
            // merge_call_error
            TESSERA_RETURN_IF_ERROR(
                expect_error(strategy.run([](ReplicaContext& replica) -> Status {
                  return replica.merge_call(
                      [](const Strategy&) -> Status { return absl::DataLossError("merged"); });
                }),
                             StatusCode::kDataLoss, {"merged"}));
            // merge_call_one_only
            return expect_error(strategy.run([](ReplicaContext& replica) -> Status {
              if (replica.replica_id_in_sync_group() != 0) return absl::OkStatus();
              return replica.merge_call([](const Strategy&) { return absl::OkStatus(); });
            }),
                                StatusCode::kInvalidArgument, {"called merge_call", "returned"});
          }),
      IsOk());
}

TEST(DistributeRunOneClientTest, ManyReplicas) {
  EXPECT_THAT(run_replicas(kReplicaForms[0], 64,
                           [](const Client&, const Strategy& strategy) -> Status {
                             const PerReplica sum = strategy.run([](ReplicaContext& replica) {
                               return replica.all_reduce(ReduceOp::kSum, scalar_of_id(replica));
                             });
                             return expect_local<float>(sum,
                                                        [](int) { return scalar_value(2016); });
                           }),
              IsOk());
}

TEST(DistributeRunOneClientTest, StrategiesOfDevices) {
  EXPECT_THAT(
      run_clients(
          {.devices_per_client = 4},
          [](Client& client) -> Status {
            const StatusCode bad = StatusCode::kInvalidArgument;
            // run_on_some_devices
            TESSERA_ASSIGN_OR_RETURN(const Strategy some,
                                     distribute::mirrored_strategy(client, {1, 3}));
            TESSERA_REQUIRE(some.num_replicas_in_sync() == 2);
            TESSERA_REQUIRE(some.mesh().device_ids()[1] == 3);
            // no_such_device, device_twice, no_devices
            TESSERA_RETURN_IF_ERROR(
                expect_error(distribute::mirrored_strategy(client, {0, 9}).status(), bad,
                             {"device 9", "0 to 3"}));
            TESSERA_RETURN_IF_ERROR(expect_error(
                distribute::one_device_strategy(client, 9).status(), bad, {"device 9"}));
            TESSERA_RETURN_IF_ERROR(
                expect_error(distribute::mirrored_strategy(client, {0, 0}).status(), bad,
                             {"device 0", "twice"}));
            TESSERA_ASSIGN_OR_RETURN(const Strategy all, distribute::mirrored_strategy(client));
            TESSERA_REQUIRE(all.num_replicas_in_sync() == 4);
            // outside, one_replica
            TESSERA_ASSIGN_OR_RETURN(const Strategy one, distribute::default_strategy(client));
            TESSERA_REQUIRE(one.num_replicas_in_sync() == 1);
            TESSERA_RETURN_IF_ERROR(expect_values<float>(
                one.reduce(ReduceOp::kSum, full<float>({2}, 7, Layout::replicated(one.mesh(), 1))),
                {2}, {7, 7}));
            // unknown_replica_axis, and other strategies that cannot be made
            TESSERA_ASSIGN_OR_RETURN(const Mesh batch, create_mesh(client, {{"batch", 4}}));
            TESSERA_RETURN_IF_ERROR(expect_error(
                Strategy::create(client, batch, {"replica"}).status(), bad, {"replica", "batch"}));
            TESSERA_RETURN_IF_ERROR(
                expect_error(Strategy::create(client, batch, {}).status(), bad, {"{batch=4}"}));
            TESSERA_RETURN_IF_ERROR(expect_error(
                Strategy::create(client, batch, {"batch", "batch"}).status(), bad, {"twice"}));
            TESSERA_ASSIGN_OR_RETURN(const Mesh abstract, Mesh::create({{"x", 4}}));
            TESSERA_RETURN_IF_ERROR(expect_error(Strategy::create(client, abstract, {"x"}).status(),
                                                 StatusCode::kFailedPrecondition,
                                                 {"live mesh", "abstract"}));
            return absl::OkStatus();
          }),
      IsOk());
}

TEST(DistributeRunOneClientTest, StrategiesThatCannotBeMade) {
  EXPECT_THAT(
      run_clients(
          {.devices_per_client = 4},
          [](Client& client) -> Status {
            const StatusCode bad = StatusCode::kInvalidArgument;
            // tpu, nccl_on_cpu, one_device_place, refused_num_packs
            TESSERA_RETURN_IF_ERROR(expect_error(distribute::tpu_strategy(client).status(),
                                                 StatusCode::kUnimplemented, {"CPU", "CUDA"}));
            TESSERA_RETURN_IF_ERROR(
                expect_error(distribute::mirrored_strategy(
                                 client, {}, {.cross_device_ops = *distribute::nccl_all_reduce()})
                                 .status(),
                             StatusCode::kFailedPrecondition, {"NCCL", "CPUs"}));
            TESSERA_RETURN_IF_ERROR(expect_error(
                distribute::mirrored_strategy(
                    client, {},
                    {.communication = {.implementation =
                                           distribute::CommunicationImplementation::kNccl}})
                    .status(),
                StatusCode::kFailedPrecondition, {"NCCL"}));
            TESSERA_RETURN_IF_ERROR(expect_error(
                distribute::mirrored_strategy(
                    client, {}, {.cross_device_ops = *distribute::reduction_to_one_device(9)})
                    .status(),
                bad, {"device 9"}));
            TESSERA_RETURN_IF_ERROR(
                expect_error(distribute::reduction_to_one_device(-1).status(), bad, {"device -1"}));
            for (const int packs : {-1}) {
              TESSERA_RETURN_IF_ERROR(
                  expect_error(distribute::hierarchical_copy_all_reduce(packs).status(), bad,
                               {"num_packs is -1"}));
              TESSERA_RETURN_IF_ERROR(expect_error(distribute::nccl_all_reduce(packs).status(), bad,
                                                   {"num_packs is -1"}));
            }
            return absl::OkStatus();
          }),
      IsOk());
}

TEST(DistributeRunOneClientTest, TwoStrategies) {
  EXPECT_THAT(
      run_clients(
          {.devices_per_client = 4},
          [](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Strategy some,
                                     distribute::mirrored_strategy(client, {1, 3}));
            TESSERA_ASSIGN_OR_RETURN(const Strategy one, distribute::default_strategy(client));
            // run_of_another_strategy, two_strategies
            const PerReplica nested = some.run([&](ReplicaContext& replica) -> StatusOr<DTensor> {
              TESSERA_RETURN_IF_ERROR(one.run([](ReplicaContext&) { return absl::OkStatus(); }));
              return replica.all_reduce(ReduceOp::kSum, scalar_of_id(replica));
            });
            TESSERA_RETURN_IF_ERROR(
                expect_local<float>(nested, [](int) { return scalar_value(1); }));
            return absl::OkStatus();
          }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
