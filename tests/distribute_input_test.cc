// SPDX-License-Identifier: Apache-2.0
//
// Data sets of strategies, by the rows of tests/facts/input.md.
//
// Steps are texts of i64 elements by replica. The oracle of pipelines is a HostIterator for each
// pipeline of the client.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/host_array.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "distribute/dataset.h"
#include "distribute/input_context.h"
#include "distribute/strategy.h"
#include "distribute/values.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "input/dataset.h"
#include "input/iterator_state.h"
#include "input/loader.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/replicas.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seed.h"
#include "tests/support/splits.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using distribute::AtEnd;
using distribute::AutoShardPolicy;
using distribute::DistributedBatch;
using distribute::DistributedDataset;
using distribute::DistributedIterator;
using distribute::DistributedValues;
using distribute::InputContext;
using distribute::InputOptions;
using distribute::InputReplicationMode;
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

// What the local replicas hold of a tensor, by their ids: "0 1". Every shard of a replica holds it.
StatusOr<std::vector<std::string>> texts_of(const Strategy& strategy,
                                            const DistributedValues& values) {
  std::vector<std::string> texts(strategy.num_replicas_in_sync());
  const std::vector<DTensor> parts = strategy.local_results(values);
  for (size_t i = 0; i < parts.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(parts[i].status());
    for (int shard = 0; shard < parts[i].num_local_shards(); ++shard) {
      TESSERA_ASSIGN_OR_RETURN(const ShardView<int64_t> view, parts[i].shard<int64_t>(shard));
      const std::string text = text_of(view.data);
      std::string& held = texts[strategy.local_replicas()[i]];
      TESSERA_REQUIRE(shard == 0 || held == text, held, " and ", text);
      held = text;
    }
  }
  return texts;
}

int64_t num_elements_in(const std::vector<std::string>& by_replica) {
  int64_t count = 0;
  for (const std::string& text : by_replica) {
    if (text != "-") count += 1 + std::count(text.begin(), text.end(), ' ');
  }
  return count;
}

using Steps = std::vector<std::vector<std::string>>;  // by step and replica

// The next step, by the local replicas.
Status expect_step(const Strategy& strategy, DistributedIterator& iterator,
                   const std::vector<std::string>& expected, int64_t number) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<DistributedBatch> batch, iterator.next());
  TESSERA_REQUIRE(batch.has_value(), "no step ", number);
  TESSERA_REQUIRE(batch->step == number, batch->step, " is not ", number);
  TESSERA_REQUIRE(batch->size == num_elements_in(expected), "step ", number, " has size ",
                  batch->size);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> held,
                           texts_of(strategy, batch->values[0]));
  for (const int replica : strategy.local_replicas()) {
    TESSERA_REQUIRE(held[replica] == expected[replica], "step ", number, ": replica ", replica,
                    " holds ", held[replica]);
  }
  return absl::OkStatus();
}

Status expect_end(DistributedIterator& iterator) {
  for (int again = 0; again < 2; ++again) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<DistributedBatch> batch, iterator.next());
    TESSERA_REQUIRE(!batch.has_value());
  }
  return absl::OkStatus();
}

// Exactly these steps, then the end. From the state before each of them come the next steps, and
// the states after these are the same.
Status expect_steps(const Strategy& strategy, const DistributedDataset& dataset,
                    const Steps& steps) {
  std::vector<IteratorState> states;
  TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
  for (const std::vector<std::string>& step : steps) {
    states.push_back(iterator.state());
    TESSERA_RETURN_IF_ERROR(
        expect_step(strategy, iterator, step, static_cast<int64_t>(states.size()) - 1));
  }
  states.push_back(iterator.state());
  TESSERA_RETURN_IF_ERROR(expect_end(iterator));

  constexpr size_t kStepsFromEach = 2;
  for (size_t first = 1; first < states.size(); ++first) {
    TESSERA_ASSIGN_OR_RETURN(const IteratorState state,
                             IteratorState::parse(states[first].to_string()));
    TESSERA_REQUIRE(state == states[first]);
    TESSERA_ASSIGN_OR_RETURN(DistributedIterator rest, dataset.iterate(state));
    for (size_t k = first; k < steps.size() && k < first + kStepsFromEach; ++k) {
      TESSERA_REQUIRE(rest.state() == states[k], rest.state().to_string());
      TESSERA_RETURN_IF_ERROR(
          with_context(expect_step(strategy, rest, steps[k], static_cast<int64_t>(k)),
                       absl::StrCat("from ", state.to_string())));
    }
    if (first + kStepsFromEach > steps.size()) TESSERA_RETURN_IF_ERROR(expect_end(rest));
  }
  return absl::OkStatus();
}

