// SPDX-License-Identifier: Apache-2.0
//
// Variables of strategies: the rows "Variables" of the facts, on one client with all replicas and
// on a client for each. 3 replicas, f32, initial value 10; in replica functions replica r passes r
// + 1.
#include "distribute/variable.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "distribute/strategy.h"
#include "distribute/values.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "nn/optimizer.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/variable.h"
#include "tests/support/clients.h"
#include "tests/support/distribute/replicas.h"
#include "tests/support/expect_error.h"
#include "tests/support/folder.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using distribute::DistributedVariable;
using distribute::PerReplica;
using distribute::ReplicaContext;
using distribute::Strategy;
using distribute::VariableAggregation;
using distribute::VariableOptions;
using distribute::VariableSynchronization;

// on_write_cross_per_replica does not compile.
template <class Value>
constexpr bool kIsAssignable = requires(DistributedVariable& variable, const Value& value) {
  variable.assign(value);
};
static_assert(kIsAssignable<DTensor>);
static_assert(!kIsAssignable<PerReplica>);

constexpr VariableSynchronization kOnWrite = VariableSynchronization::kOnWrite;
constexpr VariableSynchronization kOnRead = VariableSynchronization::kOnRead;
constexpr VariableAggregation kNone = VariableAggregation::kNone;
constexpr VariableAggregation kSum = VariableAggregation::kSum;
constexpr VariableAggregation kMean = VariableAggregation::kMean;
constexpr VariableAggregation kFirst = VariableAggregation::kOnlyFirstReplica;

