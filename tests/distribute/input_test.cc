// SPDX-License-Identifier: Apache-2.0
//
// Data sets of strategies, by the rows of tests/facts/input.md.
//
// Steps are texts of i64 elements by replica (tests/support/distribute/steps.h). Files, functions
// and policies are in input_policies_test.cc.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/host_array.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "distribute/dataset.h"
#include "distribute/strategy.h"
#include "distribute/values.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "input/dataset.h"
#include "input/input_context.h"
#include "input/iterator_state.h"
#include "input/loader.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "tests/support/clients.h"
#include "tests/support/distribute/replicas.h"
#include "tests/support/distribute/splits.h"
#include "tests/support/distribute/steps.h"
#include "tests/support/expect_error.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using distribute::AutoShardPolicy;
using distribute::DistributedBatch;
using distribute::DistributedDataset;
using distribute::DistributedIterator;
using distribute::InputContext;
using distribute::PerReplica;
using distribute::ReplicaContext;
using distribute::Strategy;
using input::Dataset;
using input::HostIterator;
using input::IteratorState;
using input::Remainder;

StatusOr<input::Element> same(input::Element element) { return element; }
StatusOr<bool> is_odd(const input::Element& element) {
  return element[0].view<int64_t>()[0] % 2 == 1;
}

// Global order.

// Each row on one client of all replicas and on a client for each, with and without rounds.
TEST(DistributeInputTest, SplitsByReplica) {
  for (const int num_replicas : {2, 3, 4}) {
    const auto body = [&](const Client&, const Strategy& strategy) -> Status {
      for (const SplitCase& row : kSplits) {
        if (row.num_replicas != num_replicas) continue;
        for (const bool maps : {false, true}) {
          const Dataset range = Dataset::range(row.size);
          const Dataset elements = maps ? range.map(same) : range;
          TESSERA_ASSIGN_OR_RETURN(
              const DistributedDataset dataset,
              strategy.distribute_dataset(elements.batch(row.batch, row.remainder), {}));
          TESSERA_RETURN_IF_ERROR(
              with_context(expect_steps(strategy, dataset, parse_steps(row.steps)), row.name));
        }
      }
      return absl::OkStatus();
    };
    expect_on({.num_clients = 1, .devices_per_client = num_replicas}, body);
    expect_on({.num_clients = num_replicas}, body);
  }
}

// Every element once per epoch, for all sizes 0 to 40 in batches of 1 to 9 on 1 to 8 replicas.
TEST(DistributeInputTest, AllSizesBatchesAndReplicas) {
  for (int num_replicas = 1; num_replicas <= 8; ++num_replicas) {
    const auto body = [&](const Client&, const Strategy& strategy) -> Status {
      for (int64_t size = 0; size <= 40; size += kSanitized ? 5 : 1) {
        for (int64_t batch_size = 1; batch_size <= 9; ++batch_size) {
          TESSERA_ASSIGN_OR_RETURN(
              const DistributedDataset dataset,
              strategy.distribute_dataset(Dataset::range(size).shuffle(1).batch(batch_size),
                                          {.load = {.prefetch = 0}}));
          TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
          std::vector<int> seen(static_cast<size_t>(size), 0);
          int64_t num_steps = 0;
          for (;; ++num_steps) {
            TESSERA_ASSIGN_OR_RETURN(const std::optional<DistributedBatch> batch, iterator.next());
            if (!batch.has_value()) break;
            for (const DTensor& part : strategy.local_results(batch->values[0])) {
              TESSERA_ASSIGN_OR_RETURN(const ShardView<int64_t> view, part.shard<int64_t>(0));
              for (const int64_t element : view.data) ++seen[element];
            }
          }
          TESSERA_REQUIRE(num_steps == dataset.cardinality(), num_steps);
          TESSERA_REQUIRE(std::count(seen.begin(), seen.end(), 1) == size, size, " by ",
                          batch_size);
        }
      }
      return absl::OkStatus();
    };
    expect_on({.num_clients = 1, .devices_per_client = num_replicas}, body);
  }
}

