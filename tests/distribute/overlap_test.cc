// SPDX-License-Identifier: Apache-2.0
//
// Gradients that are reduced as the backward pass finishes them, and reductions on devices of their
// own, which do not wait for the devices of the replicas, nor these for them.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

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
#include "ops/contract.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/tape.h"
#include "tests/support/clients.h"
#include "tests/support/distribute/replicas.h"
#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using distribute::PerReplica;
using distribute::ReplicaContext;
using distribute::Strategy;

// Two replicas of one device, and a device beside each of them.
struct Form {
  const char* name;
  JobSpec spec;
  std::vector<int> devices;
  std::vector<int> beside;
};
std::vector<Form> forms() {
  std::vector<Form> forms = {
      {"OneClient", {.num_clients = 1, .devices_per_client = 4}, {0, 1}, {2, 3}},
      {"AClientEach", {.num_clients = 2, .devices_per_client = 2}, {0, 2}, {1, 3}},
      {"AHostEach", {.num_clients = 2, .devices_per_client = 2}, {0, 2}, {1, 3}},
  };
  forms.back().spec.hooks.host_ids = on_hosts(2, 2);
  return forms;
}

class DistributeOverlapTest : public ::testing::TestWithParam<Form> {
 protected:
  static StatusOr<Strategy> make_strategy(const Client& client, bool reduces_beside) {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh,
                             create_mesh(client, {{"replica", 2}}, GetParam().devices));
    distribute::StrategyOptions options;
    if (reduces_beside) {
      TESSERA_ASSIGN_OR_RETURN(const Mesh beside,
                               create_mesh(client, {{"replica", 2}}, GetParam().beside));
      options.cross_device_ops = distribute::all_reduce_on(beside);
    }
    return Strategy::create(client, mesh, {"replica"}, options);
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, DistributeOverlapTest, ::testing::ValuesIn(forms()),
                         [](const auto& info) { return std::string(info.param.name); });

// Sums of these depend on their order.
DTensor fractions(ReplicaContext& replica, const Shape& shape) {
  const double by = 3.0 + replica.replica_id_in_sync_group();
  return iota<float>(shape, Layout::replicated(replica.mesh(), static_cast<int>(shape.size()))) /
         by;
}

// Trains three layers: the gradients of a mean, by `gradients`.
using GradientsOf = std::function<std::vector<DTensor>(
    ReplicaContext& replica, Tape& tape, const DTensor& loss, absl::Span<const DTensor> weights)>;
std::vector<PerReplica> train(const Strategy& strategy, const GradientsOf& gradients) {
  return strategy.run([&](ReplicaContext& replica) {
    Tape tape;
    std::vector<DTensor> w;
    for (const Shape& shape : {Shape{4, 8}, Shape{8, 8}, Shape{8, 2}}) {
      w.push_back(tape.watch(ops::sin(iota<float>(shape, Layout::replicated(replica.mesh(), 2)))));
    }
    const DTensor hidden = ops::tanh(ops::matmul(fractions(replica, {5, 4}), w[0]));
    const DTensor result = ops::matmul(ops::tanh(ops::matmul(hidden, w[1])), w[2]);
    return gradients(replica, tape, ops::mean(ops::square(result)), w);
  });
}

// Every local value of `a` equals the value of `b`, bit for bit.
Status expect_same(const std::vector<PerReplica>& a, const std::vector<PerReplica>& b) {
  TESSERA_REQUIRE(a.size() == b.size(), a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(a[i].await());
    for (size_t k = 0; k < a[i].local_replicas().size(); ++k) {
      TESSERA_ASSIGN_OR_RETURN(const ShardView<float> x,
                               a[i].local(static_cast<int>(k)).shard<float>(0));
      TESSERA_ASSIGN_OR_RETURN(const ShardView<float> y,
                               b[i].local(static_cast<int>(k)).shard<float>(0));
      TESSERA_REQUIRE(std::vector<float>(x.data.begin(), x.data.end()) ==
                          std::vector<float>(y.data.begin(), y.data.end()),
                      "gradient ", i);
    }
  }
  return absl::OkStatus();
}

TEST_P(DistributeOverlapTest, GradientIsTheReducedOne) {
  EXPECT_THAT(
      run_clients(GetParam().spec,
                  [](Client& client) -> Status {
                    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
                      TESSERA_ASSIGN_OR_RETURN(const Strategy plain, make_strategy(client, false));
                      const std::vector<PerReplica> expected =
                          train(plain, [&](ReplicaContext& replica, Tape& tape, const DTensor& loss,
                                           absl::Span<const DTensor> w) {
                            return replica.all_reduce(op, tape.gradient(loss, w));
                          });
                      // Packs of 64 KiB hold all tensors, packs of 1 byte one tensor.
                      for (const int64_t bytes_per_pack : {0, 1}) {
                        for (const bool reduces_beside : {false, true}) {
                          TESSERA_ASSIGN_OR_RETURN(const Strategy strategy,
                                                   make_strategy(client, reduces_beside));
                          const std::vector<PerReplica> found = train(
                              strategy, [&](ReplicaContext& replica, Tape& tape,
                                            const DTensor& loss, absl::Span<const DTensor> w) {
                                return replica.gradient(tape, loss, w, op,
                                                        {.bytes_per_pack = bytes_per_pack});
                              });
                          TESSERA_RETURN_IF_ERROR(expect_same(found, expected));
                        }
                      }
                    }
                    return absl::OkStatus();
                  }),
      IsOk());
}

