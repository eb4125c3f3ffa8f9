// SPDX-License-Identifier: Apache-2.0
//
// Data sets of strategies where something is wrong: readers and functions that fail, clients that
// disagree or are killed, states of other data sets, refused calls. Rows of tests/facts/input.md.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/host_array.h"
#include "base/shape.h"
#include "distribute/dataset.h"
#include "distribute/strategy.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "input/dataset.h"
#include "input/input_context.h"
#include "input/iterator_state.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "tests/support/clients.h"
#include "tests/support/distribute/replicas.h"
#include "tests/support/expect_error.h"
#include "tests/support/leaks.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using distribute::AutoShardPolicy;
using distribute::DistributedBatch;
using distribute::DistributedDataset;
using distribute::DistributedIterator;
using distribute::InputContext;
using distribute::InputOptions;
using distribute::InputReplicationMode;
using distribute::ReplicaContext;
using distribute::Strategy;
using input::Dataset;
using input::IteratorState;

constexpr StatusCode kBad = StatusCode::kInvalidArgument;
const InputOptions kOff = {.auto_shard = AutoShardPolicy::kOff};
const InputOptions kFile = {.auto_shard = AutoShardPolicy::kFile};

Status run_two(const ReplicaBody& body, Setting setting = Setting::kThreads) {
  return run_clients({.setting = setting, .num_clients = 2}, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Strategy strategy,
                             distribute::multi_worker_mirrored_strategy(client));
    return body(client, strategy);
  });
}

// A data set of each kind: cut by element, a pipeline for each client, and a function.
StatusOr<std::vector<DistributedDataset>> all_kinds(const Strategy& strategy,
                                                    const Dataset& elements, int64_t batch) {
  std::vector<DistributedDataset> kinds;
  for (const InputOptions& options : {InputOptions(), kOff}) {
    TESSERA_ASSIGN_OR_RETURN(DistributedDataset dataset,
                             strategy.distribute_dataset(elements.batch(batch), options));
    kinds.push_back(std::move(dataset));
  }
  TESSERA_ASSIGN_OR_RETURN(DistributedDataset dataset,
                           strategy.distribute_datasets_from_function(
                               [&](const InputContext&) { return elements.batch(batch / 2); }, {}));
  kinds.push_back(std::move(dataset));
  return kinds;
}

// The strategy works.
Status expect_usable(const Strategy& strategy) {
  TESSERA_ASSIGN_OR_RETURN(const DistributedDataset dataset,
                           strategy.distribute_dataset(Dataset::range(4).batch(4), kOff));
  TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
  TESSERA_ASSIGN_OR_RETURN(const std::optional<DistributedBatch> batch, iterator.next());
  TESSERA_REQUIRE(batch.has_value() && batch->size == 4);
  return absl::OkStatus();
}