TEST(DistributeInputTest, MeanOfLastBatchAndLossOverGlobalBatch) {
  const auto body = [](const Client&, const Strategy& strategy) -> Status {
    // mean_of_last_batch
    const auto to_float = [](input::Element element) -> StatusOr<input::Element> {
      return input::Element{HostArray::scalar(static_cast<float>(element[0].view<int64_t>()[0]))};
    };
    TESSERA_ASSIGN_OR_RETURN(
        const DistributedDataset dataset,
        strategy.distribute_dataset(Dataset::range(5).map(to_float).batch(4), {}));
    TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
    for (const float expected : {1.5F, 4.0F}) {
      TESSERA_ASSIGN_OR_RETURN(const std::optional<DistributedBatch> batch, iterator.next());
      TESSERA_RETURN_IF_ERROR(expect_values<float>(
          strategy.reduce(ReduceOp::kAvg, batch->values[0], {0}), {}, {expected}));
      // loss_over_global_batch
      const PerReplica losses = strategy.run(
          [&](ReplicaContext&, const DTensor& x) {
            return ops::sum(x * x) / static_cast<double>(batch->size);
          },
          batch->values[0]);
      const float loss = expected == 4 ? 16 : (0 + 1 + 4 + 9) / 4.0F;
      TESSERA_RETURN_IF_ERROR(
          expect_values<float>(strategy.reduce(ReduceOp::kSum, losses), {}, {loss}));
    }
    return absl::OkStatus();
  };
  for (const int num_replicas : {1, 2, 3, 4}) {
    expect_on({.num_clients = 1, .devices_per_client = num_replicas}, body);
  }
  expect_on({.num_clients = 2}, body);
}

// An element (x, y): the scalar and a matrix of it.
StatusOr<input::Element> with_matrix(input::Element element) {
  const int64_t x = element[0].view<int64_t>()[0];
  element.push_back(HostArray::of<int64_t>(std::vector<int64_t>(6, x), {2, 3}));
  return element;
}

// several_tensors, cardinality, spec_keep, spec_drop, devices
TEST(DistributeInputTest, SeveralTensorsSpecsAndCardinality) {
  const auto body = [](const Client&, const Strategy& strategy) -> Status {
    const Dataset pairs = Dataset::range(7).map(with_matrix);
    for (const AutoShardPolicy policy : {AutoShardPolicy::kAuto, AutoShardPolicy::kOff}) {
      TESSERA_ASSIGN_OR_RETURN(const DistributedDataset dataset,
                               strategy.distribute_dataset(pairs.batch(4), under(policy)));
      TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
      for (;;) {
        TESSERA_ASSIGN_OR_RETURN(const std::optional<DistributedBatch> batch, iterator.next());
        if (!batch.has_value()) break;
        TESSERA_REQUIRE(batch->values.size() == 2);
        const std::vector<DTensor> x = strategy.local_results(batch->values[0]);
        const std::vector<DTensor> y = strategy.local_results(batch->values[1]);
        for (size_t i = 0; i < x.size(); ++i) {
          TESSERA_REQUIRE(y[i].shape() == Shape({x[i].shape()[0], 2, 3}));
          TESSERA_ASSIGN_OR_RETURN(const ShardView<int64_t> scalars, x[i].shard<int64_t>(0));
          TESSERA_ASSIGN_OR_RETURN(const ShardView<int64_t> matrices, y[i].shard<int64_t>(0));
          for (size_t k = 0; k < matrices.data.size(); ++k) {
            TESSERA_REQUIRE(matrices.data[k] == scalars.data[k / 6]);
          }
        }
      }
      TESSERA_REQUIRE(
          dataset.element_spec() ==
          (std::vector<input::TensorSpec>{{DType::kInt64, {-1}}, {DType::kInt64, {-1, 2, 3}}}));
    }
    const auto cardinality_of = [&](const Dataset& batches) {
      const StatusOr<DistributedDataset> dataset = strategy.distribute_dataset(batches, {});
      return dataset.ok() ? dataset->cardinality() : -1;
    };
    const Dataset five = Dataset::range(5);
    TESSERA_REQUIRE(cardinality_of(five.batch(2)) == 3);
    TESSERA_REQUIRE(cardinality_of(five.batch(2, Remainder::kDrop)) == 2);
    TESSERA_REQUIRE(!cardinality_of(five.repeat().batch(2)).has_value());
    const Dataset eight = Dataset::range(8);
    TESSERA_ASSIGN_OR_RETURN(const DistributedDataset keep,
                             strategy.distribute_dataset(eight.batch(4), {}));
    TESSERA_ASSIGN_OR_RETURN(const DistributedDataset drop,
                             strategy.distribute_dataset(eight.batch(4, Remainder::kDrop), {}));
    const input::TensorSpec any = {DType::kInt64, {-1}};
    const input::TensorSpec four = {DType::kInt64, {4}};
    TESSERA_REQUIRE(keep.element_spec() == std::vector<input::TensorSpec>{any});
    TESSERA_REQUIRE(drop.element_spec() == std::vector<input::TensorSpec>{four});
    TESSERA_ASSIGN_OR_RETURN(const DistributedDataset on_host,
                             strategy.distribute_dataset(
                                 eight.batch(8), {.load = {.transfer = input::Transfer::kOnHost}}));
    TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, on_host.iterate());
    return expect_step(strategy, iterator, parse_steps("0 1 / 2 3 / 4 5 / 6 7")[0], 0);
  };
  expect_on({.num_clients = 1, .devices_per_client = 4}, body);
  expect_on({.num_clients = 2, .devices_per_client = 2}, body);
}

