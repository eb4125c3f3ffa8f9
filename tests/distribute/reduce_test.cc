// SPDX-License-Identifier: Apache-2.0
//
// Values of replicas: the rows "Reduce", "Gather" and "StrategyExtended" of the facts, on one
// client with all replicas and on a client for each. Rows are named as there.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
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
#include "mesh/mesh_runtime.h"
#include "tests/support/clients.h"
#include "tests/support/distribute/replicas.h"
#include "tests/support/expect_error.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using distribute::PerReplica;
using distribute::Strategy;

constexpr float kInf = std::numeric_limits<float>::infinity();

class DistributeReduceTest : public ::testing::TestWithParam<ReplicaForm> {};
INSTANTIATE_TEST_SUITE_P(Forms, DistributeReduceTest, ::testing::ValuesIn(kReplicaForms),
                         [](const auto& info) { return std::string(info.param.name); });

template <class T>
using ValueOf = std::function<Values<T>(int replica)>;

// [m r, m r + 1, ...] of replica r.
ValueOf<float> counted(float m, int size) {
  return [m, size](int replica) {
    std::vector<float> data(size);
    std::iota(data.begin(), data.end(), m * static_cast<float>(replica));
    return vector_of(data);
  };
}

// 4 elements of each replica, but 2 of the last; numbered through.
Values<float> ragged(int replica, int num_replicas) {
  std::vector<float> data(replica == num_replicas - 1 ? 2 : 4);
  std::iota(data.begin(), data.end(), 4.0F * static_cast<float>(replica));
  return vector_of(data);
}

// [3, 5], or nothing.
Values<float> three_and_five(bool has_elements) {
  return vector_of<float>(has_elements ? std::vector<float>{3, 5} : std::vector<float>());
}

// iota[2, 3] + 6 r.
Values<float> matrix(int replica) {
  std::vector<float> data(6);
  std::iota(data.begin(), data.end(), 6.0F * static_cast<float>(replica));
  return {{2, 3}, data};
}

template <class T>
struct Row {
  const char* name;
  ReduceOp op;
  ValueOf<T> value;
  std::vector<int> dims;
  Shape shape;
  std::vector<T> expected;
};

template <class T>
Status check_rows(const ReplicaForm& form, int num_replicas, const std::vector<Row<T>>& rows) {
  return run_replicas(
      form, num_replicas, [&](const Client& client, const Strategy& strategy) -> Status {
        for (const Row<T>& row : rows) {
          const DTensor result =
              strategy.reduce(row.op, values_of<T>(client, strategy, row.value), row.dims);
          TESSERA_RETURN_IF_ERROR(
              with_context(expect_values<T>(result, row.shape, row.expected), row.name));
          TESSERA_REQUIRE(result.layout().mesh() == strategy.mesh(), row.name);
        }
        return absl::OkStatus();
      });
}

TEST_P(DistributeReduceTest, RowsOfTwo) {
  const auto two = [](int r) { return ragged(r, 2); };
  const auto with_empty = [](int r) { return three_and_five(r < 1); };
  const ValueOf<float> counted_10 = counted(10, 4);
  EXPECT_THAT(check_rows<float>(
                  GetParam(), 2,
                  {{"sum_2", ReduceOp::kSum, counted_10, {}, {4}, {10, 12, 14, 16}},
                   {"avg_2", ReduceOp::kAvg, counted_10, {}, {4}, {5, 6, 7, 8}},
                   {"sum_dim0_2", ReduceOp::kSum, counted_10, {0}, {}, {52}},
                   {"avg_dim0_2", ReduceOp::kAvg, counted_10, {0}, {}, {6.5}},
                   {"ragged_sum_2", ReduceOp::kSum, two, {0}, {}, {15}},
                   {"ragged_avg_2", ReduceOp::kAvg, two, {0}, {}, {2.5}},
                   {"last_empty_2 sum", ReduceOp::kSum, with_empty, {0}, {}, {8}},
                   {"last_empty_2 avg", ReduceOp::kAvg, with_empty, {0}, {}, {4}},
                   {"matrix_sum_2", ReduceOp::kSum, matrix, {}, {2, 3}, {6, 8, 10, 12, 14, 16}},
                   {"matrix_dim0_2 sum", ReduceOp::kSum, matrix, {0}, {3}, {18, 22, 26}},
                   {"matrix_dim0_2 avg", ReduceOp::kAvg, matrix, {0}, {3}, {4.5, 5.5, 6.5}},
                   {"matrix_dim1_2 sum", ReduceOp::kSum, matrix, {1}, {2}, {24, 42}},
                   {"matrix_dim1_2 avg", ReduceOp::kAvg, matrix, {1}, {2}, {4, 7}},
                   {"matrix_both_2 sum", ReduceOp::kSum, matrix, {0, 1}, {}, {66}},
                   {"matrix_both_2 avg", ReduceOp::kAvg, matrix, {0, 1}, {}, {5.5}}}),
              IsOk());
}