class DistributeVariableTest : public ::testing::TestWithParam<ReplicaForm> {
 protected:
  static Status run(int num_replicas, const ReplicaBody& body) {
    return run_replicas(GetParam(), num_replicas, body);
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, DistributeVariableTest, ::testing::ValuesIn(kReplicaForms),
                         [](const auto& info) { return std::string(info.param.name); });

enum class Change { kNothing, kAssign, kAdd, kSub };

struct VariableRow {
  const char* name;
  VariableSynchronization synchronization;
  VariableAggregation aggregation;
  Change change;
  bool in_replica;  // each passes r + 1, or all the same; else 6 outside of run
  std::vector<float> components;
  std::optional<float> value;  // nothing: FailedPrecondition
};

DTensor everywhere(const Strategy& strategy, float value) {
  return full<float>({}, value, Layout::replicated(strategy.mesh(), 0));
}

Status apply(const Strategy& strategy, DistributedVariable& variable, const VariableRow& row) {
  if (row.change == Change::kNothing) return absl::OkStatus();
  if (!row.in_replica) {
    const DTensor six = everywhere(strategy, 6);
    return row.change == Change::kAssign ? variable.assign(six)
           : row.change == Change::kAdd  ? variable.assign_add(six)
                                         : variable.assign_sub(six);
  }
  return strategy.run([&](ReplicaContext& replica) {
    const DTensor x = full<float>({}, static_cast<float>(replica.replica_id_in_sync_group() + 1),
                                  Layout::replicated(replica.mesh(), 0));
    return row.change == Change::kAssign ? variable.assign(replica, x)
           : row.change == Change::kAdd  ? variable.assign_add(replica, x)
                                         : variable.assign_sub(replica, x);
  });
}

Status check_row(const Strategy& strategy, const VariableRow& row) {
  TESSERA_ASSIGN_OR_RETURN(
      DistributedVariable variable,
      strategy.variable("v", everywhere(strategy, 10),
                        {.synchronization = row.synchronization, .aggregation = row.aggregation}));
  TESSERA_RETURN_IF_ERROR(apply(strategy, variable, row));
  const PerReplica components =
      strategy.run([&](ReplicaContext& replica) { return variable.value(replica); });
  TESSERA_RETURN_IF_ERROR(expect_local<float>(components, [&](int r) {
    return Values<float>{{}, {row.components[r]}};
  }));
  const DTensor value = variable.value();
  if (!row.value.has_value()) {
    return expect_error(value.await(), StatusCode::kFailedPrecondition,
                        {"\"v\"", "no aggregation"});
  }
  TESSERA_RETURN_IF_ERROR(strategy.check_replicas(variable));  // check_replicas_ok
  return expect_values<float>(value, {}, {*row.value});
}

TEST_P(DistributeVariableTest, Rows) {
  const std::vector<VariableRow> rows = {
      {"on_write_sum_assign", kOnWrite, kSum, Change::kAssign, true, {6, 6, 6}, 6},
      {"on_write_sum_assign_add", kOnWrite, kSum, Change::kAdd, true, {16, 16, 16}, 16},
      {"on_write_sum_assign_sub", kOnWrite, kSum, Change::kSub, true, {4, 4, 4}, 4},
      {"on_write_mean_assign", kOnWrite, kMean, Change::kAssign, true, {2, 2, 2}, 2},
      {"on_write_mean_assign_add", kOnWrite, kMean, Change::kAdd, true, {12, 12, 12}, 12},
      {"on_write_mean_assign_sub", kOnWrite, kMean, Change::kSub, true, {8, 8, 8}, 8},
      {"on_write_first_assign", kOnWrite, kFirst, Change::kAssign, true, {1, 1, 1}, 1},
      {"on_write_first_assign_add", kOnWrite, kFirst, Change::kAdd, true, {11, 11, 11}, 11},
      {"on_write_first_assign_sub", kOnWrite, kFirst, Change::kSub, true, {9, 9, 9}, 9},
      {"on_write_read", kOnWrite, kNone, Change::kNothing, true, {10, 10, 10}, 10},
      {"on_write_cross_assign", kOnWrite, kNone, Change::kAssign, false, {6, 6, 6}, 6},
      {"on_write_cross_assign_add", kOnWrite, kMean, Change::kAdd, false, {16, 16, 16}, 16},
      {"on_write_cross_assign_sub", kOnWrite, kSum, Change::kSub, false, {4, 4, 4}, 4},
      {"on_read_sum_initial", kOnRead, kSum, Change::kNothing, true, {10, 0, 0}, 10},
      {"on_read_sum_assign", kOnRead, kSum, Change::kAssign, true, {1, 2, 3}, 6},
      {"on_read_sum_assign_add", kOnRead, kSum, Change::kAdd, true, {11, 2, 3}, 16},
      {"on_read_sum_assign_sub", kOnRead, kSum, Change::kSub, true, {9, -2, -3}, 4},
      {"on_read_mean_initial", kOnRead, kMean, Change::kNothing, true, {10, 10, 10}, 10},
      {"on_read_mean_assign", kOnRead, kMean, Change::kAssign, true, {1, 2, 3}, 2},
      {"on_read_mean_assign_add", kOnRead, kMean, Change::kAdd, true, {11, 12, 13}, 12},
      {"on_read_mean_assign_sub", kOnRead, kMean, Change::kSub, true, {9, 8, 7}, 8},
      {"on_read_first_initial", kOnRead, kFirst, Change::kNothing, true, {10, 10, 10}, 10},
      {"on_read_first_assign", kOnRead, kFirst, Change::kAssign, true, {1, 2, 3}, 1},
      {"on_read_first_assign_add", kOnRead, kFirst, Change::kAdd, true, {11, 12, 13}, 11},
      {"on_read_first_assign_sub", kOnRead, kFirst, Change::kSub, true, {9, 8, 7}, 9},
      {"on_read_none_initial", kOnRead, kNone, Change::kNothing, true, {10, 10, 10}, {}},
      {"on_read_none_assign", kOnRead, kNone, Change::kAssign, true, {1, 2, 3}, {}},
      {"on_read_none_assign_add", kOnRead, kNone, Change::kAdd, true, {11, 12, 13}, {}},
      {"on_read_none_assign_sub", kOnRead, kNone, Change::kSub, true, {9, 8, 7}, {}},
      {"on_read_sum_cross_assign", kOnRead, kSum, Change::kAssign, false, {6, 0, 0}, 6},
      {"on_read_sum_cross_add", kOnRead, kSum, Change::kAdd, false, {16, 0, 0}, 16},
      {"on_read_mean_cross_assign", kOnRead, kMean, Change::kAssign, false, {6, 6, 6}, 6},
      {"on_read_mean_cross_add", kOnRead, kMean, Change::kAdd, false, {16, 16, 16}, 16},
      {"on_read_first_cross_assign", kOnRead, kFirst, Change::kAssign, false, {6, 6, 6}, 6},
      {"on_read_first_cross_add", kOnRead, kFirst, Change::kAdd, false, {16, 16, 16}, 16},
      {"on_read_none_cross_assign", kOnRead, kNone, Change::kAssign, false, {6, 6, 6}, {}},
      {"on_read_none_cross_add", kOnRead, kNone, Change::kAdd, false, {16, 16, 16}, {}},
  };
  EXPECT_THAT(run(3,
                  [&](const Client&, const Strategy& strategy) -> Status {
                    for (const VariableRow& row : rows) {
                      TESSERA_RETURN_IF_ERROR(with_context(check_row(strategy, row), row.name));
                    }
                    return absl::OkStatus();
                  }),
              IsOk());
}

TEST_P(DistributeVariableTest, OtherRows) {
  EXPECT_THAT(run(3,
                  [](const Client&, const Strategy& strategy) -> Status {
                    const DTensor ten = everywhere(strategy, 10);
                    // auto_is_on_write, on_read_not_trainable
                    TESSERA_ASSIGN_OR_RETURN(DistributedVariable plain,
                                             strategy.variable("plain", ten));
                    TESSERA_REQUIRE(plain.options().synchronization == kOnWrite);
                    TESSERA_REQUIRE(plain.options().trainable == distribute::Trainable::kYes);
                    TESSERA_REQUIRE(plain.name() == "plain" && plain.dtype() == DType::kFloat32 &&
                                    plain.shape().empty());
                    TESSERA_ASSIGN_OR_RETURN(
                        DistributedVariable counter,
                        strategy.variable("counter", everywhere(strategy, 0),
                                          {.synchronization = kOnRead, .aggregation = kSum}));
                    TESSERA_REQUIRE(counter.options().trainable == distribute::Trainable::kNo);
                    // on_read_accumulate
                    for (int i = 0; i < 3; ++i) {
                      TESSERA_RETURN_IF_ERROR(strategy.run([&](ReplicaContext& replica) {
                        return counter.assign_add(
                            replica, full<float>({}, replica.replica_id_in_sync_group() + 1.0F,
                                                 Layout::replicated(replica.mesh(), 0)));
                      }));
                    }
                    TESSERA_RETURN_IF_ERROR(expect_values<float>(counter.value(), {}, {18}));
                    return absl::OkStatus();
                  }),
              IsOk());
}

TEST_P(DistributeVariableTest, RefusedPolicies) {
  EXPECT_THAT(
      run(3,
          [](const Client&, const Strategy& strategy) -> Status {
            const DTensor ten = everywhere(strategy, 10);
            TESSERA_ASSIGN_OR_RETURN(DistributedVariable plain, strategy.variable("plain", ten));
            // none_refused, int_mean
            const StatusCode bad = StatusCode::kInvalidArgument;
            TESSERA_RETURN_IF_ERROR(expect_error(
                strategy.variable("v", ten, {.synchronization = VariableSynchronization::kNone})
                    .status(),
                bad, {"\"v\"", "kNone"}));
            for (const VariableOptions& unknown :
                 {VariableOptions{.synchronization = static_cast<VariableSynchronization>(9)},
                  VariableOptions{.aggregation = static_cast<VariableAggregation>(9)},
                  VariableOptions{.trainable = static_cast<distribute::Trainable>(9)},
                  VariableOptions{.initial = static_cast<distribute::InitialValue>(9)}}) {
              TESSERA_RETURN_IF_ERROR(expect_error(strategy.variable("v", ten, unknown).status(),
                                                   bad,
                                                   {"\"v\"", "(9) is not an enumerator; use k"}));
            }
            TESSERA_RETURN_IF_ERROR(expect_error(strategy.variable("", ten).status(), bad,
                                                 {"variable(): a variable needs a name"}));
            const PerReplica tens =
                strategy.values_from_function([&](const distribute::ValueContext&) { return ten; });
            for (const int index : {-1, 99}) {
              TESSERA_RETURN_IF_ERROR(expect_error(
                  tens.local(index).status(), bad,
                  {absl::StrCat("local(", index, ") is out of range; this client has "),
                   " local values, 0 to "}));
            }
            const DTensor seven = full<int32_t>({}, 7, Layout::replicated(strategy.mesh(), 0));
            for (const VariableSynchronization each : {kOnWrite, kOnRead}) {
              TESSERA_RETURN_IF_ERROR(expect_error(
                  strategy.variable("v", seven, {.synchronization = each, .aggregation = kMean})
                      .status(),
                  bad, {"\"v\"", "i32"}));
            }
            // on_read_int_sum
            TESSERA_ASSIGN_OR_RETURN(
                DistributedVariable ints,
                strategy.variable("ints",
                                  full<int32_t>({}, 0, Layout::replicated(strategy.mesh(), 0)),
                                  {.synchronization = kOnRead, .aggregation = kSum}));
            TESSERA_RETURN_IF_ERROR(ints.assign(seven));
            TESSERA_RETURN_IF_ERROR(expect_values<int32_t>(ints.value(), {}, {7}));
            // bool_first
            TESSERA_ASSIGN_OR_RETURN(
                DistributedVariable flag,
                strategy.variable("flag",
                                  full<bool>({}, true, Layout::replicated(strategy.mesh(), 0)),
                                  {.synchronization = kOnRead, .aggregation = kFirst}));
            TESSERA_RETURN_IF_ERROR(expect_values<bool>(flag.value(), {}, {true}));
            // on_write_none
            for (const Change change : {Change::kAssign, Change::kAdd, Change::kSub}) {
              TESSERA_RETURN_IF_ERROR(
                  expect_error(apply(strategy, plain,
                                     {"", kOnWrite, kNone, change, /*in_replica=*/true, {}, {}}),
                               StatusCode::kFailedPrecondition,
                               {"\"plain\"", "kSum, kMean or kOnlyFirstReplica"}));
            }
            TESSERA_RETURN_IF_ERROR(expect_values<float>(plain.value(), {}, {10}));
            return absl::OkStatus();
          }),
      IsOk());
}

TEST_P(DistributeVariableTest, AssignmentsOfOtherKinds) {
  EXPECT_THAT(
      run(3,
          [](const Client&, const Strategy& strategy) -> Status {
            const StatusCode bad = StatusCode::kInvalidArgument;
            const DTensor ten = everywhere(strategy, 10);
            TESSERA_ASSIGN_OR_RETURN(DistributedVariable plain, strategy.variable("plain", ten));
            // on_read_then_write
            TESSERA_ASSIGN_OR_RETURN(
                DistributedVariable mean,
                strategy.variable("mean", ten, {.synchronization = kOnRead, .aggregation = kMean}));
            TESSERA_RETURN_IF_ERROR(strategy.run([&](ReplicaContext& replica) {
              return mean.assign(replica, full<float>({}, replica.replica_id_in_sync_group(),
                                                      Layout::replicated(replica.mesh(), 0)));
            }));
            TESSERA_RETURN_IF_ERROR(mean.assign(everywhere(strategy, 8)));
            TESSERA_RETURN_IF_ERROR(expect_values<float>(mean.value(), {}, {8}));
            // on_write_cross_partial
            std::vector<HostTensor<float>> terms;
            for (const int replica : strategy.local_replicas()) {
              terms.push_back({{}, {static_cast<float>(replica)}});
            }
            TESSERA_RETURN_IF_ERROR(plain.assign(
                from_shards<float>({}, Layout::parse(strategy.mesh(), "[] sum{replica}"), terms)));
            TESSERA_RETURN_IF_ERROR(expect_values<float>(plain.value(), {}, {3}));
            // shape_mismatch, dtype_mismatch
            const DTensor row = full<float>({3}, 1, Layout::replicated(strategy.mesh(), 1));
            TESSERA_RETURN_IF_ERROR(
                expect_error(plain.assign(row), bad, {"\"plain\"", "[]", "[3]"}));
            TESSERA_RETURN_IF_ERROR(expect_error(
                plain.assign_add(full<double>({}, 1, Layout::replicated(strategy.mesh(), 0))), bad,
                {"f32", "f64"}));
            // variable_like
            TESSERA_ASSIGN_OR_RETURN(DistributedVariable like,
                                     strategy.variable_like(mean, "m", everywhere(strategy, 0)));
            TESSERA_REQUIRE(like.options().synchronization == kOnRead);
            TESSERA_REQUIRE(like.options().aggregation == kMean);
            return absl::OkStatus();
          }),
      IsOk());
}

TEST_P(DistributeVariableTest, MethodsOfTheOtherPlace) {
  EXPECT_THAT(
      run(3,
          [](const Client&, const Strategy& strategy) -> Status {
            const DTensor ten = everywhere(strategy, 10);
            TESSERA_ASSIGN_OR_RETURN(DistributedVariable plain, strategy.variable("plain", ten));
            TESSERA_ASSIGN_OR_RETURN(
                DistributedVariable mean,
                strategy.variable("mean", ten, {.synchronization = kOnRead, .aggregation = kMean}));
            // Methods of the other place.
            TESSERA_RETURN_IF_ERROR(
                expect_error(strategy.run([&](ReplicaContext&) { return plain.assign(ten); }),
                             StatusCode::kFailedPrecondition, {"assign", "with the context"}));
            TESSERA_RETURN_IF_ERROR(
                expect_error(strategy.run([&](ReplicaContext&) { return plain.value().await(); }),
                             StatusCode::kFailedPrecondition, {"value(replica)"}));
            // A variable of kOnRead is none of an optimizer.
            TESSERA_RETURN_IF_ERROR(expect_error(mean.variable().value().await(),
                                                 StatusCode::kFailedPrecondition, {"\"mean\""}));
            // random_initial: does not depend on the layout.
            TESSERA_ASSIGN_OR_RETURN(
                DistributedVariable drawn,
                strategy.variable("drawn",
                                  random::normal<float>(random::Key::from_seed(7), {4},
                                                        Layout::replicated(strategy.mesh(), 1))));
            TESSERA_RETURN_IF_ERROR(strategy.check_replicas(drawn));
            // on_write_sum_same, on_write_mean_same, on_write_first_same
            const std::pair<VariableAggregation, float> same[] = {
                {kSum, 15}, {kMean, 5}, {kFirst, 5}};
            for (const auto& [aggregation, expected] : same) {
              TESSERA_ASSIGN_OR_RETURN(
                  DistributedVariable v,
                  strategy.variable("same", ten, {.aggregation = aggregation}));
              TESSERA_RETURN_IF_ERROR(strategy.run([&](ReplicaContext& replica) {
                return v.assign(replica, full<float>({}, 5, Layout::replicated(replica.mesh(), 0)));
              }));
              TESSERA_RETURN_IF_ERROR(expect_values<float>(v.value(), {}, {expected}));
            }
            // on_read_float_sum
            TESSERA_ASSIGN_OR_RETURN(
                DistributedVariable floats,
                strategy.variable("floats", ten,
                                  {.synchronization = kOnRead, .aggregation = kSum}));
            TESSERA_RETURN_IF_ERROR(floats.assign(everywhere(strategy, 7)));
            return expect_values<float>(floats.value(), {}, {7});
          }),
      IsOk());
}

// update_sgd, update_per_replica_refused, update_on_read, update_in_run, optimizer_sum,
// optimizer_mean
TEST_P(DistributeVariableTest, Updates) {
  EXPECT_THAT(
      run(3,
          [](const Client& client, const Strategy& strategy) -> Status {
            const auto vector = [&](std::vector<float> values) {
              return on_mesh(strategy.mesh(), vector_of(std::move(values)));
            };
            const auto gradient = [&](ReplicaContext& replica, std::vector<float> values) {
              for (float& each : values) {
                each *= static_cast<float>(replica.replica_id_in_sync_group() + 1);
              }
              return on_mesh(replica.mesh(), vector_of(std::move(values)));
            };
            TESSERA_ASSIGN_OR_RETURN(DistributedVariable v, strategy.variable("v", vector({1, 2})));
            const auto descend = [](const DTensor& value, absl::Span<const DTensor> args) {
              return value - args[0] * 0.1;
            };
            TESSERA_RETURN_IF_ERROR(strategy.run([&](ReplicaContext& replica) -> Status {
              return replica.merge_call(
                  [&](const Strategy& merged, const PerReplica& gradients) -> Status {
                    return merged.update(v, descend, {merged.reduce(ReduceOp::kSum, gradients)});
                  },
                  gradient(replica, {1, 10}));
            }));
            TESSERA_RETURN_IF_ERROR(expect_values<float>(v.value(), {2}, {0.4F, -4}));
            const PerReplica each = values_of<float>(client, strategy, [](int r) {
              return Values<float>{{}, {r + 1.0F}};
            });
            TESSERA_RETURN_IF_ERROR(expect_error(strategy.update(v, descend, {each}),
                                                 StatusCode::kInvalidArgument,
                                                 {"\"v\"", "argument 0", "reduce()"}));
            TESSERA_RETURN_IF_ERROR(expect_error(strategy.run([&](ReplicaContext& replica) {
              return strategy.update(v, descend, {gradient(replica, {1, 1})});
            }),
                                                 StatusCode::kFailedPrecondition,
                                                 {"update()", "merge_call()"}));
            TESSERA_ASSIGN_OR_RETURN(
                DistributedVariable components,
                strategy.variable("c", everywhere(strategy, 10),
                                  {.synchronization = kOnRead, .aggregation = kSum}));
            TESSERA_RETURN_IF_ERROR(
                strategy.update(components,
                                [](const DTensor& value, absl::Span<const DTensor> args) {
                                  return value + args[0];
                                },
                                {each}));
            const PerReplica held =
                strategy.run([&](ReplicaContext& replica) { return components.value(replica); });
            const float expected[] = {11, 2, 3};
            TESSERA_RETURN_IF_ERROR(expect_local<float>(held, [&](int r) {
              return Values<float>{{}, {expected[r]}};
            }));
            return absl::OkStatus();
          }),
      IsOk());
}

// The changes communicate nothing, so that their order may differ between clients.
TEST_P(DistributeVariableTest, NoChangeOfAnotherThreadIsLost) {
  EXPECT_THAT(
      run(3,
          [](const Client&, const Strategy& strategy) -> Status {
            for (const VariableSynchronization synchronization : {kOnWrite, kOnRead}) {
              TESSERA_ASSIGN_OR_RETURN(
                  DistributedVariable variable,
                  strategy.variable("v", everywhere(strategy, 10),
                                    {.synchronization = synchronization, .aggregation = kMean}));
              const DTensor one = everywhere(strategy, 1);
              Status statuses[2];
              std::vector<std::thread> threads;
              for (Status& status : statuses) {
                threads.emplace_back([&status, &one, variable]() mutable {
                  for (int k = 0; k < 200; ++k) status.Update(variable.assign_add(one));
                });
              }
              for (std::thread& each : threads) each.join();
              for (const Status& status : statuses) TESSERA_RETURN_IF_ERROR(status);
              TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> value,
                                       variable.value().to_host<float>());
              TESSERA_REQUIRE(value.data[0] == 410, value.data[0]);
            }
            return absl::OkStatus();
          }),
      IsOk());
}