// reader_fails: all clients get the same error.
TEST(DistributeInputFaultsTest, ReaderFailsOnOneClient) {
  const auto body = [](const Client& client, const Strategy& strategy) -> Status {
    const int client_id = client.client_id();
    const auto fail = [client_id](input::Element element) -> StatusOr<input::Element> {
      if (client_id == 1 && element[0].view<int64_t>()[0] >= 8) return absl::DataLossError("disk");
      return element;
    };
    TESSERA_ASSIGN_OR_RETURN(const std::vector<DistributedDataset> kinds,
                             all_kinds(strategy, Dataset::range(32).map(fail), 8));
    for (const DistributedDataset& dataset : kinds) {
      TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
      Status status;
      int64_t num_steps = 0;
      for (; status.ok() && num_steps < 4; ++num_steps) status = iterator.next().status();
      const int64_t step = num_steps - 1;
      TESSERA_RETURN_IF_ERROR(
          expect_error(status, StatusCode::kDataLoss,
                       {absl::StrCat("step ", step, " on client 1"), "element ", "map: disk"}));
      TESSERA_REQUIRE(step == 1 || step == 2, step);
      TESSERA_REQUIRE(iterator.next().status() == status);
      // Another try fails in the same way.
      TESSERA_REQUIRE(iterator.state().step == step);
      TESSERA_ASSIGN_OR_RETURN(DistributedIterator again, dataset.iterate(iterator.state()));
      TESSERA_REQUIRE(again.next().status() == status, again.next().status().ToString());
      TESSERA_RETURN_IF_ERROR(expect_usable(strategy));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_two(body), IsOk());
  EXPECT_THAT(run_two(body, Setting::kProcesses), IsOk());
}

// function_error, and what else a function may do.
TEST(DistributeInputFaultsTest, FunctionError) {
  const auto body = [](const Client& client, const Strategy& strategy) -> Status {
    const auto expect_fails = [&](const std::function<StatusOr<Dataset>()>& fn, StatusCode code,
                                  const std::vector<std::string>& texts) -> Status {
      const auto on_client_1 = [&](const InputContext& context) -> StatusOr<Dataset> {
        if (context.input_pipeline_id == 1) return fn();
        return Dataset::range(4).batch(2);
      };
      const Status status = strategy.distribute_datasets_from_function(on_client_1, {}).status();
      TESSERA_RETURN_IF_ERROR(expect_error(status, code, texts));
      TESSERA_RETURN_IF_ERROR(expect_error(
          status, code, {"replica 1 (client 1, device 1): the function for pipeline 1: "}));
      return expect_usable(strategy);
    };
    (void)client;
    TESSERA_RETURN_IF_ERROR(
        expect_fails([]() -> StatusOr<Dataset> { return absl::NotFoundError("no such file"); },
                     StatusCode::kNotFound, {"no such file"}));
    TESSERA_RETURN_IF_ERROR(expect_fails([] { return Dataset::range(4); }, kBad,
                                         {"has no batches; call batch(size) last"}));
    TESSERA_RETURN_IF_ERROR(
        expect_fails([] { return Dataset::range(-4).batch(2); }, kBad, {"range: n is -4"}));
    return expect_fails(
        []() -> StatusOr<Dataset> {
          // NOTIDY(banned): what a function of the user may do
          throw std::runtime_error("row 7");
        },
        StatusCode::kUnknown, {"raised an exception: row 7"});
  };
  EXPECT_THAT(run_two(body), IsOk());
  EXPECT_THAT(run_two(body, Setting::kProcesses), IsOk());
}

// Elements of another dtype on client 1.
TEST(DistributeInputFaultsTest, ReplicasWithOtherTypes) {
  EXPECT_THAT(run_two([](const Client&, const Strategy& strategy) -> Status {
                const auto fn = [](const InputContext& context) {
                  const bool is_other = context.input_pipeline_id == 1;
                  return Dataset::range(4)
                      .map([is_other](input::Element element) -> StatusOr<input::Element> {
                        if (is_other) return input::Element{HostArray::scalar<float>(1)};
                        return element;
                      })
                      .batch(2);
                };
                TESSERA_ASSIGN_OR_RETURN(const DistributedDataset dataset,
                                         strategy.distribute_datasets_from_function(fn, {}));
                TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
                TESSERA_RETURN_IF_ERROR(expect_error(
                    iterator.next().status(), kBad,
                    {"step 0: replica 0 (client 0, device 0) has i64 [2], replica 1 (client 1, "
                     "device 1) has f32 [2]; give all replicas as many tensors"}));
                TESSERA_RETURN_IF_ERROR(expect_usable(strategy));
                // An element without tensors.
                const auto nothing = [](input::Element) -> StatusOr<input::Element> {
                  return input::Element();
                };
                TESSERA_ASSIGN_OR_RETURN(
                    const DistributedDataset empty,
                    strategy.distribute_dataset(Dataset::range(4).map(nothing).batch(2), kOff));
                TESSERA_ASSIGN_OR_RETURN(DistributedIterator of_empty, empty.iterate());
                return expect_error(of_empty.next().status(), kBad,
                                    {"step 0 on client 0, pipeline 0: an element has no tensors"});
              }),
              IsOk());
}

// Clients that give other data sets, or begin elsewhere: one error that names both.
TEST(DistributeInputFaultsTest, ClientsThatDiffer) {
  EXPECT_THAT(
      run_two([](const Client& client, const Strategy& strategy) -> Status {
        const int id = client.client_id();
        for (const InputOptions& options : {InputOptions(), kOff}) {
          TESSERA_RETURN_IF_ERROR(expect_error(
              strategy.distribute_dataset(Dataset::range(4 + id).batch(2), options).status(), kBad,
              {"replica 0 (client 0, device 0) called distribute_dataset(data set h",
               "replica 1 (client 1, device 1) called distribute_dataset(data set h"}));
          TESSERA_RETURN_IF_ERROR(expect_error(
              strategy.distribute_dataset(Dataset::range(4).batch(2 * id), options).status(), kBad,
              {"replica 0 (client 0, device 0): batch: the size is 0"}));
        }
        TESSERA_RETURN_IF_ERROR(expect_error(
            strategy.distribute_dataset(Dataset::range(4).batch(2), id == 0 ? kOff : InputOptions())
                .status(),
            kBad, {"kOff, kAll)", "kData, kAll)"}));
        TESSERA_ASSIGN_OR_RETURN(const std::vector<DistributedDataset> kinds,
                                 all_kinds(strategy, Dataset::range(8), 2));
        for (const DistributedDataset& dataset : kinds) {
          TESSERA_RETURN_IF_ERROR(expect_error(dataset.iterate({.epoch = id}).status(), kBad,
                                               {"called iterate({dataset=h", "epoch=1"}));
        }
        // Calls of which one is next().
        TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, kinds[1].iterate());
        const Status status = id == 0 ? iterator.next().status() : kinds[1].iterate().status();
        TESSERA_RETURN_IF_ERROR(expect_error(status, kBad, {"called next()", "called iterate("}));
        return expect_usable(strategy);
      }),
      IsOk());
}