TEST_P(DistributeReduceTest, RowsOfThree) {
  const auto three = [](int r) { return ragged(r, 3); };
  const auto with_empty = [](int r) { return three_and_five(r < 2); };
  const ValueOf<float> counted_10 = counted(10, 4);
  const auto ones_of_rows = [](int r) {
    return Values<float>{{r + 1, 2}, std::vector<float>(2 * (r + 1), 1)};
  };
  const auto scalar = [](int r) { return Values<float>{{}, {static_cast<float>(r + 1)}}; };
  const auto none = [](int) { return vector_of<float>({}); };
  const auto nan = [](int r) { return vector_of<float>({r == 1 ? NAN : 1.0F}); };
  EXPECT_THAT(check_rows<float>(
                  GetParam(), 3,
                  {{"sum_3", ReduceOp::kSum, counted_10, {}, {4}, {30, 33, 36, 39}},
                   {"avg_3", ReduceOp::kAvg, counted_10, {}, {4}, {10, 11, 12, 13}},
                   {"sum_dim0_3", ReduceOp::kSum, counted_10, {0}, {}, {138}},
                   {"avg_dim0_3", ReduceOp::kAvg, counted_10, {0}, {}, {11.5}},
                   {"max_3", ReduceOp::kMax, counted_10, {}, {4}, {20, 21, 22, 23}},
                   {"min_3", ReduceOp::kMin, counted_10, {}, {4}, {0, 1, 2, 3}},
                   {"prod_3", ReduceOp::kProd, counted_10, {}, {4}, {0, 231, 528, 897}},
                   {"negative_dim", ReduceOp::kSum, counted_10, {-1}, {}, {138}},
                   {"ragged_sum_3", ReduceOp::kSum, three, {0}, {}, {45}},
                   {"ragged_avg_3", ReduceOp::kAvg, three, {0}, {}, {4.5}},
                   {"last_empty_3 sum", ReduceOp::kSum, with_empty, {0}, {}, {16}},
                   {"last_empty_3 avg", ReduceOp::kAvg, with_empty, {0}, {}, {4}},
                   {"matrix_sum_3", ReduceOp::kSum, matrix, {}, {2, 3}, {18, 21, 24, 27, 30, 33}},
                   {"matrix_dim0_3 sum", ReduceOp::kSum, matrix, {0}, {3}, {45, 51, 57}},
                   {"matrix_dim0_3 avg", ReduceOp::kAvg, matrix, {0}, {3}, {7.5, 8.5, 9.5}},
                   {"matrix_dim1_3 sum", ReduceOp::kSum, matrix, {1}, {2}, {63, 90}},
                   {"matrix_dim1_3 avg", ReduceOp::kAvg, matrix, {1}, {2}, {7, 10}},
                   {"matrix_both_3 sum", ReduceOp::kSum, matrix, {0, 1}, {}, {153}},
                   {"matrix_both_3 avg", ReduceOp::kAvg, matrix, {0, 1}, {}, {8.5}},
                   {"rows_differ sum", ReduceOp::kSum, ones_of_rows, {0}, {2}, {6, 6}},
                   {"rows_differ avg", ReduceOp::kAvg, ones_of_rows, {0}, {2}, {1, 1}},
                   {"scalars sum", ReduceOp::kSum, scalar, {}, {}, {6}},
                   {"scalars avg", ReduceOp::kAvg, scalar, {}, {}, {2}},
                   {"scalars max", ReduceOp::kMax, scalar, {}, {}, {3}},
                   {"all_empty sum", ReduceOp::kSum, none, {0}, {}, {0}},
                   {"all_empty avg", ReduceOp::kAvg, none, {0}, {}, {NAN}},
                   {"nan_sum", ReduceOp::kSum, nan, {}, {1}, {NAN}},
                   {"nan_sum max", ReduceOp::kMax, nan, {}, {1}, {1}},
                   {"all_empty_elementwise",
                    ReduceOp::kSum,
                    [](int) {
                      return Values<float>{{0, 2}, {}};
                    },
                    {},
                    {0, 2},
                    {}}}),
              IsOk());
}

