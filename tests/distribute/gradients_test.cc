// SPDX-License-Identifier: Apache-2.0
//
// Gradients by what replicas exchange: the rows of "all_reduce, all_gather, gradients" of the
// facts, on one client with all replicas and on a client for each. Rows are named as there.
#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "distribute/strategy.h"
#include "distribute/values.h"
#include "distribute/variable.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/tape.h"
#include "tests/support/distribute/replicas.h"
#include "tests/support/expect_error.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using distribute::PerReplica;
using distribute::ReplicaContext;
using distribute::Strategy;

class DistributeGradientsTest : public ::testing::TestWithParam<ReplicaForm> {
 protected:
  static Status run(int num_replicas, const ReplicaBody& body) {
    return run_replicas(GetParam(), num_replicas, body);
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, DistributeGradientsTest, ::testing::ValuesIn(kReplicaForms),
                         [](const auto& info) { return std::string(info.param.name); });

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

TEST_P(DistributeGradientsTest, Gradients) {
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
TEST_P(DistributeGradientsTest, GradientOfUnevenPieces) {
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
TEST_P(DistributeGradientsTest, GradientsOfOtherReductions) {
  EXPECT_THAT(
      run(3,
          [](const Client&, const Strategy& strategy) -> Status {
            const auto gradient_of = [&](ReduceOp op) {
              return strategy.run([op](ReplicaContext& replica) {
                Tape tape;
                const float r = static_cast<float>(replica.replica_id_in_sync_group());
                // Replica 2 has the largest first element; replicas 1 and 2 share the largest
                // second element.
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

// Products of the other terms, where a term is 0 and where the product of all is out of range.
TEST_P(DistributeGradientsTest, GradientOfAProductWithZeros) {
  EXPECT_THAT(
      run(3,
          [](const Client&, const Strategy& strategy) -> Status {
            const PerReplica gradient = strategy.run([](ReplicaContext& replica) {
              Tape tape;
              const int r = replica.replica_id_in_sync_group();
              const DTensor x =
                  tape.watch(from_host<float>({r == 0 ? 0.0F : static_cast<float>(r + 1),
                                               r == 2 ? 1e-30F : 1e30F, r < 2 ? 0.0F : 5.0F},
                                              {3}, Layout::replicated(replica.mesh(), 1)));
              return tape.gradient(ops::sum(replica.all_reduce(ReduceOp::kProd, x)), {x})[0];
            });
            // Three losses.
            return expect_local<float>(gradient, [](int r) {
              return vector_of<float>({r == 0 ? 3 * 6.0F : 0.0F,
                                       r == 2 ? std::numeric_limits<float>::infinity() : 3.0F,
                                       0.0F});
            });
          }),
      IsOk());
}

// Each function leads a tensor of a tape that was made outside through the strategy, to a scalar.
struct PassRow {
  const char* name;
  std::function<DTensor(const Strategy&, Tape&, const DTensor& watched)> loss;
};

PerReplica watched_values(const Strategy& strategy, Tape& tape) {
  return strategy.run([&](ReplicaContext& replica) { return tape.watch(two_elements(replica)); });
}
DTensor first_of(const std::vector<DTensor>& parts) { return ops::sum(parts[0]); }

const PassRow kPassRows[] = {
    {"argument of run",
     [](const Strategy& strategy, Tape&, const DTensor& watched) {
       return ops::sum(
           strategy.run([](ReplicaContext&, const DTensor& x) { return ops::square(x); }, watched)
               .local(0));
     }},
    {"local_results",
     [](const Strategy& strategy, Tape&, const DTensor& watched) {
       return first_of(strategy.local_results(watched));
     }},
    {"to_per_replica",
     [](const Strategy& strategy, Tape&, const DTensor& watched) {
       return ops::sum(strategy.to_per_replica(watched).local(0));
     }},
    {"reduce",
     [](const Strategy& strategy, Tape& tape, const DTensor&) {
       return ops::sum(strategy.reduce(ReduceOp::kSum, watched_values(strategy, tape)));
     }},
    {"reduce along dims",
     [](const Strategy& strategy, Tape& tape, const DTensor&) {
       return strategy.reduce(ReduceOp::kAvg, watched_values(strategy, tape), {0});
     }},
    {"reduce_to",
     [](const Strategy& strategy, Tape& tape, const DTensor&) {
       return ops::sum(strategy.reduce_to(ReduceOp::kSum, watched_values(strategy, tape),
                                          Layout::replicated(strategy.mesh(), 1)));
     }},
    {"batch_reduce_to",
     [](const Strategy& strategy, Tape& tape, const DTensor&) {
       return first_of(strategy.batch_reduce_to(
           ReduceOp::kSum, {watched_values(strategy, tape), watched_values(strategy, tape)},
           std::vector<Layout>(2, *Layout::replicated(strategy.mesh(), 1)),
           {.bytes_per_pack = 100}));
     }},
    {"gather",
     [](const Strategy& strategy, Tape& tape, const DTensor&) {
       return ops::sum(strategy.gather(watched_values(strategy, tape), 0));
     }},
    {"to_sharded",
     [](const Strategy& strategy, Tape& tape, const DTensor&) {
       return ops::sum(strategy.to_sharded(watched_values(strategy, tape), 0));
     }},
    {"merge_call",
     [](const Strategy& strategy, Tape& tape, const DTensor&) {
       return ops::sum(strategy
                           .run([&](ReplicaContext& replica) {
                             return replica.merge_call(
                                 [](const Strategy& whole, const PerReplica& merged) {
                                   return whole.reduce(ReduceOp::kSum, merged);
                                 },
                                 tape.watch(two_elements(replica)));
                           })
                           .local(0));
     }},
};

TEST_P(DistributeGradientsTest, NoGradientPassesBetweenReplicasAndTensorsOutside) {
  EXPECT_THAT(run(2,
                  [](const Client&, const Strategy& strategy) -> Status {
                    for (const PassRow& row : kPassRows) {
                      Tape tape;
                      const DTensor watched =
                          tape.watch(full<float>({2}, 3, Layout::replicated(strategy.mesh(), 1)));
                      const std::vector<DTensor> gradients =
                          tape.gradient(row.loss(strategy, tape, watched), {watched});
                      TESSERA_RETURN_IF_ERROR(with_context(
                          expect_error(gradients[0].status(), absl::StatusCode::kInvalidArgument,
                                       {"gradient: no gradient passes between the replicas of a "
                                        "strategy and tensors outside",
                                        "stop_gradient()"}),
                          row.name));
                    }
                    return absl::OkStatus();
                  }),
              IsOk());
}

// Stopped tensors, and values that a variable keeps, lead to no tape: a sum of losses holds no
// graph.
TEST_P(DistributeGradientsTest, WhatIsStoppedAndWhatVariablesKeepIsNotRecorded) {
  EXPECT_THAT(run(2,
                  [](const Client&, const Strategy& strategy) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(
                        distribute::DistributedVariable sums,
                        strategy.variable(
                            "sums", full<float>({2}, 0, Layout::replicated(strategy.mesh(), 1)),
                            {.synchronization = distribute::VariableSynchronization::kOnRead,
                             .aggregation = distribute::VariableAggregation::kSum}));
                    const PerReplica gradient = strategy.run([&](ReplicaContext& replica) {
                      Tape tape;
                      const DTensor x = tape.watch(two_elements(replica));
                      // They travel in one pack.
                      const std::vector<DTensor> both = replica.all_reduce(
                          ReduceOp::kSum, {x, stop_gradient(x)}, {.bytes_per_pack = 100});
                      const Status added = sums.assign_add(replica, x);
                      const DTensor loss = ops::sum(both[1] * sums.value(replica));
                      const DTensor zeros = tape.gradient(loss, {x})[0];
                      return added.ok() ? StatusOr<DTensor>(zeros) : added;
                    });
                    TESSERA_RETURN_IF_ERROR(expect_local<float>(gradient, [](int) {
                      return vector_of<float>({0, 0});
                    }));
                    Tape tape;
                    const PerReplica values = watched_values(strategy, tape);
                    const auto add = [](const DTensor& value, absl::Span<const DTensor> args) {
                      return value + args[0];
                    };
                    TESSERA_RETURN_IF_ERROR(strategy.update(sums, add, {values}));
                    const DTensor source = values.local(0);
                    const PerReplica kept =
                        strategy.run([&](ReplicaContext& replica) { return sums.value(replica); });
                    return expect_values<float>(tape.gradient(ops::sum(kept.local(0)), {source})[0],
                                                {2}, {0, 0});
                  }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