TEST_P(DistributeOverlapTest, GradientsThatDisagree) {
  EXPECT_THAT(
      run_clients(
          GetParam().spec,
          [](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Strategy strategy, make_strategy(client, true));
            // In another order: the shapes are equal, so that only the order tells.
            const Status order = strategy.run([](ReplicaContext& replica) -> Status {
              Tape tape;
              const DTensor x = tape.watch(fractions(replica, {2, 2}));
              const DTensor y = tape.watch(fractions(replica, {2, 2}));
              const bool is_first = replica.replica_id_in_sync_group() == 0;
              const DTensor inner = ops::tanh(is_first ? x : y);
              const DTensor loss = ops::sum(ops::matmul(inner, is_first ? y : x));
              return replica.gradient(tape, loss, {x, y})[0].await();
            });
            TESSERA_RETURN_IF_ERROR(expect_error(
                order, StatusCode::kInvalidArgument,
                {"replica 0", "gradient(sum), finished 1, 0", "replica 1", "finished 0, 1"}));
            // An error of one replica is the error of all.
            const Status no_scalar = strategy.run([](ReplicaContext& replica) -> Status {
              Tape tape;
              const DTensor x = tape.watch(fractions(replica, {2, 2}));
              const DTensor loss = replica.replica_id_in_sync_group() == 0 ? ops::sum(x) : x * 2;
              return replica.gradient(tape, loss, {x})[0].await();
            });
            TESSERA_RETURN_IF_ERROR(expect_error(no_scalar, StatusCode::kInvalidArgument,
                                                 {"replica 1", "is not a scalar"}));
            const PerReplica sum = strategy.run([](ReplicaContext& replica) {
              return replica.all_reduce(ReduceOp::kSum,
                                        full<float>({1}, 1, Layout::replicated(replica.mesh(), 1)));
            });
            return expect_local<float>(sum, [](int) { return vector_of<float>({2}); });
          }),
      IsOk());
}

// The devices of the replicas run a kernel that waits for the result of the reduction.
TEST_P(DistributeOverlapTest, ReducesWhileTheDevicesOfTheReplicasAreBusy) {
  Gate reduced;
  EXPECT_THAT(
      run_clients(
          GetParam().spec,
          [&](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Strategy strategy, make_strategy(client, true));
            const std::vector<PerReplica> results = strategy.run([&](ReplicaContext& replica) {
              const DTensor x = full<float>({2}, 1, Layout::replicated(replica.mesh(), 1));
              const DTensor busy = local_map(
                  x.layout(), x.shape(), DType::kFloat32, {x}, [&](LocalContext& local) -> Status {
                    const auto in = local.input<float>(0).data;
                    std::copy(in.begin(), in.end(), local.output<float>().data.begin());
                    return reduced.wait();
                  });
              return std::vector<DTensor>{replica.all_reduce(ReduceOp::kSum, x), busy};
            });
            TESSERA_RETURN_IF_ERROR(expect_local<float>(results[0], [](int) {
              return vector_of<float>({2, 2});
            }));
            reduced.open(strategy.local_replicas().size());
            return expect_local<float>(results[1], [](int) { return vector_of<float>({1, 1}); });
          }),
      IsOk());
}

TEST(AllReduceOnTest, MeshesThatDoNotFit) {
  EXPECT_THAT(
      run_clients(
          {.num_clients = 2, .devices_per_client = 2},
          [](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh,
                                     create_mesh(client, {{"replica", 2}}, std::vector<int>{0, 2}));
            const auto refusal = [&](const Mesh& beside) {
              distribute::StrategyOptions options;
              options.cross_device_ops = distribute::all_reduce_on(beside);
              return Strategy::create(client, mesh, {"replica"}, options).status();
            };
            const StatusCode bad = StatusCode::kInvalidArgument;
            TESSERA_ASSIGN_OR_RETURN(const Mesh abstract, Mesh::create({{"replica", 2}}, {1, 3}));
            TESSERA_RETURN_IF_ERROR(expect_error(refusal(abstract), bad, {"abstract"}));
            struct Row {
              MeshAxis axis;
              std::vector<int> devices;
              const char* text;
            };
            for (const Row& row :
                 {Row{{"other", 2}, {1, 3}, "other axes"},
                  Row{{"replica", 4}, {0, 1, 2, 3}, "other axes"},
                  Row{{"replica", 2}, {3, 1}, "device 3 is of client 1"},
                  Row{{"replica", 2}, {0, 3}, "device 0 is one of the strategy"}}) {
              TESSERA_ASSIGN_OR_RETURN(const Mesh beside,
                                       create_mesh(client, {row.axis}, row.devices));
              TESSERA_RETURN_IF_ERROR(
                  expect_error(refusal(beside), bad, {"all_reduce_on({", row.text}));
            }
            return absl::OkStatus();
          }),
      IsOk());
}

class AllReduceOnGpusTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Cuda, AllReduceOnGpusTest, ::testing::Values(cuda_forms()[0]),
                         job_form_name);

TEST_P(AllReduceOnGpusTest, AreRefused) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(
                    const Mesh mesh, create_mesh(client, {{"replica", 2}}, std::vector<int>{0, 1}));
                TESSERA_ASSIGN_OR_RETURN(const Mesh beside, create_mesh(client, {{"replica", 2}},
                                                                        std::vector<int>{2, 3}));
                distribute::StrategyOptions options;
                options.cross_device_ops = distribute::all_reduce_on(beside);
                return expect_error(Strategy::create(client, mesh, {"replica"}, options).status(),
                                    StatusCode::kInvalidArgument, {"all_reduce_on(", "not CPUs"});
              }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