TEST_P(DistributeReduceTest, RowsOfOtherDtypes) {
  EXPECT_THAT(
      check_rows<int32_t>(GetParam(), 3,
                          {{"i32_wraps",
                            ReduceOp::kSum,
                            [](int r) { return vector_of<int32_t>({r == 0 ? INT32_MAX : 1}); },
                            {},
                            {1},
                            {-2147483647}}}),
      IsOk());
  EXPECT_THAT(check_rows<int64_t>(
                  GetParam(), 3,
                  {{"i64_exact",
                    ReduceOp::kSum,
                    [](int r) { return vector_of<int64_t>({r == 0 ? 9007199254740992 : 2 - r}); },
                    {},
                    {1},
                    {9007199254740993}}}),
              IsOk());
  EXPECT_THAT(check_rows<double>(GetParam(), 3,
                                 {{"f64_in_order",
                                   ReduceOp::kSum,
                                   [](int r) { return vector_of<double>({0.1 * (r + 1)}); },
                                   {},
                                   {1},
                                   {0.1 + 0.2 + 0.1 * 3}}}),
              IsOk());
  using Eigen::bfloat16;
  const auto rounded = [](int r) {
    return vector_of<bfloat16>({bfloat16(r == 0 ? 256.0F : 1.0F)});
  };
  EXPECT_THAT(
      check_rows<bfloat16>(
          GetParam(), 3,
          {{"bf16_rounds_once", ReduceOp::kSum, rounded, {}, {1}, {bfloat16(258.0F)}},
           {"bf16_rounds_once dim 0", ReduceOp::kSum, rounded, {0}, {}, {bfloat16(258.0F)}}}),
      IsOk());
  const auto one_true = [](int r) { return vector_of<bool>({r == 0}); };
  EXPECT_THAT(check_rows<bool>(GetParam(), 3,
                               {{"bool_max", ReduceOp::kMax, one_true, {}, {1}, {true}},
                                {"bool_max min", ReduceOp::kMin, one_true, {}, {1}, {false}}}),
              IsOk());
}

TEST_P(DistributeReduceTest, RowsOfFour) {
  const auto four = [](int r) { return ragged(r, 4); };
  const auto with_empty = [](int r) { return three_and_five(r < 3); };
  const ValueOf<float> counted_10 = counted(10, 4);
  EXPECT_THAT(check_rows<float>(
                  GetParam(), 4,
                  {{"sum_4", ReduceOp::kSum, counted_10, {}, {4}, {60, 64, 68, 72}},
                   {"avg_4", ReduceOp::kAvg, counted_10, {}, {4}, {15, 16, 17, 18}},
                   {"sum_dim0_4", ReduceOp::kSum, counted_10, {0}, {}, {264}},
                   {"avg_dim0_4", ReduceOp::kAvg, counted_10, {0}, {}, {16.5}},
                   {"ragged_sum_4", ReduceOp::kSum, four, {0}, {}, {91}},
                   {"last_empty_4 sum", ReduceOp::kSum, with_empty, {0}, {}, {24}},
                   {"last_empty_4 avg", ReduceOp::kAvg, with_empty, {0}, {}, {4}},
                   {"matrix_sum_4", ReduceOp::kSum, matrix, {}, {2, 3}, {36, 40, 44, 48, 52, 56}},
                   {"ragged_avg_4", ReduceOp::kAvg, four, {0}, {}, {6.5}},
                   {"matrix_dim0_4 sum", ReduceOp::kSum, matrix, {0}, {3}, {84, 92, 100}},
                   {"matrix_dim1_4 avg", ReduceOp::kAvg, matrix, {1}, {2}, {10, 13}},
                   {"matrix_both_4 sum", ReduceOp::kSum, matrix, {0, 1}, {}, {276}}}),
              IsOk());
}

TEST_P(DistributeReduceTest, HalvesAndBytesOfTwo) {
  using Eigen::half;
  const auto halves = [](int) {
    return vector_of<half>({half(65504.0F), half(256.0F), half(1.0F)});
  };
  EXPECT_THAT(
      check_rows<half>(
          GetParam(), 2,
          {{"f16_avg", ReduceOp::kAvg, halves, {}, {3}, {half(65504.0F), half(256.0F), half(1.0F)}},
           {"f16_sum", ReduceOp::kSum, halves, {}, {3}, {half(kInf), half(512.0F), half(2.0F)}}}),
      IsOk());
  EXPECT_THAT(check_rows<uint8_t>(GetParam(), 2,
                                  {{"u8_wraps",
                                    ReduceOp::kSum,
                                    [](int) {
                                      return vector_of<uint8_t>({200, 100});
                                    },
                                    {},
                                    {2},
                                    {144, 200}}}),
              IsOk());
}