// States that a data set does not have.
TEST(DistributeInputFaultsTest, StatesOfOtherDatasets) {
  EXPECT_THAT(
      run_two([](const Client&, const Strategy& strategy) -> Status {
        const Dataset elements =
            Dataset::range(8).filter([](const input::Element&) -> StatusOr<bool> { return true; });
        TESSERA_ASSIGN_OR_RETURN(const std::vector<DistributedDataset> kinds,
                                 all_kinds(strategy, elements, 2));
        std::vector<IteratorState> states;
        for (const DistributedDataset& dataset : kinds) {
          TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
          TESSERA_RETURN_IF_ERROR(iterator.next().status());
          states.push_back(iterator.state());
        }
        const char* const names[] = {"kData", "kOff", "a function for each worker"};
        for (size_t of = 0; of < kinds.size(); ++of) {
          for (size_t from = 0; from < kinds.size(); ++from) {
            if (of == from) continue;
            TESSERA_RETURN_IF_ERROR(
                expect_error(kinds[of].iterate(states[from]).status(), kBad,
                             {"the iterator state {dataset=h",
                              absl::StrCat("was made under ", names[from],
                                           "; this data set is read under ", names[of])}));
          }
        }
        // Another data set, and other numbers of pipelines.
        TESSERA_ASSIGN_OR_RETURN(const DistributedDataset other,
                                 strategy.distribute_dataset(Dataset::range(9).batch(2), kOff));
        TESSERA_RETURN_IF_ERROR(
            expect_error(other.iterate(states[1]).status(), kBad,
                         {"was made by another data set; the hash of this one is h"}));
        const auto changed = [&](const std::function<void(IteratorState*)>& change) {
          IteratorState state = states[1];
          change(&state);
          return kinds[1].iterate(state).status();
        };
        TESSERA_RETURN_IF_ERROR(
            expect_error(changed([](IteratorState* state) { state->pipelines[1] = 3; }), kBad,
                         {"was made with 3 pipelines; this data set has 2, one for each client"}));
        const std::string cut = "should have the positions of 2 pipelines";
        for (size_t size = 1; size < states[1].pipelines.size(); ++size) {
          TESSERA_RETURN_IF_ERROR(
              expect_error(changed([size](IteratorState* state) { state->pipelines.resize(size); }),
                           kBad, {size < 2 ? cut : "pipeline"}));
        }
        TESSERA_RETURN_IF_ERROR(expect_error(
            changed([](IteratorState* state) { state->pipelines.push_back(0); }), kBad, {cut}));
        TESSERA_RETURN_IF_ERROR(expect_error(
            changed([](IteratorState* state) { state->pipelines[4] = -1; }), kBad, {cut}));
        TESSERA_RETURN_IF_ERROR(expect_error(
            changed([](IteratorState* state) { state->pipelines[2] = -1; }), kBad,
            {"replica 0 (client 0, device 0): pipeline 0: the iterator state ", "negative"}));
        TESSERA_RETURN_IF_ERROR(
            expect_error(changed([](IteratorState* state) { state->pipelines[0] = -99; }), kBad,
                         {"was made under another version of Tessera"}));
        // States by hand: an epoch, but no step of it.
        TESSERA_RETURN_IF_ERROR(kinds[1].iterate({.epoch = 3}).status());
        TESSERA_RETURN_IF_ERROR(
            expect_error(kinds[1].iterate({.step = 1}).status(), kBad,
                         {"has no positions of pipelines, so it begins an epoch: give step 0"}));
        TESSERA_RETURN_IF_ERROR(expect_error(kinds[1].iterate({.epoch = -1}).status(), kBad,
                                             {"has a negative epoch or step"}));
        TESSERA_RETURN_IF_ERROR(
            expect_error(changed([](IteratorState* state) { state->step = -1; }), kBad,
                         {"has a negative epoch or step"}));
        return expect_usable(strategy);
      }),
      IsOk());
}