InputOptions under(AutoShardPolicy policy, AtEnd at_end = AtEnd::kAll) {
  return {.auto_shard = policy, .at_end = at_end};
}

// Runs the body on clients of so many devices each, as threads and as processes.
struct ClientsForm {
  int num_clients;
  int devices_per_client = 1;
};
void expect_on(const ClientsForm& form, const ReplicaBody& body) {
  for (const Setting setting : {Setting::kThreads, Setting::kProcesses}) {
    if (setting == Setting::kProcesses && form.num_clients == 1) continue;
    EXPECT_THAT(run_clients({.setting = setting,
                             .num_clients = form.num_clients,
                             .devices_per_client = form.devices_per_client},
                            [&](Client& client) -> Status {
                              TESSERA_ASSIGN_OR_RETURN(
                                  const Strategy strategy,
                                  distribute::multi_worker_mirrored_strategy(client));
                              return body(client, strategy);
                            }),
                IsOk())
        << setting;
  }
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

// layouts: a replica of four devices, each of which holds what the replica has.
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

// Iterators and resume; the states of every step are those of expect_steps().

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

// Files.

// Files "<name>0.csv", ... of so many lines each, in which lines are numbered on.
std::vector<std::string> write_files(const std::string& name, const std::vector<int>& num_lines) {
  std::vector<std::string> files;
  int line = 0;
  for (const int count : num_lines) {
    files.push_back(absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name, files.size(), ".csv"));
    std::ofstream file(files.back());
    for (int i = 0; i < count; ++i) file << line++ << "\n";
  }
  return files;
}
StatusOr<Dataset> numbers_in(const std::vector<std::string>& files) {
  return Dataset::csv(files, {DType::kInt64});
}

struct FileCase {
  const char* name;
  ClientsForm form;
  int64_t batch;
  AtEnd at_end;
  const char* steps;
};
// Five files of four lines. file_shards_2, file_shards_3: which files a client reads is in the
// steps.
constexpr FileCase kFileCases[] = {
    {"file_steps_2",
     {2},
     4,
     AtEnd::kAll,
     "0 1 / 4 5; 2 3 / 6 7; 8 9 / 12 13; 10 11 / 14 15; 16 17 / -; 18 19 / -"},
    {"file_first_2", {2}, 4, AtEnd::kFirst, "0 1 / 4 5; 2 3 / 6 7; 8 9 / 12 13; 10 11 / 14 15"},
    {"file_steps_3",
     {3},
     6,
     AtEnd::kAll,
     "0 1 / 4 5 / 8 9; 2 3 / 6 7 / 10 11; 12 13 / 16 17 / -; 14 15 / 18 19 / -"},
    {"file_first_3", {3}, 6, AtEnd::kFirst, "0 1 / 4 5 / 8 9; 2 3 / 6 7 / 10 11"},
    {"file_of_two_replicas_each",
     {2, 2},
     7,
     AtEnd::kAll,
     "0 1 / 2 3 / 4 5 / 6; 8 9 / 10 11 / 7 12 / 13; 16 17 / 18 19 / 14 / 15"},
    {"file_of_one_client",
     {1, 2},
     12,
     AtEnd::kAll,
     "0 1 2 3 4 5 / 6 7 8 9 10 11; 12 13 14 15 / 16 17 18 19"},
};
TEST(DistributeInputFilesTest, FileShards) {
  const std::vector<std::string> files = write_files("shards", {4, 4, 4, 4, 4});
  for (const FileCase& row : kFileCases) {
    const Steps steps = parse_steps(row.steps);
    expect_on(row.form, [&](const Client&, const Strategy& strategy) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Dataset lines, numbers_in(files));
      // A stream too, whose positions are in the state.
      const Dataset stream =
          lines.map(same).filter([](const input::Element&) -> StatusOr<bool> { return true; });
      for (const Dataset& each : {lines, lines.map(same), stream}) {
        TESSERA_ASSIGN_OR_RETURN(
            const DistributedDataset dataset,
            strategy.distribute_dataset(each.batch(row.batch),
                                        under(AutoShardPolicy::kFile, row.at_end)));
        TESSERA_RETURN_IF_ERROR(with_context(expect_steps(strategy, dataset, steps), row.name));
        const bool is_stream = !each.cardinality().has_value();
        TESSERA_REQUIRE(is_stream ? !dataset.cardinality().has_value()
                                  : dataset.cardinality() == static_cast<int64_t>(steps.size()));
      }
      return absl::OkStatus();
    });
  }
}