// A refusal, after which a reduction is right: usable_after.
Status expect_refused(const Client& client, const Strategy& strategy, const DTensor& result,
                      const std::vector<std::string>& texts) {
  TESSERA_RETURN_IF_ERROR(expect_error(result.await(), StatusCode::kInvalidArgument, texts));
  return expect_values<float>(
      strategy.reduce(ReduceOp::kSum, values_of<float>(client, strategy, counted(10, 2))), {2},
      {30, 33});
}

TEST_P(DistributeReduceTest, Refusals) {
  EXPECT_THAT(
      run_replicas(
          GetParam(), 3,
          [](const Client& client, const Strategy& strategy) -> Status {
            const auto expect = [&](const DTensor& result, const std::vector<std::string>& texts) {
              return expect_refused(client, strategy, result, texts);
            };
            const auto floats = [&](const ValueOf<float>& value) {
              return values_of<float>(client, strategy, value);
            };
            const auto three = [](int r) { return ragged(r, 3); };
            const auto columns = [](int r) {
              return Values<float>{{2, r + 1}, std::vector<float>(2 * (r + 1), 1)};
            };
            const auto scalar = [](int) { return Values<float>{{}, {1}}; };
            const auto none = [](int) { return vector_of<float>({}); };
            // dim_out_of_range
            TESSERA_RETURN_IF_ERROR(expect(
                strategy.reduce(ReduceOp::kSum, floats(counted(1, 2)), {1}), {"dim 1", "rank 1"}));
            // ragged_elementwise
            TESSERA_RETURN_IF_ERROR(expect(strategy.reduce(ReduceOp::kSum, floats(three)),
                                           {"replica 0", "replica 2", "[4]", "[2]"}));
            // columns_differ
            TESSERA_RETURN_IF_ERROR(
                expect(strategy.reduce(ReduceOp::kSum, floats(columns), {0}),
                       {"replica 0", "replica 1", "size 1 of dim 1", "size 2"}));
            // scalar_with_dim
            TESSERA_RETURN_IF_ERROR(expect(strategy.reduce(ReduceOp::kSum, floats(scalar), {0}),
                                           {"rank 0 has no dim 0"}));
            // all_empty
            TESSERA_RETURN_IF_ERROR(expect(strategy.reduce(ReduceOp::kMax, floats(none), {0}),
                                           {"no replica has an element"}));
            return absl::OkStatus();
          }),
      IsOk());
}

TEST_P(DistributeReduceTest, RefusedTypes) {
  EXPECT_THAT(
      run_replicas(
          GetParam(), 3,
          [](const Client& client, const Strategy& strategy) -> Status {
            const auto expect = [&](const DTensor& result, const std::vector<std::string>& texts) {
              return expect_refused(client, strategy, result, texts);
            };
            // int_avg
            const auto ints = [](int r) { return vector_of<int32_t>({r}); };
            for (const std::vector<int>& dims : {std::vector<int>(), std::vector<int>{0}}) {
              TESSERA_RETURN_IF_ERROR(expect(
                  strategy.reduce(ReduceOp::kAvg, values_of<int32_t>(client, strategy, ints), dims),
                  {"i32"}));
            }
            // bool_sum
            const auto bools = [](int r) { return vector_of<bool>({r == 0}); };
            TESSERA_RETURN_IF_ERROR(
                expect(strategy.reduce(ReduceOp::kSum, values_of<bool>(client, strategy, bools)),
                       {"bool"}));
            // dtypes_differ
            TESSERA_ASSIGN_OR_RETURN(
                const Mesh here,
                create_mesh(client, {{"here", 1}}, std::vector<int>{client.local_devices()[0].id}));
            const PerReplica mixed =
                strategy.values_from_function([&](const distribute::ValueContext& context) {
                  return context.replica_id_in_sync_group == 0
                             ? on_mesh(here, vector_of<int32_t>({1}))
                             : on_mesh(here, vector_of<float>({1}));
                });
            TESSERA_RETURN_IF_ERROR(expect(strategy.reduce(ReduceOp::kSum, mixed),
                                           {"replica 0", "i32", "replica 1", "f32"}));
            // replicated_sum
            const DTensor one = full<float>({2}, 7, Layout::replicated(strategy.mesh(), 1));
            for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd}) {
              TESSERA_RETURN_IF_ERROR(expect(strategy.reduce(op, one), {"one value for all 3"}));
            }
            // replicated_avg
            for (const ReduceOp op : {ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
              TESSERA_RETURN_IF_ERROR(expect_values<float>(strategy.reduce(op, one), {2}, {7, 7}));
            }
            return absl::OkStatus();
          }),
      IsOk());
}