// An update of components whose function fails for one replica changes none.
TEST(DistributeVariableClientsTest, UpdatesOfAllComponentsOrNone) {
  EXPECT_THAT(
      run_clients({.devices_per_client = 3},
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Strategy strategy,
                                             distribute::mirrored_strategy(client));
                    TESSERA_ASSIGN_OR_RETURN(
                        DistributedVariable v,
                        strategy.variable("v", everywhere(strategy, 10),
                                          {.synchronization = kOnRead, .aggregation = kSum}));
                    int num_calls = 0;
                    const DTensor row = full<float>({2}, 1, Layout::replicated(strategy.mesh(), 1));
                    TESSERA_RETURN_IF_ERROR(expect_error(
                        strategy.update(v,
                                        [&](const DTensor& value, absl::Span<const DTensor>) {
                                          return ++num_calls == 2 ? row : value + 100;
                                        }),
                        StatusCode::kInvalidArgument, {"update of variable \"v\"", "[2]"}));
                    return expect_values<float>(v.value(), {}, {10});
                  }),
      IsOk());
}

// In a replica function each replica would do it.
TEST_P(DistributeVariableTest, VariableOfAnOptimizerInAReplicaFunction) {
  EXPECT_THAT(
      run(3,
          [](const Client&, const Strategy& strategy) -> Status {
            TESSERA_ASSIGN_OR_RETURN(DistributedVariable v,
                                     strategy.variable("v", everywhere(strategy, 10)));
            const DTensor one = everywhere(strategy, 1);
            const std::function<Status()> calls[] = {
                [&] { return v.variable().assign(one); },
                [&] { return v.variable().assign_add(one); },
                [&] { return v.variable().assign_sub(one); },
                [&] {
                  Sgd sgd{.learning_rate = 0.1};
                  return sgd.apply({v.variable()}, {one});
                },
            };
            for (const std::function<Status()>& call : calls) {
              TESSERA_RETURN_IF_ERROR(expect_error(
                  strategy.run([&](ReplicaContext&) { return call(); }),
                  StatusCode::kFailedPrecondition,
                  {" of variable \"v\" is called in a replica function", "outside of run()"}));
              TESSERA_RETURN_IF_ERROR(expect_values<float>(v.value(), {}, {10}));
            }
            // It is once in merge_call().
            TESSERA_RETURN_IF_ERROR(strategy.run([&](ReplicaContext& replica) {
              return replica.merge_call([&](const Strategy&) { return calls[1](); });
            }));
            return expect_values<float>(v.value(), {}, {11});
          }),
      IsOk());
}