// Every line once, whatever the files, the batches, the replicas and the clients.
TEST(DistributeInputFilesTest, FileReadsEveryLineOnce) {
  std::mt19937 random(static_cast<uint32_t>(test_seed(20)));
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 6; ++round) {
    const ClientsForm form = {.num_clients = draw(1, 4), .devices_per_client = draw(1, 2)};
    const int num_replicas = form.num_clients * form.devices_per_client;
    std::vector<int> num_lines(static_cast<size_t>(draw(form.num_clients, 8)));
    for (int& count : num_lines) count = draw(1, 9);
    const int64_t batch_size = draw(num_replicas, 3 * num_replicas);
    const std::vector<std::string> files = write_files("once", num_lines);
    expect_on(form, [&](const Client&, const Strategy& strategy) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Dataset lines, numbers_in(files));
      TESSERA_ASSIGN_OR_RETURN(const DistributedDataset dataset,
                               strategy.distribute_dataset(lines.shuffle(3).batch(batch_size),
                                                           under(AutoShardPolicy::kFile)));
      TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
      std::vector<int64_t> all;
      for (;;) {
        TESSERA_ASSIGN_OR_RETURN(const std::optional<DistributedBatch> batch, iterator.next());
        if (!batch.has_value()) break;
        TESSERA_ASSIGN_OR_RETURN(const HostTensor<int64_t> gathered,
                                 strategy.gather(batch->values[0], 0).to_host<int64_t>());
        TESSERA_REQUIRE(static_cast<int64_t>(gathered.data.size()) == batch->size);
        all.insert(all.end(), gathered.data.begin(), gathered.data.end());
      }
      std::sort(all.begin(), all.end());
      TESSERA_REQUIRE(static_cast<int64_t>(all.size()) == lines.cardinality());
      for (size_t i = 0; i < all.size(); ++i) {
        TESSERA_REQUIRE(all[i] == static_cast<int64_t>(i), all[i]);
      }
      return absl::OkStatus();
    });
  }
}

TEST(DistributeInputFilesTest, OneFile) {
  const std::vector<std::string> files = write_files("one", {4});
  expect_on({.num_clients = 2}, [&](const Client&, const Strategy& strategy) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Dataset lines, numbers_in(files));
    // one_file_two_clients
    TESSERA_RETURN_IF_ERROR(expect_error(
        strategy.distribute_dataset(lines.batch(2), under(AutoShardPolicy::kFile)).status(),
        StatusCode::kInvalidArgument,
        {"distribute_dataset: kFile deals 1 files to 2 pipelines", "use kData"}));
    // one_file_auto
    TESSERA_ASSIGN_OR_RETURN(
        const DistributedDataset dataset,
        strategy.distribute_dataset(lines.batch(2), under(AutoShardPolicy::kAuto)));
    TESSERA_RETURN_IF_ERROR(expect_steps(strategy, dataset, parse_steps("0 / 1; 2 / 3")));
    // no_files
    return expect_error(
        strategy.distribute_dataset(Dataset::range(8).batch(2), under(AutoShardPolicy::kFile))
            .status(),
        StatusCode::kInvalidArgument, {"this one has no files; use kData"});
  });
}

TEST(DistributeInputTest, Off) {
  expect_on({.num_clients = 2}, [](const Client&, const Strategy& strategy) -> Status {
    TESSERA_ASSIGN_OR_RETURN(
        const DistributedDataset dataset,
        strategy.distribute_dataset(Dataset::range(4).batch(4), under(AutoShardPolicy::kOff)));
    TESSERA_REQUIRE(dataset.cardinality() == 2);
    return expect_steps(strategy, dataset, parse_steps("0 1 / 0 1; 2 3 / 2 3"));
  });
}

// Functions.