TEST(DistributeInputFaultsTest, Refusals) {
  const auto body = [](const Client&, const Strategy& strategy) -> Status {
    const Dataset range = Dataset::range(8);
    const Dataset batches = range.batch(4);
    const auto fn = [&](const InputContext&) { return batches; };
    struct Case {
      const char* name;
      Status status;
      std::string text;
    };
    const InputOptions per_replica = {.replication_mode = InputReplicationMode::kPerReplica};
    const Case cases[] = {
        {"unbatched", strategy.distribute_dataset(range, {}).status(),
         "distribute_dataset: the data set has no batches; call batch(size) last"},
        {"unbatched_off", strategy.distribute_dataset(range, kOff).status(),
         "distribute_dataset: the data set has no batches; call batch(size) last"},
        {"carried_error", strategy.distribute_dataset(range.take(-1).batch(2), {}).status(),
         "take: n is -1"},
        {"no_files", strategy.distribute_dataset(batches, kFile).status(),
         "kFile deals the files of a data set to clients, and this one has no files"},
        {"small_batch", strategy.distribute_dataset(range.batch(1), kOff).status(),
         "kOff cuts batches of 1 over 2 replicas, which leaves none for client 1; give batches of "
         "2 or more"},
        {"prefetch", strategy.distribute_dataset(batches, {.load = {.prefetch = -1}}).status(),
         "distribute_dataset: prefetch is -1; give 0 to 1024"},
        {"auto_shard",
         strategy
             .distribute_dataset(batches,
                                 {.auto_shard = static_cast<distribute::AutoShardPolicy>(9)})
             .status(),
         "distribute_dataset: AutoShardPolicy(9) is not an enumerator; use kAuto, kData, kFile or "
         "kOff"},
        {"at_end",
         strategy.distribute_dataset(batches, {.at_end = static_cast<distribute::AtEnd>(9)})
             .status(),
         "distribute_dataset: AtEnd(9) is not an enumerator; use kAll or kFirst"},
        {"per_replica", strategy.distribute_dataset(batches, per_replica).status(),
         "kPerReplica is a mode of distribute_datasets_from_function()"},
        {"function_null", strategy.distribute_datasets_from_function(nullptr, {}).status(),
         "distribute_datasets_from_function: the function is empty"},
        {"function_file", strategy.distribute_datasets_from_function(fn, kFile).status(),
         "kFile is a policy of distribute_dataset()"},
        {"function_prefetch",
         strategy.distribute_datasets_from_function(fn, {.load = {.prefetch = 1025}}).status(),
         "prefetch is 1025; give 0 to 1024"},
    };
    for (const Case& row : cases) {
      TESSERA_RETURN_IF_ERROR(with_context(expect_error(row.status, kBad, {row.text}), row.name));
    }
    return expect_usable(strategy);
  };
  EXPECT_THAT(run_two(body), IsOk());
}

