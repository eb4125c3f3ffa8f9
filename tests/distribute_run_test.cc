// SPDX-License-Identifier: Apache-2.0
//
// Replica functions: the rows "Values and run", "Contexts" and "all_reduce, all_gather, gradients"
// of the facts, on one client with all replicas and on a client for each. Rows are named as there.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "distribute/cross_device_ops.h"
#include "distribute/strategy.h"
#include "distribute/values.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/tape.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"
#include "tests/support/replicas.h"

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

DTensor scalar(ReplicaContext& replica, float value) {
  return full<float>({}, value, Layout::replicated(replica.mesh(), 0));
}
DTensor scalar_of_id(ReplicaContext& replica) {
  return scalar(replica, static_cast<float>(replica.replica_id_in_sync_group()));
}
Values<float> scalar_value(float value) { return {{}, {value}}; }

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

// A refusal, after which a run is right.
Status expect_refused(const Strategy& strategy, const Status& status, StatusCode code,
                      const std::vector<std::string>& texts) {
  TESSERA_RETURN_IF_ERROR(expect_error(status, code, texts));
  const PerReplica good = strategy.run([](ReplicaContext& replica) {
    return replica.all_reduce(ReduceOp::kSum, scalar_of_id(replica));
  });
  return expect_local<float>(good, [](int) { return scalar_value(3); });
}

TEST_P(DistributeRunTest, RunsThatFail) {
  EXPECT_THAT(run(3,
                  [](const Client&, const Strategy& strategy) -> Status {
                    // run_error
                    TESSERA_RETURN_IF_ERROR(
                        expect_refused(strategy,
                                       strategy
                                           .run([](ReplicaContext& replica) -> StatusOr<DTensor> {
                                             if (replica.replica_id_in_sync_group() == 1) {
                                               return absl::AbortedError("boom");
                                             }
                                             return scalar(replica, 1);
                                           })
                                           .status(),
                                       StatusCode::kAborted, {"replica 1 (", "device 1", "boom"}));
                    // run_error_while_others_wait
                    bool got_error = false;
                    TESSERA_RETURN_IF_ERROR(expect_refused(
                        strategy, strategy.run([&](ReplicaContext& replica) -> Status {
                          if (replica.replica_id_in_sync_group() == 1)
                            return absl::AbortedError("boom");
                          const Status status =
                              replica.all_reduce(ReduceOp::kSum, scalar(replica, 1)).await();
                          got_error |= absl::IsAborted(status);
                          return status;
                        }),
                        StatusCode::kAborted, {"replica 1 (", "boom"}));
                    const absl::Span<const int> local = strategy.local_replicas();
                    TESSERA_REQUIRE(got_error || (local.size() == 1 && local[0] == 1));
                    return absl::OkStatus();
                  }),
              IsOk());
}

TEST_P(DistributeRunTest, ReplicasThatDisagree) {
  EXPECT_THAT(run(3,
                  [](const Client&, const Strategy& strategy) -> Status {
                    const StatusCode bad = StatusCode::kInvalidArgument;
                    // run_one_does_not_call
                    TESSERA_RETURN_IF_ERROR(expect_refused(
                        strategy, strategy.run([](ReplicaContext& replica) -> Status {
                          if (replica.replica_id_in_sync_group() != 0) return absl::OkStatus();
                          return replica.all_reduce(ReduceOp::kSum, scalar(replica, 1)).await();
                        }),
                        bad, {"replica 0", "called all_reduce(sum)", "replica 1", "returned"}));
                    // run_calls_differ
                    TESSERA_RETURN_IF_ERROR(expect_refused(
                        strategy, strategy.run([](ReplicaContext& replica) -> Status {
                          const DTensor x =
                              full<float>({1}, 1, Layout::replicated(replica.mesh(), 1));
                          return (replica.replica_id_in_sync_group() == 0
                                      ? replica.all_reduce(ReduceOp::kSum, x)
                                      : replica.all_gather(x, 0))
                              .await();
                        }),
                        bad, {"called all_reduce(sum)", "called all_gather(dim 0)"}));
                    // swapped_calls
                    TESSERA_RETURN_IF_ERROR(expect_refused(
                        strategy, strategy.run([](ReplicaContext& replica) -> Status {
                          const bool is_first = replica.replica_id_in_sync_group() == 0;
                          const DTensor a = replica.all_reduce(ReduceOp::kSum, scalar(replica, 1),
                                                               {.name = is_first ? "a" : "b"});
                          const DTensor b = replica.all_reduce(ReduceOp::kSum, scalar(replica, 10),
                                                               {.name = is_first ? "b" : "a"});
                          TESSERA_RETURN_IF_ERROR(a.await());
                          return b.await();
                        }),
                        bad, {"all_reduce(sum) \"a\"", "all_reduce(sum) \"b\""}));
                    // run_counts_differ
                    TESSERA_RETURN_IF_ERROR(expect_refused(
                        strategy,
                        strategy
                            .run([](ReplicaContext& replica) {
                              return std::vector<DTensor>(replica.replica_id_in_sync_group() + 1,
                                                          scalar(replica, 1));
                            })[0]
                            .status(),
                        bad, {"replica 0", "1 tensors", "replica 1", "2"}));
                    // all_reduce_shapes_differ
                    TESSERA_RETURN_IF_ERROR(expect_refused(
                        strategy, strategy.run([](ReplicaContext& replica) -> Status {
                          const DTensor x = full<float>({replica.replica_id_in_sync_group() + 1}, 1,
                                                        Layout::replicated(replica.mesh(), 1));
                          return replica.all_reduce(ReduceOp::kSum, x).await();
                        }),
                        bad, {"replica 0", "[1]", "replica 1", "[2]"}));
                    return absl::OkStatus();
                  }),
              IsOk());
}