TEST_P(DistributeReduceTest, TensorsOverTheMesh) {
  EXPECT_THAT(
      run_replicas(
          GetParam(), 4,
          [](const Client&, const Strategy& strategy) -> Status {
            const DTensor sharded = iota<float>({8}, Layout::parse(strategy.mesh(), "[replica]"));
            TESSERA_RETURN_IF_ERROR(with_context(
                expect_values<float>(strategy.reduce(ReduceOp::kSum, sharded), {2}, {12, 16}),
                "sharded_elementwise"));
            return with_context(
                expect_values<float>(strategy.reduce(ReduceOp::kSum, sharded, {0}), {}, {28}),
                "sharded_dim0");
          }),
      IsOk());
}

TEST_P(DistributeReduceTest, UnevenAndPartialTensors) {
  EXPECT_THAT(
      run_replicas(
          GetParam(), 3,
          [](const Client&, const Strategy& strategy) -> Status {
            // sharded_uneven, sharded_uneven_dim0
            const DTensor uneven = iota<float>({7}, Layout::parse(strategy.mesh(), "[replica]"));
            TESSERA_RETURN_IF_ERROR(expect_error(strategy.reduce(ReduceOp::kSum, uneven).await(),
                                                 StatusCode::kInvalidArgument, {"[3]", "[2]"}));
            TESSERA_RETURN_IF_ERROR(
                expect_values<float>(strategy.reduce(ReduceOp::kSum, uneven, {0}), {}, {21}));
            TESSERA_RETURN_IF_ERROR(
                expect_values<float>(strategy.reduce(ReduceOp::kAvg, uneven, {0}), {}, {3}));
            // gather_sharded, gather_replicated
            TESSERA_RETURN_IF_ERROR(
                expect_values<float>(strategy.gather(uneven, 0), {7}, {0, 1, 2, 3, 4, 5, 6}));
            const DTensor one = full<float>({2}, 7, Layout::replicated(strategy.mesh(), 1));
            TESSERA_RETURN_IF_ERROR(expect_values<float>(strategy.gather(one, 0), {2}, {7, 7}));
            // partial_terms
            std::vector<HostTensor<float>> terms;
            for (const int replica : strategy.local_replicas()) {
              terms.push_back({{}, {static_cast<float>(replica + 1)}});
            }
            const DTensor partial =
                from_shards<float>({}, Layout::parse(strategy.mesh(), "[] sum{replica}"), terms);
            const std::pair<ReduceOp, float> expected[] = {
                {ReduceOp::kSum, 6}, {ReduceOp::kAvg, 2}, {ReduceOp::kMax, 3}};
            for (const auto& [op, value] : expected) {
              TESSERA_RETURN_IF_ERROR(
                  expect_values<float>(strategy.reduce(op, partial), {}, {value}));
            }
            return absl::OkStatus();
          }),
      IsOk());
}

TEST_P(DistributeReduceTest, Destinations) {
  EXPECT_THAT(
      run_replicas(
          GetParam(), 3,
          [](const Client& client, const Strategy& strategy) -> Status {
            // reduce_to_device, reduce_to_mirrored, broadcast_to
            const auto tens = [](int r) {
              return vector_of<float>({1.0F * (r + 1), 10.0F * (r + 1)});
            };
            const PerReplica values = values_of<float>(client, strategy, tens);
            const int first = *strategy.mesh().device_at(0);
            TESSERA_ASSIGN_OR_RETURN(const Mesh device,
                                     Mesh::create({{"device", 1}}, std::vector<int>{first}));
            const StatusOr<Layout> there = Layout::replicated(
                internal::with_runtime(device, internal::runtime_of(strategy.mesh())), 1);
            const DTensor on_device = strategy.reduce_to(ReduceOp::kSum, values, there);
            if (client.client_id() == 0) {
              TESSERA_RETURN_IF_ERROR(expect_values<float>(on_device, {2}, {6, 60}));
            }
            TESSERA_RETURN_IF_ERROR(expect_values<float>(
                strategy.broadcast_to(on_device, Layout::replicated(strategy.mesh(), 1)), {2},
                {6, 60}));
            // reduce_to_rows
            const PerReplica blocks = values_of<float>(client, strategy, [](int r) {
              return Values<float>{{3, 2}, std::vector<float>(6, static_cast<float>(r))};
            });
            const DTensor rows = strategy.reduce_to(ReduceOp::kSum, blocks,
                                                    Layout::parse(strategy.mesh(), "[replica, -]"));
            TESSERA_ASSIGN_OR_RETURN(const ShardView<float> row, rows.shard<float>(0));
            TESSERA_REQUIRE(row.data.size() == 2 && row.data[0] == 3);
            // batch_reduce_to, batch_reduce_to_none, batch_reduce_counts
            const PerReplica scalars = values_of<float>(client, strategy, [](int r) {
              return Values<float>{{}, {100.0F * (r + 1)}};
            });
            TESSERA_ASSIGN_OR_RETURN(const Layout vectors, Layout::replicated(strategy.mesh(), 1));
            TESSERA_ASSIGN_OR_RETURN(const Layout points, Layout::replicated(strategy.mesh(), 0));
            const std::vector<DTensor> both =
                strategy.batch_reduce_to(ReduceOp::kSum, {values, scalars}, {vectors, points});
            TESSERA_REQUIRE(both.size() == 2);
            TESSERA_RETURN_IF_ERROR(expect_values<float>(both[0], {2}, {6, 60}));
            TESSERA_RETURN_IF_ERROR(expect_values<float>(both[1], {}, {600}));
            TESSERA_REQUIRE(strategy.batch_reduce_to(ReduceOp::kSum, {}, {}).empty());
            return expect_error(
                strategy.batch_reduce_to(ReduceOp::kSum, {values, scalars}, {vectors})[0].await(),
                StatusCode::kInvalidArgument, {"2 values", "1 destinations"});
          }),
      IsOk());
}

