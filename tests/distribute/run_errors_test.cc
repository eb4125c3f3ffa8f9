// SPDX-License-Identifier: Apache-2.0
//
// Replica functions that fail or disagree, and calls that are refused: the rows "Values and run",
// "Contexts" and "all_reduce, all_gather, gradients" of the facts, named as there. After each the
// strategy works.
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "distribute/cross_device_ops.h"
#include "distribute/strategy.h"
#include "distribute/values.h"
#include "distribute/variable.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "tests/support/clients.h"
#include "tests/support/distribute/replicas.h"
#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using distribute::PerReplica;
using distribute::ReplicaContext;
using distribute::Strategy;

class DistributeRunErrorsTest : public ::testing::TestWithParam<ReplicaForm> {
 protected:
  static Status run(int num_replicas, const ReplicaBody& body) {
    return run_replicas(GetParam(), num_replicas, body);
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, DistributeRunErrorsTest, ::testing::ValuesIn(kReplicaForms),
                         [](const auto& info) { return std::string(info.param.name); });

// A call that is refused; after it a run succeeds.
Status expect_refused(const Strategy& strategy, const Status& status, StatusCode code,
                      const std::vector<std::string>& texts) {
  TESSERA_RETURN_IF_ERROR(expect_error(status, code, texts));
  const PerReplica good = strategy.run([](ReplicaContext& replica) {
    return replica.all_reduce(ReduceOp::kSum, scalar_of_id(replica));
  });
  return expect_local<float>(good, [](int) { return scalar_value(3); });
}

TEST_P(DistributeRunErrorsTest, RunsThatFail) {
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

// Functions that are called outside of run(): their exceptions are errors, too.
TEST_P(DistributeRunErrorsTest, ExceptionsOfOtherFunctions) {
  EXPECT_THAT(
      run(2,
          [](const Client&, const Strategy& strategy) -> Status {
            const auto raise = [](const DTensor& x, absl::Span<const DTensor>) {
              // NOTIDY(banned): what a function of the user may do
              if (x.dtype() == DType::kFloat32) throw std::runtime_error("row 7");
              return x;
            };
            const DTensor ten = full<float>({}, 10, Layout::replicated(strategy.mesh(), 0));
            for (const auto each : {distribute::VariableSynchronization::kOnWrite,
                                    distribute::VariableSynchronization::kOnRead}) {
              TESSERA_ASSIGN_OR_RETURN(
                  distribute::DistributedVariable v,
                  strategy.variable("v", ten,
                                    {.synchronization = each,
                                     .aggregation = distribute::VariableAggregation::kSum}));
              TESSERA_RETURN_IF_ERROR(expect_error(strategy.update(v, raise), StatusCode::kUnknown,
                                                   {"raised an exception: row 7"}));
              TESSERA_RETURN_IF_ERROR(expect_values<float>(v.value(), {}, {10}));
            }
            const PerReplica values = strategy.values_from_function(
                [&](const distribute::ValueContext&) { return raise(ten, {}); });
            TESSERA_RETURN_IF_ERROR(expect_error(values.status(), StatusCode::kUnknown,
                                                 {"raised an exception: row 7"}));
            const PerReplica merged = strategy.run([&](ReplicaContext& replica) {
              return replica.merge_call(
                  [&](const Strategy&, const PerReplica&) { return raise(ten, {}); },
                  scalar(replica, 1));
            });
            return expect_error(merged.status(), StatusCode::kUnknown,
                                {"raised an exception: row 7"});
          }),
      IsOk());
}

// CrossDeviceOps of a program: they raise exceptions, or give no tensors.
class FaultyOps final : public distribute::CrossDeviceOps {
 public:
  bool raises = true;

  DTensor reduce(ReduceOp, const PerReplica& value, const LayoutArg&,
                 const distribute::CommunicationOptions&) override {
    // NOTIDY(banned): what a class of the user may do
    if (raises) throw std::runtime_error("row 7");
    return value.local(0);
  }
  std::vector<DTensor> batch_reduce(ReduceOp op, absl::Span<const PerReplica> values,
                                    absl::Span<const Layout> destinations,
                                    const distribute::CommunicationOptions& options) override {
    if (raises) return CrossDeviceOps::batch_reduce(op, values, destinations, options);
    return {};
  }
  DTensor broadcast(const DTensor& value, const LayoutArg& destination,
                    const distribute::CommunicationOptions& options) override {
    // NOTIDY(banned): what a class of the user may do
    if (raises) throw std::runtime_error("row 7");
    return CrossDeviceOps::broadcast(value, destination, options);
  }
};

TEST(DistributeOpsErrorsTest, CrossDeviceOpsThatFailAreErrors) {
  const auto body = [](Client& client) -> Status {
    const auto ops = std::make_shared<FaultyOps>();
    TESSERA_ASSIGN_OR_RETURN(const Strategy strategy,
                             distribute::mirrored_strategy(client, {}, {.cross_device_ops = ops}));
    const Layout everywhere = *Layout::replicated(strategy.mesh(), 0);
    const DTensor one = full<float>({}, 1, everywhere);
    const PerReplica values = strategy.to_per_replica(one);
    const auto all_reduced = [&] {
      return strategy.run([](ReplicaContext& replica) {
        return replica.all_reduce(ReduceOp::kSum, scalar(replica, 1));
      });
    };
    const auto batch_reduced = [&] {
      return strategy.batch_reduce_to(ReduceOp::kSum, {values, values},
                                      {everywhere, everywhere})[1];
    };
    const std::vector<std::string> raised = {"raised an exception: row 7"};
    for (const Status& status :
         {strategy.reduce(ReduceOp::kSum, values).status(),
          strategy.reduce(ReduceOp::kSum, values, {}).status(), batch_reduced().status(),
          strategy.broadcast_to(one, everywhere).status(), all_reduced().status()}) {
      TESSERA_RETURN_IF_ERROR(expect_error(status, StatusCode::kUnknown, raised));
    }
    ops->raises = false;
    for (const Status& status : {batch_reduced().status(), all_reduced().status()}) {
      TESSERA_RETURN_IF_ERROR(
          expect_error(status, StatusCode::kInternal,
                       {"batch_reduce() of the strategy's CrossDeviceOps gave 0 tensors for "}));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients({.devices_per_client = 2}, body), IsOk());
}

// How many values there are: as many as a replica has returned, and one where all have failed.
TEST_P(DistributeRunErrorsTest, NumberOfResults) {
  EXPECT_THAT(
      run(3,
          [](const Client&, const Strategy& strategy) -> Status {
            const auto run_of = [&](int num_failing) {
              return strategy.run([=](ReplicaContext& replica) -> StatusOr<std::vector<DTensor>> {
                if (replica.replica_id_in_sync_group() < num_failing) {
                  return absl::AbortedError("boom");
                }
                return std::vector<DTensor>(2, scalar(replica, 1));
              });
            };
            TESSERA_REQUIRE(run_of(0).size() == 2);
            const std::vector<PerReplica> failed = run_of(3);
            TESSERA_REQUIRE(failed.size() == 1, failed.size());
            TESSERA_RETURN_IF_ERROR(
                expect_error(failed[0].status(), StatusCode::kAborted, {"boom"}));
            const std::vector<PerReplica> none =
                strategy.run([](ReplicaContext&) { return std::vector<DTensor>(); });
            TESSERA_REQUIRE(none.empty(), none.size());
            return absl::OkStatus();
          }),
      IsOk());
}

TEST_P(DistributeRunErrorsTest, ReplicasThatDisagree) {
  EXPECT_THAT(
      run(3,
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
            TESSERA_RETURN_IF_ERROR(
                expect_refused(strategy, strategy.run([](ReplicaContext& replica) -> Status {
                  const DTensor x = full<float>({1}, 1, Layout::replicated(replica.mesh(), 1));
                  return (replica.replica_id_in_sync_group() == 0
                              ? replica.all_reduce(ReduceOp::kSum, x)
                              : replica.all_gather(x, 0))
                      .await();
                }),
                               bad, {"called all_reduce(sum)", "called all_gather(dim 0)"}));
            // swapped_calls
            TESSERA_RETURN_IF_ERROR(
                expect_refused(strategy, strategy.run([](ReplicaContext& replica) -> Status {
                  const bool is_first = replica.replica_id_in_sync_group() == 0;
                  const DTensor a = replica.all_reduce(ReduceOp::kSum, scalar(replica, 1),
                                                       {.name = is_first ? "a" : "b"});
                  const DTensor b = replica.all_reduce(ReduceOp::kSum, scalar(replica, 10),
                                                       {.name = is_first ? "b" : "a"});
                  TESSERA_RETURN_IF_ERROR(a.await());
                  return b.await();
                }),
                               bad,
                               {"called all_reduce(sum) \"a\"", "called all_reduce(sum) \"b\"",
                                "; all replicas must make the same calls in the same order"}));
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
                bad,
                {"all_reduce(sum): replica 0 (", " has shape [1], replica 1 (", " has shape [2]"}));
            return absl::OkStatus();
          }),
      IsOk());
}