struct FunctionCase {
  const char* name;
  ClientsForm form;
  InputReplicationMode mode;
  std::function<Dataset(const InputContext&)> fn;
  const char* steps;
  AtEnd at_end = AtEnd::kAll;
};
TEST(DistributeInputFunctionsTest, Steps) {
  constexpr InputReplicationMode kPerWorker = InputReplicationMode::kPerWorker;
  constexpr InputReplicationMode kPerReplica = InputReplicationMode::kPerReplica;
  const auto range = [](int64_t size, int64_t batch) {
    return [size, batch](const InputContext&) { return Dataset::range(size).batch(batch); };
  };
  const auto sharded = [](const InputContext& context) {
    return Dataset::range(6).shard(2, context.input_pipeline_id).batch(2);
  };
  const auto lengths = [](const InputContext& context) {
    return Dataset::range(2 + 4 * context.input_pipeline_id).batch(2);
  };
  const FunctionCase cases[] = {
      {"function_batches", {1, 2}, kPerWorker, range(6, 2), "0 1 / 2 3; 4 5 / -"},
      {"function_ragged", {1, 2}, kPerWorker, range(7, 2), "0 1 / 2 3; 4 5 / 6"},
      {"function_not_rebatched", {1, 2}, kPerWorker, range(6, 4), "0 1 2 3 / 4 5"},
      {"function_per_replica_same", {1, 2}, kPerReplica, range(4, 2), "0 1 / 0 1; 2 3 / 2 3"},
      {"function_per_replica_sharded", {1, 2}, kPerReplica, sharded, "0 2 / 1 3; 4 / 5"},
      {"function_per_replica_of_clients", {2}, kPerReplica, sharded, "0 2 / 1 3; 4 / 5"},
      {"function_lengths", {2}, kPerWorker, lengths, "0 1 / 0 1; - / 2 3; - / 4 5"},
      {"function_lengths_first", {2}, kPerWorker, lengths, "0 1 / 0 1", AtEnd::kFirst},
      {"function_lengths_in_turn",
       {2, 2},
       kPerWorker,
       lengths,
       "0 1 / - / 0 1 / 2 3; - / - / 4 5 / -"},
      {"function_lengths_in_turn_first",
       {2, 2},
       kPerWorker,
       lengths,
       "0 1 / - / 0 1 / 2 3",
       AtEnd::kFirst},
      {"function_empty", {2}, kPerWorker, range(0, 2), ""},
  };
  for (const FunctionCase& row : cases) {
    const Steps steps = parse_steps(row.steps);
    expect_on(row.form, [&](const Client&, const Strategy& strategy) -> Status {
      for (const int prefetch : {0, 1, 4}) {
        TESSERA_ASSIGN_OR_RETURN(
            const DistributedDataset dataset,
            strategy.distribute_datasets_from_function(row.fn, {.replication_mode = row.mode,
                                                                .at_end = row.at_end,
                                                                .load = {.prefetch = prefetch}}));
        TESSERA_REQUIRE(dataset.cardinality() == static_cast<int64_t>(steps.size()), row.name);
        TESSERA_RETURN_IF_ERROR(with_context(expect_steps(strategy, dataset, steps), row.name));
      }
      return absl::OkStatus();
    });
  }
}

// contexts_per_worker, contexts_per_replica, modes_do_not_stick
TEST(DistributeInputFunctionsTest, Contexts) {
  const auto contexts_of = [](const Strategy& strategy, InputReplicationMode mode) {
    std::vector<std::string> contexts;
    const StatusOr<DistributedDataset> dataset = strategy.distribute_datasets_from_function(
        [&](const InputContext& context) {
          contexts.push_back(absl::StrCat(context.num_input_pipelines, " ",
                                          context.input_pipeline_id, " ",
                                          context.num_replicas_in_sync));
          return Dataset::range(4).batch(2);
        },
        {.replication_mode = mode});
    return absl::StrCat(dataset.ok() ? "" : "failed ", absl::StrJoin(contexts, "; "));
  };
  expect_on({.num_clients = 2, .devices_per_client = 2},
            [&](const Client& client, const Strategy& strategy) -> Status {
              const int id = client.client_id();
              TESSERA_REQUIRE(contexts_of(strategy, InputReplicationMode::kPerWorker) ==
                              absl::StrCat("2 ", id, " 4"));
              TESSERA_REQUIRE(contexts_of(strategy, InputReplicationMode::kPerReplica) ==
                              absl::StrCat("4 ", 2 * id, " 4; 4 ", 2 * id + 1, " 4"));
              return absl::OkStatus();
            });
  expect_on(
      {.num_clients = 1, .devices_per_client = 2},
      [&](const Client&, const Strategy& strategy) -> Status {
        TESSERA_REQUIRE(contexts_of(strategy, InputReplicationMode::kPerReplica) == "2 0 2; 2 1 2");
        TESSERA_REQUIRE(contexts_of(strategy, InputReplicationMode::kPerWorker) == "1 0 2");
        return absl::OkStatus();
      });
}