TEST_P(DistributeRunTest, RefusedCalls) {
  EXPECT_THAT(
      run(3,
          [](const Client&, const Strategy& strategy) -> Status {
            const StatusCode bad = StatusCode::kInvalidArgument;
            // all_gather_other_dim
            TESSERA_RETURN_IF_ERROR(
                expect_refused(strategy, strategy.run([](ReplicaContext& replica) -> Status {
                  const DTensor x = full<float>({1, replica.replica_id_in_sync_group() + 1}, 1,
                                                Layout::replicated(replica.mesh(), 2));
                  return replica.all_gather(x, 0).await();
                }),
                               bad, {"size 1 of dim 1", "size 2"}));
            // all_reduce_int_avg, all_gather_scalar
            TESSERA_RETURN_IF_ERROR(
                expect_refused(strategy, strategy.run([](ReplicaContext& replica) -> Status {
                  return replica
                      .all_reduce(ReduceOp::kAvg,
                                  full<int32_t>({}, 1, Layout::replicated(replica.mesh(), 0)))
                      .await();
                }),
                               bad, {"i32"}));
            TESSERA_RETURN_IF_ERROR(
                expect_refused(strategy, strategy.run([](ReplicaContext& replica) -> Status {
                  return replica.all_gather(scalar(replica, 1), 0).await();
                }),
                               bad, {"rank 0"}));
            // refused_bytes_per_pack, refused_timeout
            TESSERA_RETURN_IF_ERROR(
                expect_refused(strategy, strategy.run([](ReplicaContext& replica) -> Status {
                  return replica
                      .all_reduce(ReduceOp::kSum, scalar(replica, 1), {.bytes_per_pack = -1})
                      .await();
                }),
                               bad, {"bytes_per_pack is -1"}));
            TESSERA_RETURN_IF_ERROR(expect_refused(
                strategy,
                strategy.run_with({.communication = {.timeout = absl::ZeroDuration()}},
                                  [](ReplicaContext&) { return absl::OkStatus(); }),
                bad, {"timeout is 0"}));
            // run_in_run, cross_replica_call_in_run
            TESSERA_RETURN_IF_ERROR(
                expect_refused(strategy, strategy.run([&](ReplicaContext&) -> Status {
                  return strategy.run([](ReplicaContext&) { return absl::OkStatus(); });
                }),
                               StatusCode::kFailedPrecondition, {"merge_call()"}));
            TESSERA_RETURN_IF_ERROR(
                expect_refused(strategy, strategy.run([&](ReplicaContext& replica) -> Status {
                  return strategy.reduce(ReduceOp::kAvg, scalar(replica, 1)).await();
                }),
                               StatusCode::kFailedPrecondition, {"reduce(avg)", "all_reduce"}));
            // An exception.
            return expect_refused(strategy, strategy.run([](ReplicaContext& replica) -> Status {
              // NOTIDY(banned): what a function of the user may do
              if (replica.replica_id_in_sync_group() == 2) throw std::runtime_error("row 7");
              return absl::OkStatus();
            }),
                                  StatusCode::kUnknown,
                                  {"replica 2", "raised an exception: row 7"});
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

// The gradients of the facts, with x = [1, 2] + r: grad_sum_2, grad_avg_2, grad_weighted_2,
// grad_gather_2, grad_gather_weighted_2, second_gradient_2; grad_sum_3, grad_avg_3,
// grad_weighted_3, grad_gather_3, grad_gather_weighted_3, second_gradient_3.
struct GradientRow {
  const char* name;
  std::function<DTensor(ReplicaContext&, const DTensor& x)> loss;
  std::function<std::vector<float>(int replica)> expected;
};

DTensor numbered(ReplicaContext& replica, const Shape& shape) {
  return iota<float>(shape, Layout::replicated(replica.mesh(), 1));
}
float weight(ReplicaContext& replica) {
  return static_cast<float>(replica.replica_id_in_sync_group() + 1);
}
DTensor two_elements(ReplicaContext& replica) {
  const float first = weight(replica);
  return from_host<float>({first, first + 1}, {2}, Layout::replicated(replica.mesh(), 1));
}

std::vector<GradientRow> gradient_rows(int n) {
  const float sums[2] = {n == 2 ? 3.0F : 6.0F, n == 2 ? 5.0F : 9.0F};
  const float replicas = static_cast<float>(n);
  const float weights = n == 2 ? 3 : 6;
  return {{"grad_sum",
           [](ReplicaContext& replica, const DTensor& x) {
             return ops::sum(ops::square(replica.all_reduce(ReduceOp::kSum, x)));
           },
           [=](int) {
             return std::vector<float>{2 * replicas * sums[0], 2 * replicas * sums[1]};
           }},
          {"grad_avg",
           [](ReplicaContext& replica, const DTensor& x) {
             return ops::sum(ops::square(replica.all_reduce(ReduceOp::kAvg, x)));
           },
           [=](int) {
             return std::vector<float>{2 * sums[0] / replicas, 2 * sums[1] / replicas};
           }},
          {"grad_weighted",
           [](ReplicaContext& replica, const DTensor& x) {
             return ops::sum(replica.all_reduce(ReduceOp::kSum, x)) * weight(replica);
           },
           [=](int) {
             return std::vector<float>{weights, weights};
           }},
          {"grad_gather",
           [](ReplicaContext& replica, const DTensor& x) {
             return ops::sum(ops::square(replica.all_gather(x, 0)));
           },
           [=](int r) {
             const float first = static_cast<float>(r + 1);
             return std::vector<float>{2 * replicas * first, 2 * replicas * (first + 1)};
           }},
          {"grad_gather_weighted",
           [](ReplicaContext& replica, const DTensor& x) {
             const DTensor y = replica.all_gather(x, 0);
             return ops::sum(y * numbered(replica, y.shape())) * weight(replica);
           },
           [=](int r) {
             const float first = static_cast<float>(2 * r);
             return std::vector<float>{weights * first, weights * (first + 1)};
           }}};
}

TEST_P(DistributeRunTest, Gradients) {
  for (const int n : {2, 3}) {
    const auto check = [n](const Client&, const Strategy& strategy) -> Status {
      for (const GradientRow& row : gradient_rows(n)) {
        const PerReplica gradient = strategy.run([&](ReplicaContext& replica) {
          Tape tape;
          const DTensor x = tape.watch(two_elements(replica));
          return tape.gradient(row.loss(replica, x), {x})[0];
        });
        TESSERA_RETURN_IF_ERROR(with_context(
            expect_local<float>(gradient, [&](int r) { return vector_of(row.expected(r)); }),
            row.name));
      }
      // d sum(d sum(y^3) / dx) / dx
      const PerReplica second = strategy.run([](ReplicaContext& replica) {
        Tape outer;
        Tape inner;
        const DTensor x = inner.watch(outer.watch(two_elements(replica)));
        const DTensor y = replica.all_reduce(ReduceOp::kSum, x);
        const DTensor slope = inner.gradient(ops::sum(y * y * y), {x})[0];
        return outer.gradient(ops::sum(slope), {x})[0];
      });
      const std::vector<float> expected =
          n == 2 ? std::vector<float>{72, 120} : std::vector<float>{324, 486};
      return with_context(expect_local<float>(second, [&](int) { return vector_of(expected); }),
                          "second_gradient");
    };
    EXPECT_THAT(run(n, check), IsOk()) << n;
  }
}

// grad_gather_uneven_2, grad_gather_uneven_3: x has r + 1 elements.
TEST_P(DistributeRunTest, GradientOfUnevenPieces) {
  for (const int n : {2, 3}) {
    EXPECT_THAT(
        run(n,
            [n](const Client&, const Strategy& strategy) -> Status {
              const PerReplica gradient = strategy.run([](ReplicaContext& replica) {
                Tape tape;
                const DTensor x = tape.watch(full<float>({replica.replica_id_in_sync_group() + 1},
                                                         1, Layout::replicated(replica.mesh(), 1)));
                const DTensor y = replica.all_gather(x, 0);
                return tape.gradient(ops::sum(y * numbered(replica, y.shape())), {x})[0];
              });
              const std::vector<float> of_two[] = {{0}, {2, 4}};
              const std::vector<float> of_three[] = {{0}, {3, 6}, {9, 12, 15}};
              return expect_local<float>(
                  gradient, [&](int r) { return vector_of(n == 2 ? of_two[r] : of_three[r]); });
            }),
        IsOk());
  }
}

// The gradients of extremes and products against their definitions.
TEST_P(DistributeRunTest, GradientsOfOtherReductions) {
  EXPECT_THAT(
      run(3,
          [](const Client&, const Strategy& strategy) -> Status {
            const auto gradient_of = [&](ReduceOp op) {
              return strategy.run([op](ReplicaContext& replica) {
                Tape tape;
                const float r = static_cast<float>(replica.replica_id_in_sync_group());
                // The largest first element is that of replica 2, the second is shared by 1 and 2.
                const DTensor x = tape.watch(from_host<float>(
                    {1 + r, std::min(r + 1, 2.0F)}, {2}, Layout::replicated(replica.mesh(), 1)));
                return tape.gradient(ops::sum(replica.all_reduce(op, x)), {x})[0];
              });
            };
            TESSERA_RETURN_IF_ERROR(expect_local<float>(gradient_of(ReduceOp::kMax), [](int r) {
              return vector_of<float>({r == 2 ? 3.0F : 0.0F, r == 0 ? 0.0F : 1.5F});
            }));
            // x is (1, 1), (2, 2), (3, 2): the products of the others, from three losses.
            return expect_local<float>(gradient_of(ReduceOp::kProd), [](int r) {
              const float first[] = {6, 3, 2};
              const float second[] = {4, 2, 2};
              return vector_of<float>({3 * first[r], 3 * second[r]});
            });
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

// in_replica_function: from a replica function and from a kernel, at once; it works afterwards.
TEST_P(DistributeRunTest, SyncDevicesInAReplicaFunction) {
  EXPECT_THAT(run(2,
                  [](const Client& client, const Strategy& strategy) -> Status {
                    Client mine = client;
                    const Status in_function =
                        strategy.run([&](ReplicaContext&) { return mine.sync_devices(); });
                    TESSERA_RETURN_IF_ERROR(
                        expect_error(in_function, StatusCode::kFailedPrecondition,
                                     {"sync_devices", "replica function", "after run()"}));
                    const Status in_kernel = strategy.run([&](ReplicaContext& replica) -> Status {
                      return local_map(Layout::replicated(replica.mesh(), 0), {}, DType::kFloat32,
                                       {}, [&](LocalContext&) { return mine.sync_devices(); })
                          .await();
                    });
                    TESSERA_RETURN_IF_ERROR(
                        expect_error(in_kernel, StatusCode::kFailedPrecondition, {"sync_devices"}));
                    mine.sync_devices().IgnoreError();  // the kernel's error, once
                    return mine.sync_devices();
                  }),
              IsOk());
}

// multi_timeout: the one that comes late is told at once, and the strategy works afterwards.
TEST(DistributeTimeoutTest, ReplicasThatDoNotCome) {
  Gate given_up;
  EXPECT_THAT(run_replicas(kReplicaForms[1], 2,
                           [&](const Client& client, const Strategy& strategy) -> Status {
                             const auto call = [](ReplicaContext& replica) -> Status {
                               return replica
                                   .all_reduce(ReduceOp::kSum, scalar(replica, 1),
                                               {.timeout = absl::Milliseconds(300)})
                                   .await();
                             };
                             if (client.client_id() == 1) {
                               TESSERA_RETURN_IF_ERROR(given_up.wait());
                             }
                             TESSERA_RETURN_IF_ERROR(expect_error(
                                 strategy.run(call), StatusCode::kDeadlineExceeded, {"client 1"}));
                             given_up.open();
                             const PerReplica sum = strategy.run([](ReplicaContext& replica) {
                               return replica.all_reduce(ReduceOp::kSum, scalar(replica, 1));
                             });
                             return expect_local<float>(sum, [](int) { return scalar_value(2); });
                           }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