// optimizer_sum, optimizer_mean
TEST_P(DistributeVariableTest, Optimizers) {
  EXPECT_THAT(
      run(3,
          [](const Client&, const Strategy& strategy) -> Status {
            const auto vector = [&](std::vector<float> values) {
              return on_mesh(strategy.mesh(), vector_of(std::move(values)));
            };
            for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
              TESSERA_ASSIGN_OR_RETURN(DistributedVariable w,
                                       strategy.variable("w", vector({1, 1})));
              const PerReplica gradients = strategy.run([&](ReplicaContext& replica) {
                const auto factor = static_cast<float>(replica.replica_id_in_sync_group() + 1);
                return on_mesh(replica.mesh(), vector_of<float>({factor, 2 * factor}));
              });
              Sgd sgd;
              sgd.learning_rate = 0.1;
              TESSERA_RETURN_IF_ERROR(sgd.apply({w.variable()}, {strategy.reduce(op, gradients)}));
              TESSERA_RETURN_IF_ERROR(expect_values<float>(w.value(), {2},
                                                           op == ReduceOp::kSum
                                                               ? std::vector<float>{0.4F, -0.2F}
                                                               : std::vector<float>{0.8F, 0.6F}));
            }
            return absl::OkStatus();
          }),
      IsOk());
}