TEST_P(DistributeRunErrorsTest, RefusedCalls) {
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
            TESSERA_RETURN_IF_ERROR(expect_refused(
                strategy, strategy.run([&](ReplicaContext& replica) -> Status {
                  return strategy.reduce(ReduceOp::kAvg, scalar(replica, 1)).await();
                }),
                StatusCode::kFailedPrecondition,
                {"reduce(avg) is called in a replica function, where it would run once for "
                 "each replica; use ReplicaContext::all_reduce()"}));
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

// Every tensor of a list carries the error of a reduction that is refused.
TEST_P(DistributeRunErrorsTest, RefusedLists) {
  EXPECT_THAT(
      run(3,
          [](const Client&, const Strategy& strategy) -> Status {
            return expect_refused(strategy, strategy.run([](ReplicaContext& replica) -> Status {
              const DTensor one = full<int32_t>({}, 1, Layout::replicated(replica.mesh(), 0));
              const std::vector<DTensor> means =
                  replica.all_reduce(ReduceOp::kAvg, {one, one, one});
              TESSERA_REQUIRE(means.size() == 3);
              return means[2].await();
            }),
                                  StatusCode::kInvalidArgument, {"i32"});
          }),
      IsOk());
}

// in_replica_function: from a replica function and from a kernel, at once; it works afterwards.
TEST_P(DistributeRunErrorsTest, SyncDevicesInAReplicaFunction) {
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

// multi_timeout: the late client is told at once, and the strategy works afterwards.
constexpr absl::Duration kTimeout = absl::Milliseconds(300);

// `wait_briefly`: a run whose replicas wait for each other for kTimeout.
Status expect_timeout(const std::function<Status(const Strategy&)>& wait_briefly) {
  Gate given_up;
  return run_replicas(
      kReplicaForms[1], 2, [&](const Client& client, const Strategy& strategy) -> Status {
        if (client.client_id() == 1) TESSERA_RETURN_IF_ERROR(given_up.wait());
        TESSERA_RETURN_IF_ERROR(
            expect_error(wait_briefly(strategy), StatusCode::kDeadlineExceeded, {"client 1"}));
        given_up.open();
        const PerReplica sum = strategy.run([](ReplicaContext& replica) {
          return replica.all_reduce(ReduceOp::kSum, scalar(replica, 1));
        });
        return expect_local<float>(sum, [](int) { return scalar_value(2); });
      });
}

TEST(DistributeTimeoutTest, ReplicasThatDoNotCome) {
  EXPECT_THAT(expect_timeout([](const Strategy& strategy) {
                return strategy.run([](ReplicaContext& replica) {
                  return replica
                      .all_reduce(ReduceOp::kSum, scalar(replica, 1), {.timeout = kTimeout})
                      .await();
                });
              }),
              IsOk());
  // The options of a run apply to its calls.
  EXPECT_THAT(expect_timeout([](const Strategy& strategy) {
                return strategy.run_with(
                    {.communication = {.timeout = kTimeout}}, [](ReplicaContext& replica) {
                      return replica.all_reduce(ReduceOp::kSum, scalar(replica, 1)).await();
                    });
              }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