TEST_P(DistributeReduceTest, Gather) {
  EXPECT_THAT(
      run_replicas(
          GetParam(), 3,
          [](const Client& client, const Strategy& strategy) -> Status {
            const auto gather = [&](const ValueOf<float>& value, int dim) {
              return strategy.gather(values_of<float>(client, strategy, value), dim);
            };
            const auto three = [](int r) { return ragged(r, 3); };
            TESSERA_RETURN_IF_ERROR(
                with_context(expect_values<float>(gather(counted(10, 4), 0), {12},
                                                  {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23}),
                             "gather_3"));
            TESSERA_RETURN_IF_ERROR(with_context(
                expect_values<float>(gather(three, 0), {10}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}),
                "gather_ragged"));
            const auto with_empty = [](int r) {
              return vector_of<float>(r == 0   ? std::vector<float>{3, 5}
                                      : r == 1 ? std::vector<float>()
                                               : std::vector<float>{7});
            };
            TESSERA_RETURN_IF_ERROR(with_context(
                expect_values<float>(gather(with_empty, 0), {3}, {3, 5, 7}), "gather_empty_part"));
            const auto none = [](int) { return Values<float>{{0, 2}, {}}; };
            TESSERA_RETURN_IF_ERROR(with_context(expect_values<float>(gather(none, 0), {0, 2}, {}),
                                                 "gather_all_empty"));
            const auto columns = [](int r) {
              return Values<float>{{1, r + 1, 2},
                                   std::vector<float>(2 * (r + 1), static_cast<float>(r))};
            };
            TESSERA_RETURN_IF_ERROR(
                with_context(expect_values<float>(gather(columns, 1), {1, 6, 2},
                                                  {0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2}),
                             "gather_uneven_columns"));
            const StatusCode bad = StatusCode::kInvalidArgument;
            // gather_other_dim_differs, gather_ranks_differ, gather_dim_out_of_range;
            // gather_repeated is every gather of this test.
            TESSERA_RETURN_IF_ERROR(
                expect_error(gather(columns, 0).await(), bad,
                             {"replica 0", "size 1 of dim 1", "replica 1", "size 2"}));
            const auto ranks = [](int r) { return Values<float>{Shape(r + 1, 1), {1}}; };
            TESSERA_RETURN_IF_ERROR(
                expect_error(gather(ranks, 0).await(), bad, {"rank 1", "rank 2"}));
            TESSERA_RETURN_IF_ERROR(
                expect_error(gather(matrix, 2).await(), bad, {"dim 2", "rank 2"}));
            const auto scalar = [](int) { return Values<float>{{}, {1}}; };
            TESSERA_RETURN_IF_ERROR(
                expect_error(gather(scalar, 0).await(), bad, {"rank 0", "expand_dims"}));
            return absl::OkStatus();
          }),
      IsOk());
}

// gather_2, gather_4, gather_dtypes_differ
TEST_P(DistributeReduceTest, GatherOfTwoAndFour) {
  for (const int n : {2, 4}) {
    EXPECT_THAT(
        run_replicas(
            GetParam(), n,
            [n](const Client& client, const Strategy& strategy) -> Status {
              std::vector<float> expected;
              for (int r = 0; r < n; ++r) {
                for (int i = 0; i < 4; ++i) expected.push_back(static_cast<float>(10 * r + i));
              }
              TESSERA_RETURN_IF_ERROR(expect_values<float>(
                  strategy.gather(values_of<float>(client, strategy, counted(10, 4)), 0), {4 * n},
                  expected));
              TESSERA_ASSIGN_OR_RETURN(const Mesh here,
                                       create_mesh(client, {{"here", 1}},
                                                   std::vector<int>{client.local_devices()[0].id}));
              const PerReplica mixed =
                  strategy.values_from_function([&](const distribute::ValueContext& context) {
                    return context.replica_id_in_sync_group == 0
                               ? on_mesh(here, vector_of<int32_t>({1}))
                               : on_mesh(here, vector_of<float>({1}));
                  });
              return expect_error(strategy.gather(mixed, 0).await(), StatusCode::kInvalidArgument,
                                  {"i32", "f32"});
            }),
        IsOk());
  }
}