// initial_differs, initial_from_first, cross_assign_differs
TEST(DistributeVariableClientsTest, ClientsThatDiffer) {
  EXPECT_THAT(
      run_replicas(kReplicaForms[1], 2,
                   [](const Client& client, const Strategy& strategy) -> Status {
                     const DTensor mine = everywhere(strategy, 100.0F * (client.client_id() + 1));
                     TESSERA_RETURN_IF_ERROR(expect_error(strategy.variable("v", mine).status(),
                                                          StatusCode::kInvalidArgument,
                                                          {"\"v\"", "client 0", "client 1"}));
                     TESSERA_ASSIGN_OR_RETURN(
                         DistributedVariable first,
                         strategy.variable(
                             "v", mine, {.initial = distribute::InitialValue::kFromFirstReplica}));
                     TESSERA_RETURN_IF_ERROR(expect_values<float>(first.value(), {}, {100}));
                     TESSERA_RETURN_IF_ERROR(strategy.check_replicas(first));
                     TESSERA_RETURN_IF_ERROR(
                         first.assign(everywhere(strategy, 5.0F + client.client_id())));
                     // check_replicas_bad
                     return expect_error(strategy.check_replicas(first), StatusCode::kInternal,
                                         {"\"v\"", "replica 0 (client 0", "replica 1 (client 1"});
                   }),
      IsOk());
}