// A replica of two clients reads one batch, so it cannot have a pipeline of each.
TEST(DistributeInputFaultsTest, ReplicasOfSeveralClients) {
  EXPECT_THAT(
      run_clients(
          {.num_clients = 2, .devices_per_client = 2},
          [](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{m=2, r=2}"));
            TESSERA_ASSIGN_OR_RETURN(const Strategy strategy,
                                     Strategy::create(client, mesh, {"r"}));
            const Dataset batches = Dataset::range(8).batch(4);
            const std::string text =
                "replica 0 (clients 0, 1, devices 0, 2) has devices of several clients";
            TESSERA_RETURN_IF_ERROR(expect_error(
                strategy.distribute_dataset(batches, kOff).status(), kBad, {text, "use kData"}));
            TESSERA_RETURN_IF_ERROR(
                expect_error(strategy
                                 .distribute_datasets_from_function(
                                     [&](const InputContext&) { return batches; }, {})
                                 .status(),
                             kBad, {"distribute_datasets_from_function: ", text}));
            // A read that fails, or another call, on a client of the replica.
            const int id = client.client_id();
            const auto fail = [id](input::Element element) -> StatusOr<input::Element> {
              if (id == 1) return absl::DataLossError("disk");
              return element;
            };
            TESSERA_RETURN_IF_ERROR(expect_error(
                strategy.distribute_dataset(Dataset::range(8).map(fail).batch(4), {}).status(),
                StatusCode::kDataLoss, {"replica 0 (clients 0, 1, devices 0, 2)", "disk"}));
            TESSERA_RETURN_IF_ERROR(expect_error(
                strategy.distribute_dataset(Dataset::range(8 + id).batch(4), {}).status(), kBad,
                {"replica 0 (clients 0, 1, devices 0, 2): its clients called "
                 "distribute_dataset(data set h",
                 "all clients must make the same calls in the same order"}));
            TESSERA_ASSIGN_OR_RETURN(const DistributedDataset dataset,
                                     strategy.distribute_dataset(batches, {}));
            TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
            TESSERA_ASSIGN_OR_RETURN(const auto batch, iterator.next());
            const std::vector<DTensor> parts = strategy.local_results(batch->values[0]);
            TESSERA_REQUIRE(parts.size() == 2);
            return expect_values<int64_t>(parts[1], {2}, {2, 3});
          }),
      IsOk());
}

TEST(DistributeInputFaultsTest, AMeshOfSomeClients) {
  EXPECT_THAT(
      run_clients({.num_clients = 3},
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{r=2} on 2,0"));
                    TESSERA_ASSIGN_OR_RETURN(const Strategy strategy,
                                             Strategy::create(client, mesh, {"r"}));
                    if (client.client_id() != 1) return expect_usable(strategy);
                    return expect_error(
                        strategy.distribute_dataset(Dataset::range(4).batch(4), kOff).status(),
                        StatusCode::kFailedPrecondition,
                        {"distribute_dataset: client 1 has no device of {r=2}"});
                  }),
      IsOk());
}

// The calls belong to a client, not to a replica; and an object that was moved from returns an
// error.
TEST(DistributeInputFaultsTest, InReplicaFunctionsAndMovedFrom) {
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Strategy strategy, distribute::mirrored_strategy(client));
    const Dataset batches = Dataset::range(4).batch(2);
    TESSERA_ASSIGN_OR_RETURN(DistributedDataset dataset, strategy.distribute_dataset(batches, {}));
    TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
    const auto inside = [&](const std::function<Status()>& call) {
      return strategy.run([&](ReplicaContext&) { return call(); });
    };
    const StatusCode wrong_now = StatusCode::kFailedPrecondition;
    const auto fn = [&](const InputContext&) { return batches; };
    TESSERA_RETURN_IF_ERROR(expect_error(inside([&] { return iterator.next().status(); }),
                                         wrong_now, {"next() is called in a replica function"}));
    TESSERA_RETURN_IF_ERROR(
        expect_error(inside([&] { return dataset.iterate().status(); }), wrong_now, {"iterate()"}));
    TESSERA_RETURN_IF_ERROR(
        expect_error(inside([&] { return strategy.distribute_dataset(batches, {}).status(); }),
                     wrong_now, {"distribute_dataset"}));
    TESSERA_RETURN_IF_ERROR(expect_error(
        inside([&] { return strategy.distribute_datasets_from_function(fn, {}).status(); }),
        wrong_now, {"distribute_datasets_from_function"}));
    const DistributedIterator other = std::move(iterator);
    TESSERA_REQUIRE(iterator.state() == IteratorState());
    TESSERA_RETURN_IF_ERROR(
        expect_error(iterator.next().status(), wrong_now, {"the iterator was moved from"}));
    const DistributedDataset moved = std::move(dataset);
    TESSERA_REQUIRE(!dataset.cardinality().has_value() && dataset.element_spec().empty());
    return expect_error(dataset.iterate().status(), wrong_now, {"the data set was moved from"});
  };
  EXPECT_THAT(run_clients({.devices_per_client = 2}, body), IsOk());
}