TEST_P(DistributeReduceTest, GatherOfOtherDtypesAndDims) {
  EXPECT_THAT(
      run_replicas(
          GetParam(), 3,
          [](const Client& client, const Strategy& strategy) -> Status {
            const auto gather = [&](const ValueOf<float>& value, int dim) {
              return strategy.gather(values_of<float>(client, strategy, value), dim);
            };
            // gather_bool, gather_u8
            TESSERA_RETURN_IF_ERROR(expect_values<bool>(
                strategy.gather(values_of<bool>(client, strategy,
                                                [](int r) { return vector_of<bool>({r != 1}); }),
                                0),
                {3}, {true, false, true}));
            TESSERA_RETURN_IF_ERROR(expect_values<uint8_t>(
                strategy.gather(values_of<uint8_t>(client, strategy,
                                                   [](int r) {
                                                     return vector_of<uint8_t>(
                                                         {static_cast<uint8_t>(r == 0   ? 255
                                                                               : r == 1 ? 0
                                                                                        : 7)});
                                                   }),
                                0),
                {3}, {255, 0, 7}));
            // gather_rows, gather_columns, gather_last_dim
            TESSERA_RETURN_IF_ERROR(expect_values<float>(
                gather(matrix, 0), {6, 3},
                {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}));
            for (const int dim : {1, -1}) {
              TESSERA_RETURN_IF_ERROR(expect_values<float>(
                  gather(matrix, dim), {2, 9},
                  {0, 1, 2, 6, 7, 8, 12, 13, 14, 3, 4, 5, 9, 10, 11, 15, 16, 17}));
            }
            // to_sharded, with sizes of the split rule and with others
            const PerReplica uneven =
                values_of<float>(client, strategy, [](int r) { return ragged(r, 3); });
            const DTensor sharded = strategy.to_sharded(uneven, 0);
            TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> whole, sharded.to_host<float>());
            TESSERA_REQUIRE(whole.data == (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
            TESSERA_REQUIRE(sharded.layout().to_string() == "[replica]");
            const DTensor even =
                strategy.to_sharded(values_of<float>(client, strategy, counted(4, 4)), 0);
            TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> all, even.to_host<float>());
            TESSERA_REQUIRE(all.data.size() == 12 && all.data[11] == 11);
            return absl::OkStatus();
          }),
      IsOk());
}

// A replica of two devices; and values of another strategy.
TEST(DistributeMeshesTest, ReplicasOfTwoDevices) {
  EXPECT_THAT(
      run_clients(
          {.devices_per_client = 4},
          [](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh,
                                     create_mesh(client, {{"replica", 2}, {"model", 2}}));
            TESSERA_ASSIGN_OR_RETURN(const Strategy strategy,
                                     Strategy::create(client, mesh, {"replica"}));
            const DTensor x = iota<float>({4, 6}, Layout::parse(mesh, "[replica, model]"));
            const DTensor sum = strategy.reduce(ReduceOp::kSum, x);
            TESSERA_REQUIRE(sum.layout().to_string() == "[-, model]", sum.layout().to_string());
            TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> whole, sum.to_host<float>());
            TESSERA_REQUIRE(whole.data ==
                            (std::vector<float>{12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34}));
            return absl::OkStatus();
          }),
      IsOk());
}

// other_strategy, smaller_strategy
TEST(DistributeMeshesTest, ValuesOfAnotherStrategyAreRefused) {
  EXPECT_THAT(
      run_clients({.devices_per_client = 3},
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Strategy two,
                                             distribute::mirrored_strategy(client, {0, 1}));
                    TESSERA_ASSIGN_OR_RETURN(const Strategy three,
                                             distribute::mirrored_strategy(client));
                    const PerReplica of_three = values_of<float>(client, three, counted(1, 2));
                    const PerReplica of_two = values_of<float>(client, two, counted(1, 2));
                    TESSERA_RETURN_IF_ERROR(
                        expect_error(two.reduce(ReduceOp::kSum, of_three).await(),
                                     StatusCode::kInvalidArgument, {"3 replicas", "of 2"}));
                    return expect_error(three.reduce(ReduceOp::kSum, of_two).await(),
                                        StatusCode::kInvalidArgument, {"2 replicas", "of 3"});
                  }),
      IsOk());
}