// central_read, central_sum, central_none, central_on_read, meshes
TEST(DistributeVariableClientsTest, CentralStorage) {
  EXPECT_THAT(
      run_clients({.devices_per_client = 4},
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(
                        const Strategy strategy,
                        distribute::central_storage_strategy(client, {1, 2, 3}, 0));
                    TESSERA_REQUIRE(strategy.parameter_mesh().to_string() == "{central=1}",
                                    strategy.parameter_mesh().to_string());
                    TESSERA_REQUIRE(strategy.num_replicas_in_sync() == 3);
                    TESSERA_ASSIGN_OR_RETURN(
                        DistributedVariable v,
                        strategy.variable("v", everywhere(strategy, 10), {.aggregation = kSum}));
                    const PerReplica read =
                        strategy.run([&](ReplicaContext& replica) { return v.value(replica); });
                    TESSERA_RETURN_IF_ERROR(expect_local<float>(read, [](int) {
                      return Values<float>{{}, {10}};
                    }));
                    TESSERA_REQUIRE(read.local(1).layout().mesh().device_ids()[0] == 2);
                    TESSERA_RETURN_IF_ERROR(
                        apply(strategy, v, {"", kOnWrite, kSum, Change::kAdd, true, {}, {}}));
                    TESSERA_RETURN_IF_ERROR(expect_values<float>(v.value(), {}, {16}));
                    TESSERA_REQUIRE(v.value().layout().mesh() == strategy.parameter_mesh());
                    // An argument moves to where the variable is.
                    TESSERA_RETURN_IF_ERROR(
                        strategy.update(v,
                                        [](const DTensor& value, absl::Span<const DTensor> args) {
                                          return value + args[0];
                                        },
                                        {everywhere(strategy, 4)}));
                    TESSERA_RETURN_IF_ERROR(expect_values<float>(v.value(), {}, {20}));
                    TESSERA_ASSIGN_OR_RETURN(DistributedVariable none,
                                             strategy.variable("none", everywhere(strategy, 10)));
                    TESSERA_RETURN_IF_ERROR(expect_error(
                        apply(strategy, none, {"", kOnWrite, kNone, Change::kAssign, true, {}, {}}),
                        StatusCode::kFailedPrecondition, {"\"none\""}));
                    TESSERA_ASSIGN_OR_RETURN(
                        DistributedVariable own,
                        strategy.variable("own", everywhere(strategy, 10),
                                          {.synchronization = kOnRead, .aggregation = kSum}));
                    TESSERA_RETURN_IF_ERROR(
                        apply(strategy, own, {"", kOnRead, kSum, Change::kAdd, true, {}, {}}));
                    return expect_values<float>(own.value(), {}, {16});
                  }),
      IsOk());
}