// A client that is killed while it reads: the other one is told, and does not wait.
TEST(DistributeInputFaultsTest, AClientIsKilledInNext) {
  for (int kind = 0; kind < 3; ++kind) {
    const auto body = [kind](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Strategy strategy,
                               distribute::multi_worker_mirrored_strategy(client));
      const int client_id = client.client_id();
      const auto die = [client_id](input::Element element) -> StatusOr<input::Element> {
        if (client_id == 1 && element[0].view<int64_t>()[0] >= 8) kill(getpid(), SIGKILL);
        return element;
      };
      TESSERA_ASSIGN_OR_RETURN(const std::vector<DistributedDataset> kinds,
                               all_kinds(strategy, Dataset::range(32).map(die), 4));
      TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, kinds[kind].iterate());
      Status status;
      const absl::Time begin = steady_now();
      for (int step = 0; status.ok() && step < 8; ++step) status = iterator.next().status();
      TESSERA_RETURN_IF_ERROR(expect_error(status, StatusCode::kUnavailable, {"client 1", "lost"}));
      TESSERA_REQUIRE(steady_now() - begin < absl::Seconds(20));
      // A strategy over the survivors works in the same process.
      TESSERA_ASSIGN_OR_RETURN(const Strategy rest, distribute::mirrored_strategy(client));
      TESSERA_ASSIGN_OR_RETURN(const DistributedDataset dataset,
                               rest.distribute_dataset(Dataset::range(4).batch(4), kOff));
      TESSERA_ASSIGN_OR_RETURN(DistributedIterator of_rest, dataset.iterate());
      return of_rest.next().status();
    };
    const std::vector<Status> statuses =
        run_processes({.setting = Setting::kProcesses, .num_clients = 2}, body);
    EXPECT_THAT(statuses[0], IsOk()) << kind;
    EXPECT_THAT(statuses[1], StatusIs(StatusCode::kAborted)) << kind;
  }
}

// prefetch_stops: an iterator that is destroyed half-way leaves no thread, descriptor or memory.
TEST(DistributeInputFaultsTest, PrefetchStops) {
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Strategy strategy, distribute::mirrored_strategy(client));
    const auto same = [](input::Element element) -> StatusOr<input::Element> { return element; };
    const auto half_way = [&]() -> Status {
      TESSERA_ASSIGN_OR_RETURN(const std::vector<DistributedDataset> kinds,
                               all_kinds(strategy, Dataset::range(1000).map(same, 3), 4));
      for (const DistributedDataset& dataset : kinds) {
        TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, dataset.iterate());
        for (int i = 0; i < 10; ++i) TESSERA_RETURN_IF_ERROR(iterator.next().status());
      }
      return absl::OkStatus();
    };
    TESSERA_RETURN_IF_ERROR(half_way());  // fills the caches of the client
    TESSERA_RETURN_IF_ERROR(client.sync_devices());
    const size_t threads = entries_of("/proc/self/task").size();
    const Holdings before = current_holdings();
    for (int i = 0; i < 20; ++i) TESSERA_RETURN_IF_ERROR(half_way());
    TESSERA_RETURN_IF_ERROR(client.sync_devices());
    const absl::Time deadline = steady_now() + absl::Seconds(20);
    while (entries_of("/proc/self/task").size() > threads && steady_now() < deadline) {
    }
    TESSERA_REQUIRE(entries_of("/proc/self/task").size() == threads);
    const Holdings after = current_holdings();
    TESSERA_REQUIRE(after.descriptors == before.descriptors);
    // The client's heap grows by 13 kB in the first 240 rounds, and no more in the next 160. 60
    // iterators hold 500 kB.
    TESSERA_REQUIRE(after.heap_bytes - before.heap_bytes < 30000, before.heap_bytes, " ",
                    after.heap_bytes);
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients({.devices_per_client = 2}, body), IsOk());
}

}  // namespace
}  // namespace tessera::testing