// packs_keep_bits, one_device_bits: whatever moves the bytes, and however small tensors are packed.
TEST_P(DistributeReduceTest, CrossDeviceOpsGiveTheSameBits) {
  const auto numbers = [](int replica, int tensor) {
    std::vector<float> data(3 + 5 * tensor);
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = std::sin(static_cast<float>(i * 7 + replica * 13 + tensor));
    }
    return vector_of(data);
  };
  const auto run = [&](std::shared_ptr<distribute::CrossDeviceOps> ops, int64_t bytes_per_pack) {
    distribute::StrategyOptions options;
    options.cross_device_ops = std::move(ops);
    options.communication.bytes_per_pack = bytes_per_pack;
    return run_replicas(
        GetParam(), 3,
        [&](const Client& client, const Strategy& strategy) -> Status {
          std::vector<distribute::DistributedValues> values;
          std::vector<Layout> destinations;
          for (int t = 0; t < 4; ++t) {
            values.push_back(values_of<float>(client, strategy,
                                              [&](int replica) { return numbers(replica, t); }));
            TESSERA_ASSIGN_OR_RETURN(Layout whole, Layout::replicated(strategy.mesh(), 1));
            destinations.push_back(std::move(whole));
          }
          const std::vector<DTensor> sums =
              strategy.batch_reduce_to(ReduceOp::kSum, values, destinations);
          for (int t = 0; t < 4; ++t) {
            const std::vector<float> a = numbers(0, t).data;
            TESSERA_ASSIGN_OR_RETURN(const ShardView<float> sum, sums[t].shard<float>(0));
            for (size_t i = 0; i < a.size(); ++i) {
              const float expected = a[i] + numbers(1, t).data[i] + numbers(2, t).data[i];
              TESSERA_REQUIRE(sum.data[i] == expected, t, " ", i);
            }
          }
          return absl::OkStatus();
        },
        options);
  };
  for (const int64_t bytes : {0, 4, 40, 1000}) {
    EXPECT_THAT(run(distribute::collective_all_reduce(), bytes), IsOk()) << bytes;
  }
  EXPECT_THAT(run(*distribute::reduction_to_one_device(), 0), IsOk());
  EXPECT_THAT(run(*distribute::hierarchical_copy_all_reduce(2), 0), IsOk());
}

// Adds as the default does, and keeps the options of the last call.
class KeepingOps : public distribute::CrossDeviceOps {
 public:
  DTensor reduce(ReduceOp op, const PerReplica& value, const LayoutArg& destination,
                 const distribute::CommunicationOptions& options) override {
    last = options;
    return default_->reduce(op, value, destination, options);
  }

  distribute::CommunicationOptions last;

 private:
  std::shared_ptr<distribute::CrossDeviceOps> default_ = distribute::collective_all_reduce();
};

// options_merge
TEST(DistributeMeshesTest, OptionsOfACallWinOverThoseOfTheStrategy) {
  EXPECT_THAT(
      run_clients({.devices_per_client = 2},
                  [](Client& client) -> Status {
                    const auto ops = std::make_shared<KeepingOps>();
                    distribute::StrategyOptions options;
                    options.cross_device_ops = ops;
                    options.communication = {.bytes_per_pack = 64, .timeout = absl::Seconds(5)};
                    TESSERA_ASSIGN_OR_RETURN(const Strategy strategy,
                                             distribute::mirrored_strategy(client, {}, options));
                    const PerReplica value = values_of<float>(client, strategy, counted(1, 2));
                    const DTensor sum = strategy.reduce_to(ReduceOp::kSum, value,
                                                           Layout::replicated(strategy.mesh(), 1),
                                                           {.timeout = absl::Seconds(1)});
                    TESSERA_RETURN_IF_ERROR(sum.await());
                    TESSERA_REQUIRE(ops->last.bytes_per_pack == 64);
                    TESSERA_REQUIRE(ops->last.timeout == absl::Seconds(1));
                    // A call over its run, which is over the strategy.
                    TESSERA_RETURN_IF_ERROR(strategy.run_with(
                        {.communication = {.bytes_per_pack = 32, .timeout = absl::Seconds(2)}},
                        [](distribute::ReplicaContext& replica) {
                          return replica
                              .all_reduce(ReduceOp::kSum, scalar(replica, 1),
                                          {.timeout = absl::Seconds(1)})
                              .await();
                        }));
                    TESSERA_REQUIRE(ops->last.bytes_per_pack == 32);
                    TESSERA_REQUIRE(ops->last.timeout == absl::Seconds(1));
                    return absl::OkStatus();
                  }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
