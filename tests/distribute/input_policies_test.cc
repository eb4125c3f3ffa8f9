// SPDX-License-Identifier: Apache-2.0
//
// How data sets of strategies are dealt to clients: by file, from functions, not at all, and each
// policy against an oracle in every form of a job. The rows of tests/facts/input.md, named as
// there.
//
// The oracle of pipelines is a HostIterator for each pipeline of the client.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/host_array.h"
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
#include "tests/support/distribute/replicas.h"
#include "tests/support/distribute/splits.h"
#include "tests/support/distribute/steps.h"
#include "tests/support/expect_error.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/seed.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using distribute::AtEnd;
using distribute::AutoShardPolicy;
using distribute::DistributedBatch;
using distribute::DistributedDataset;
using distribute::DistributedIterator;
using distribute::InputContext;
using distribute::InputReplicationMode;
using distribute::PerReplica;
using distribute::Strategy;
using input::Dataset;
using input::HostIterator;
using input::Remainder;

StatusOr<input::Element> same(input::Element element) { return element; }
StatusOr<bool> is_odd(const input::Element& element) {
  return element[0].view<int64_t>()[0] % 2 == 1;
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

// Shapes may differ from replica to replica, and replicas without elements have the shape of a
// replica that has some.
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