// An element of so many tensors that the calls of a step do not fit into one exchange.
TEST(DistributeInputTest, ElementsOfManyTensors) {
  constexpr int kNumTensors = 80;
  expect_on({.num_clients = 2}, [](const Client&, const Strategy& strategy) -> Status {
    const auto widen = [](input::Element element) -> StatusOr<input::Element> {
      return input::Element(kNumTensors, element[0]);
    };
    TESSERA_ASSIGN_OR_RETURN(
        const DistributedDataset dataset,
        strategy.distribute_datasets_from_function(
            [&](const InputContext& context) {
              return Dataset::range(2 + 2 * context.input_pipeline_id).map(widen).batch(2);
            },
            {}));
    TESSERA_RETURN_IF_ERROR(expect_steps(strategy, dataset, parse_steps("0 1 / 0 1; - / 2 3")));
    TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
    TESSERA_ASSIGN_OR_RETURN(const std::optional<DistributedBatch> batch, iterator.next());
    TESSERA_REQUIRE(batch->values.size() == kNumTensors);
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> last,
                             texts_of(strategy, batch->values.back()));
    TESSERA_REQUIRE(last[strategy.local_replicas()[0]] == "0 1");
    return absl::OkStatus();
  });
}

// layouts: a replica of four devices, each of which holds the replica's elements.
TEST(DistributeInputTest, LayoutsOfReplicasWithSeveralDevices) {
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{batch=2, h=2, w=2}"));
    TESSERA_ASSIGN_OR_RETURN(const Strategy strategy, Strategy::create(client, mesh, {"batch"}));
    for (const AutoShardPolicy policy : {AutoShardPolicy::kData, AutoShardPolicy::kOff}) {
      TESSERA_ASSIGN_OR_RETURN(
          const DistributedDataset dataset,
          strategy.distribute_dataset(Dataset::range(11).batch(8), under(policy)));
      const bool cuts = policy == AutoShardPolicy::kData || client.num_clients() == 1;
      TESSERA_RETURN_IF_ERROR(expect_steps(
          strategy, dataset,
          parse_steps(cuts ? "0 1 2 3 / 4 5 6 7; 8 9 / 10"
                           : "0 1 2 3 / 0 1 2 3; 4 5 6 7 / 4 5 6 7; 8 9 10 / 8 9 10")));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients({.devices_per_client = 8}, body), IsOk());
  EXPECT_THAT(run_clients({.num_clients = 2, .devices_per_client = 4}, body), IsOk());
}

// Iterators and resume; expect_steps() checks the states of every step.