// Shapes may differ from replica to replica, and replicas without elements have one of them.
TEST(DistributeInputFunctionsTest, ShapesOfReplicasMayDiffer) {
  const auto body = [](const Client&, const Strategy& strategy) -> Status {
    const auto lines_of = [](const InputContext& context) {
      const int64_t length = context.input_pipeline_id + 1;
      return Dataset::range(length)
          .map([length](input::Element element) -> StatusOr<input::Element> {
            const int64_t value = element[0].view<int64_t>()[0];
            return input::Element{
                HostArray::of<int64_t>(std::vector<int64_t>(length, value), {length})};
          })
          .batch(1);
    };
    TESSERA_ASSIGN_OR_RETURN(
        const DistributedDataset dataset,
        strategy.distribute_datasets_from_function(
            lines_of, {.replication_mode = InputReplicationMode::kPerReplica}));
    TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
    const std::vector<std::vector<Shape>> shapes = {{{1, 1}, {1, 2}}, {{0, 2}, {1, 2}}};
    for (const std::vector<Shape>& step : shapes) {
      TESSERA_ASSIGN_OR_RETURN(const std::optional<DistributedBatch> batch, iterator.next());
      const PerReplica& values = *batch->values[0].per_replica();
      for (size_t i = 0; i < values.local_replicas().size(); ++i) {
        const DTensor& part = values.local(static_cast<int>(i));
        TESSERA_REQUIRE(part.shape() == step[values.local_replicas()[i]],
                        shape_to_string(part.shape()));
        TESSERA_REQUIRE(part.dtype() == DType::kInt64);
      }
    }
    return expect_end(iterator);
  };
  expect_on({.num_clients = 1, .devices_per_client = 2}, body);
  expect_on({.num_clients = 2}, body);
}

// Every policy against an oracle, in every form of a job of eight devices.

// Data sets of every kind, without batches.
std::vector<Dataset> some_datasets() {
  const Dataset range = Dataset::range(37);
  const Dataset counted = *Dataset::generator(
      {{DType::kInt64, {}}}, [](int64_t index) -> StatusOr<std::optional<input::Element>> {
        if (index == 21) return std::nullopt;
        return input::Element{HostArray::scalar<int64_t>(3 * index)};
      });
  return {
      range,
      range.shuffle(3).map(same, 2).repeat(2),
      range.filter(is_odd).repeat(2),
      counted.map(same),
      range.shard(2, 1).skip(1).take(8).cache(),
  };
}

// The steps of pipelines by their replicas: a batch is cut over them, or each gets one in turn.
StatusOr<Steps> oracle_steps(const std::vector<Dataset>& pipelines,
                             const std::vector<std::vector<int>>& replicas, bool cuts,
                             AtEnd at_end) {
  int num_replicas = 0;
  std::vector<HostIterator> iterators;
  for (size_t p = 0; p < pipelines.size(); ++p) {
    num_replicas += static_cast<int>(replicas[p].size());
    TESSERA_ASSIGN_OR_RETURN(HostIterator iterator, pipelines[p].iterate());
    iterators.push_back(std::move(iterator));
  }
  Steps steps;
  for (;;) {
    std::vector<std::string> step(num_replicas, "-");
    size_t num_ended = 0;
    for (size_t p = 0; p < pipelines.size(); ++p) {
      const auto count = static_cast<int64_t>(replicas[p].size());
      std::vector<int64_t> batch;
      for (int64_t k = 0; k < count; ++k) {
        if (k == 0 || !cuts) {
          TESSERA_ASSIGN_OR_RETURN(const std::optional<input::Element> next, iterators[p].next());
          batch.clear();
          if (next.has_value()) {
            const absl::Span<const int64_t> values = (*next)[0].view<int64_t>();
            batch.assign(values.begin(), values.end());
          }
          if (k == 0 && batch.empty()) ++num_ended;
        }
        // Element i of a batch of n belongs to part floor(i count / n).
        std::vector<int64_t> part;
        const auto size = static_cast<int64_t>(batch.size());
        for (int64_t i = 0; i < size; ++i) {
          if (!cuts || i * count / size == k) part.push_back(batch[i]);
        }
        step[replicas[p][k]] = text_of(part);
      }
    }
    if (num_ended == pipelines.size() || (num_ended > 0 && at_end == AtEnd::kFirst)) return steps;
    steps.push_back(std::move(step));
  }
}