// Handles are copied where they are moved.
TEST(DistributeVariableClientsTest, WhatWasMovedFromStays) {
  EXPECT_THAT(
      run_clients({.devices_per_client = 2},
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(Strategy strategy,
                                             distribute::mirrored_strategy(client));
                    const Strategy other = std::move(strategy);
                    TESSERA_REQUIRE(strategy.mesh() == other.mesh());
                    TESSERA_ASSIGN_OR_RETURN(DistributedVariable v,
                                             strategy.variable("v", everywhere(other, 10)));
                    DistributedVariable same = std::move(v);
                    TESSERA_RETURN_IF_ERROR(same.assign_add(everywhere(other, 1)));
                    TESSERA_RETURN_IF_ERROR(expect_values<float>(v.value(), {}, {11}));
                    PerReplica values =
                        other.run([&](ReplicaContext& replica) { return v.value(replica); });
                    const PerReplica kept = std::move(values);
                    return expect_local<float>(values, [](int) { return Values<float>{{}, {11}}; });
                  }),
      IsOk());
}

// variable_of_another
TEST(DistributeVariableClientsTest, VariablesOfAnotherStrategy) {
  EXPECT_THAT(
      run_clients(
          {.devices_per_client = 3},
          [](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Strategy two,
                                     distribute::mirrored_strategy(client, {0, 1}));
            TESSERA_ASSIGN_OR_RETURN(const Strategy three, distribute::mirrored_strategy(client));
            TESSERA_ASSIGN_OR_RETURN(const DistributedVariable v,
                                     two.variable("v", everywhere(two, 1)));
            return expect_error(
                three.run([&](ReplicaContext& replica) { return v.value(replica).await(); }),
                StatusCode::kInvalidArgument, {"\"v\"", "2 replicas", "of 3"});
          }),
      IsOk());
}

// Variables in checkpoints. A variable is saved as its value, and restored by assign().

struct SavedRow {
  const char* name;
  VariableAggregation aggregation;
  float saved;          // of components 1 and 4 on 2 replicas
  float components[3];  // restored on 3
};
constexpr SavedRow kSavedRows[] = {{"saved_sum", kSum, 5, {5, 0, 0}},
                                   {"saved_mean", kMean, 2.5, {2.5, 2.5, 2.5}},
                                   {"saved_first", kFirst, 1, {1, 1, 1}}};

StatusOr<DistributedVariable> on_read_variable(const Strategy& strategy, const char* name,
                                               VariableAggregation aggregation) {
  return strategy.variable(name, everywhere(strategy, 0),
                           {.synchronization = kOnRead, .aggregation = aggregation});
}

StatusOr<NamedTensor> one_and_four(const Strategy& two, const char* name,
                                   VariableAggregation aggregation) {
  TESSERA_ASSIGN_OR_RETURN(DistributedVariable v, on_read_variable(two, name, aggregation));
  TESSERA_RETURN_IF_ERROR(two.run([&](ReplicaContext& replica) {
    return v.assign(replica, scalar(replica, replica.replica_id_in_sync_group() == 0 ? 1 : 4));
  }));
  return NamedTensor{v.name(), v.value()};
}