// end_is_sticky, two_iterators, resume_after_1, resume_after_2, resume_text, resume_other_dataset,
// resume_with_prefetch
TEST(DistributeInputTest, IteratorsAndStates) {
  const auto body = [](const Client&, const Strategy& strategy) -> Status {
    const Dataset batches = Dataset::range(10).batch(4);
    const Steps steps = parse_steps("0 1 / 2 3; 4 5 / 6 7; 8 / 9");
    TESSERA_ASSIGN_OR_RETURN(const DistributedDataset dataset,
                             strategy.distribute_dataset(batches, {.load = {.prefetch = 8}}));
    TESSERA_RETURN_IF_ERROR(expect_steps(strategy, dataset, steps));
    TESSERA_ASSIGN_OR_RETURN(DistributedIterator first, dataset.iterate());
    TESSERA_RETURN_IF_ERROR(expect_step(strategy, first, steps[0], 0));
    TESSERA_ASSIGN_OR_RETURN(DistributedIterator second, dataset.iterate());
    TESSERA_RETURN_IF_ERROR(expect_step(strategy, second, steps[0], 0));
    TESSERA_RETURN_IF_ERROR(expect_step(strategy, first, steps[1], 1));
    TESSERA_REQUIRE(first.state().step == 2);
    TESSERA_RETURN_IF_ERROR(expect_step(strategy, second, steps[1], 1));
    TESSERA_ASSIGN_OR_RETURN(const DistributedDataset other,
                             strategy.distribute_dataset(Dataset::range(10).batch(5), {}));
    return expect_error(other.iterate(first.state()).status(), StatusCode::kInvalidArgument,
                        {"was made by another data set"});
  };
  expect_on({.num_clients = 1, .devices_per_client = 2}, body);
  expect_on({.num_clients = 2}, body);
}

// A stream over random access goes on where it was: from a state nothing is read again.
TEST(DistributeInputTest, ResumeReadsNothingAgain) {
  expect_on({.num_clients = 2}, [](const Client&, const Strategy& strategy) -> Status {
    int num_read = 0;  // by this client
    const Dataset stream =
        Dataset::range(1000).filter([&](const input::Element& element) -> StatusOr<bool> {
          ++num_read;
          return is_odd(element);
        });
    TESSERA_ASSIGN_OR_RETURN(
        const DistributedDataset dataset,
        strategy.distribute_dataset(
            stream.batch(8), {.auto_shard = AutoShardPolicy::kOff, .load = {.prefetch = 0}}));
    TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
    for (int step = 0; step < 50; ++step) TESSERA_RETURN_IF_ERROR(iterator.next().status());
    num_read = 0;
    TESSERA_ASSIGN_OR_RETURN(DistributedIterator rest, dataset.iterate(iterator.state()));
    TESSERA_RETURN_IF_ERROR(
        expect_step(strategy, rest, {"401 403 405 407", "401 403 405 407"}, 50));
    TESSERA_REQUIRE(num_read <= 8, num_read);
    return absl::OkStatus();
  });
}

// State after 1 step on 4 replicas in 1 client; the rest on 3 replicas in 3 clients.
TEST(DistributeInputTest, ResumeElsewhere) {
  const Dataset batches = Dataset::range(30).shuffle(9).map(same).batch(4);
  TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator oracle, batches.iterate());
  ASSERT_THAT(oracle.next(), IsOk());
  const std::string text = oracle.state().to_string();
  expect_on({.num_clients = 1, .devices_per_client = 4},
            [&](const Client&, const Strategy& strategy) -> Status {
              TESSERA_ASSIGN_OR_RETURN(const DistributedDataset dataset,
                                       strategy.distribute_dataset(batches, {}));
              TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
              TESSERA_RETURN_IF_ERROR(iterator.next().status());
              TESSERA_REQUIRE(iterator.state().to_string() == text);
              return absl::OkStatus();
            });
  expect_on({.num_clients = 3}, [&](const Client&, const Strategy& strategy) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const DistributedDataset dataset,
                             strategy.distribute_dataset(batches, {}));
    TESSERA_ASSIGN_OR_RETURN(const IteratorState state, IteratorState::parse(text));
    TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate(state));
    TESSERA_ASSIGN_OR_RETURN(HostIterator expected, batches.iterate(state));
    for (;;) {
      TESSERA_ASSIGN_OR_RETURN(const std::optional<input::Element> element, expected.next());
      if (!element.has_value()) return expect_end(iterator);
      TESSERA_ASSIGN_OR_RETURN(const std::optional<DistributedBatch> batch, iterator.next());
      const absl::Span<const int64_t> values = (*element)[0].view<int64_t>();
      TESSERA_RETURN_IF_ERROR(expect_values<int64_t>(strategy.gather(batch->values[0], 0),
                                                     {static_cast<int64_t>(values.size())},
                                                     {values.begin(), values.end()}));
    }
  });
}

}  // namespace
}  // namespace tessera::testing