class DistributeInputFormsTest : public JobFormTest {
 protected:
  Status run_strategy(const ReplicaBody& body) {
    return run([&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Strategy strategy,
                               distribute::multi_worker_mirrored_strategy(client));
      return body(client, strategy);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, DistributeInputFormsTest, ::testing::ValuesIn(kJobForms),
                         job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, DistributeInputFormsTest, ::testing::Values(kTwoHosts),
                         job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, DistributeInputFormsTest, ::testing::ValuesIn(cuda_forms()),
                         job_form_name);

// The replicas of each client; all of these have as many.
std::vector<std::vector<int>> replicas_by_client(const Client& client) {
  std::vector<std::vector<int>> replicas(client.num_clients());
  for (const Device& device : client.devices()) replicas[device.client_id].push_back(device.id);
  return replicas;
}
const std::vector<int> kEveryReplica = {0, 1, 2, 3, 4, 5, 6, 7};

// shuffle_split, filter, repeat_across_epochs, map_keeps_order: the same order on any clients.
TEST_P(DistributeInputFormsTest, OneOrderOnAnyClients) {
  EXPECT_THAT(
      run_strategy([](const Client&, const Strategy& strategy) -> Status {
        for (const Dataset& elements : some_datasets()) {
          const Dataset batches = elements.batch(11);
          TESSERA_ASSIGN_OR_RETURN(const DistributedDataset dataset,
                                   strategy.distribute_dataset(batches, {}));
          TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
          TESSERA_ASSIGN_OR_RETURN(const Steps steps,
                                   oracle_steps({batches}, {kEveryReplica}, true, AtEnd::kAll));
          for (const std::vector<std::string>& step : steps) {
            TESSERA_RETURN_IF_ERROR(expect_step(strategy, iterator, step, iterator.state().step));
          }
          TESSERA_RETURN_IF_ERROR(expect_end(iterator));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

TEST_P(DistributeInputFormsTest, PipelinesResumeEverywhere) {
  EXPECT_THAT(
      run_strategy([](const Client& client, const Strategy& strategy) -> Status {
        const std::vector<std::vector<int>> by_client = replicas_by_client(client);
        std::vector<std::vector<int>> by_replica;
        for (const int replica : kEveryReplica) by_replica.push_back({replica});
        for (const Dataset& elements : some_datasets()) {
          for (const Remainder remainder : {Remainder::kKeep, Remainder::kDrop}) {
            // same_end: pipelines of equal lengths, and of a length each.
            const int64_t share = 32 / client.num_clients();
            const std::vector<Dataset> shares(client.num_clients(),
                                              elements.batch(share, remainder));
            TESSERA_ASSIGN_OR_RETURN(const Steps off,
                                     oracle_steps(shares, by_client, true, AtEnd::kAll));
            TESSERA_ASSIGN_OR_RETURN(const DistributedDataset dataset,
                                     strategy.distribute_dataset(elements.batch(32, remainder),
                                                                 under(AutoShardPolicy::kOff)));
            TESSERA_RETURN_IF_ERROR(expect_steps(strategy, dataset, off));
          }
          for (const AtEnd at_end : {AtEnd::kAll, AtEnd::kFirst}) {
            const auto fn = [&](const InputContext& context) {
              return elements.skip(context.input_pipeline_id).shard(2, 0).batch(7);
            };
            for (const InputReplicationMode mode :
                 {InputReplicationMode::kPerWorker, InputReplicationMode::kPerReplica}) {
              const std::vector<std::vector<int>>& replicas =
                  mode == InputReplicationMode::kPerWorker ? by_client : by_replica;
              std::vector<Dataset> pipelines;
              for (size_t p = 0; p < replicas.size(); ++p) {
                pipelines.push_back(fn({.input_pipeline_id = static_cast<int>(p)}));
              }
              TESSERA_ASSIGN_OR_RETURN(const Steps steps,
                                       oracle_steps(pipelines, replicas, false, at_end));
              TESSERA_ASSIGN_OR_RETURN(const DistributedDataset dataset,
                                       strategy.distribute_datasets_from_function(
                                           fn, {.replication_mode = mode, .at_end = at_end}));
              TESSERA_RETURN_IF_ERROR(expect_steps(strategy, dataset, steps));
            }
          }
        }
        return absl::OkStatus();
      }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