Status expect_restored(const Client& client, const Strategy& strategy, const std::string& path) {
  std::vector<DistributedVariable> variables;
  std::vector<checkpoint::Target> targets;
  for (const SavedRow& row : kSavedRows) {
    TESSERA_ASSIGN_OR_RETURN(const DistributedVariable v,
                             on_read_variable(strategy, row.name, row.aggregation));
    variables.push_back(v);
    targets.push_back({v.name(), v.value().layout()});
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> saved,
                           checkpoint::restore(client, path, targets));
  for (size_t i = 0; i < variables.size(); ++i) {
    const SavedRow& row = kSavedRows[i];
    DistributedVariable& v = variables[i];
    TESSERA_RETURN_IF_ERROR(v.assign(saved[i]));
    TESSERA_RETURN_IF_ERROR(with_context(
        expect_local<float>(strategy.run([&](ReplicaContext& replica) { return v.value(replica); }),
                            [&](int r) { return scalar_value(row.components[r]); }),
        row.name));
    TESSERA_RETURN_IF_ERROR(expect_values<float>(v.value(), {}, {row.saved}));
  }
  return absl::OkStatus();
}

TEST_P(DistributeVariableTest, SavedAndRestoredOnOtherReplicas) {
  const Folder folder;
  const std::string path = folder / "a";
  EXPECT_THAT(run(2,
                  [&](const Client& client, const Strategy& two) -> Status {
                    std::vector<NamedTensor> values;
                    for (const SavedRow& row : kSavedRows) {
                      TESSERA_ASSIGN_OR_RETURN(const NamedTensor v,
                                               one_and_four(two, row.name, row.aggregation));
                      values.push_back(v);
                    }
                    return checkpoint::save(client, path, values);
                  }),
              IsOk());
  for (const int num_replicas : {1, 3}) {
    EXPECT_THAT(run(num_replicas,
                    [&](const Client& client, const Strategy& strategy) {
                      return expect_restored(client, strategy, path);
                    }),
                IsOk());
  }
}

// saved_none
TEST_P(DistributeVariableTest, SavedNone) {
  const Folder folder;
  EXPECT_THAT(run(2,
                  [&](const Client& client, const Strategy& two) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const NamedTensor v, one_and_four(two, "v", kNone));
                    return expect_error(checkpoint::save(client, folder / "a", {v}),
                                        StatusCode::kFailedPrecondition, {"\"v\"", "no one value"});
                  }),
              IsOk());
  EXPECT_TRUE(names_of(folder.path()).empty());
}

TEST_P(DistributeVariableTest, OneClientSaves) {
  const Folder folder;
  const std::string path = folder / "a";
  const Shape small = {4};
  const Shape large = {1 << 15};
  const auto weights = [&](const Strategy& strategy,
                           bool is_zero) -> StatusOr<std::vector<Variable>> {
    const StatusOr<Layout> mirrored = Layout::replicated(strategy.mesh(), 1);
    std::vector<Variable> result;
    for (const auto& [name, shape] : {std::pair("small", small), std::pair("large", large)}) {
      TESSERA_ASSIGN_OR_RETURN(DistributedVariable v,
                               strategy.variable(name, is_zero ? zeros<float>(shape, mirrored)
                                                               : iota<float>(shape, mirrored)));
      result.push_back(v.variable());
    }
    return result;
  };
  EXPECT_THAT(run(3,
                  [&](const Client& client, const Strategy& three) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const std::vector<Variable> w, weights(three, false));
                    return checkpoint::save(
                        client, path, {{w[0].name(), w[0].value()}, {w[1].name(), w[1].value()}});
                  }),
              IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const checkpoint::Info info, checkpoint::read_info(path));
  ASSERT_EQ(info.tensors.size(), 2u);
  for (const checkpoint::TensorInfo& tensor : info.tensors) {
    // A large box is cut between the replicas, which own a part each.
    std::set<int> files;
    int64_t elements = 0;
    for (const checkpoint::Piece& piece : tensor.pieces) {
      files.insert(piece.file);
      elements += piece.box.num_elements();
    }
    EXPECT_EQ(elements, num_elements(tensor.shape)) << tensor.name;
    EXPECT_EQ(tensor.pieces.size(), tensor.shape == large ? 3u : 1u) << tensor.name;
    EXPECT_EQ(files.size(), tensor.pieces.size()) << tensor.name;
  }
  EXPECT_THAT(
      run(2,
          [&](const Client& client, const Strategy& two) -> Status {
            TESSERA_ASSIGN_OR_RETURN(std::vector<Variable> w, weights(two, true));
            TESSERA_RETURN_IF_ERROR(checkpoint::restore_into(client, path, absl::MakeSpan(w)));
            TESSERA_RETURN_IF_ERROR(expect_iota<float>(w[0].value()));
            return expect_iota<float>(w[1].value());
          }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
