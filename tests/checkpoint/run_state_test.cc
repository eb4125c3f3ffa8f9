// SPDX-License-Identifier: Apache-2.0
//
// The state of a run beside tensors, saved by 4 clients and restored by 2 on another mesh:
// parameters with the state of their optimizer, random keys, positions in data sets.
// //tests/distribute has variables of strategies, and servers_test those on parameter servers.
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/host_array.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "input/dataset.h"
#include "input/iterator_state.h"
#include "input/loader.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "nn/optimizer.h"
#include "nn/parameters.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/variable.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/folder.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

const JobSpec kSaver = {.num_clients = 4, .devices_per_client = 2};
constexpr char kSaversMesh[] = "{x=4, y=2}";
const JobSpec kRestorer = {.num_clients = 2, .devices_per_client = 3};
constexpr char kRestorersMesh[] = "{x=2, y=3}";

// Each shard of `a` has the bits of `b`, which has the same layout.
template <class T>
Status expect_same_bits(const DTensor& a, const DTensor& b) {
  TESSERA_REQUIRE(a.num_local_shards() == b.num_local_shards());
  for (int i = 0; i < a.num_local_shards(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(const ShardView<T> mine, a.shard<T>(i));
    TESSERA_ASSIGN_OR_RETURN(const ShardView<T> other, b.shard<T>(i));
    TESSERA_REQUIRE(mine.box == other.box && mine.data == other.data, "shard ", i);
  }
  return absl::OkStatus();
}

struct Model {
  nn::Parameters weights;
  AdamW optimizer{.learning_rate = 0.1, .shard_state = true};

  // Weights and state, in order.
  std::vector<Variable> variables() {
    std::vector<Variable> all(weights.variables().begin(), weights.variables().end());
    const absl::Span<Variable> state = optimizer.state().variables();
    all.insert(all.end(), state.begin(), state.end());
    return all;
  }
  // Gradients depend on the step and on each weight alone, so a step has the same bits on any mesh.
  Status step(int number) {
    std::vector<DTensor> gradients;
    for (const Variable& weight : weights.variables()) {
      gradients.push_back(weight.value() * 0.25 + (number - 1.5));
    }
    return optimizer.apply(weights.variables(), gradients);
  }
};

// The tensors begin at `first`.
StatusOr<Model> make_model(const Client& client, const char* mesh, const char* layout,
                           float first) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh live, live_mesh(client, mesh));
  Model model;
  model.weights.add("w", iota<float>({7, 6}, Layout::parse(live, layout)) / 8 + first);
  model.weights.add("block/b", iota<float>({5}, Layout::replicated(live, 1)) + first);
  TESSERA_RETURN_IF_ERROR(model.weights.status());
  TESSERA_RETURN_IF_ERROR(model.optimizer.prepare(model.weights.variables()));
  return model;
}

std::vector<NamedTensor> values_of(const std::vector<Variable>& variables) {
  std::vector<NamedTensor> values;
  for (const Variable& variable : variables) values.push_back({variable.name(), variable.value()});
  return values;
}

TEST(RunStateTest, ParametersAndOptimizer) {
  const Folder folder;
  EXPECT_THAT(run_clients(kSaver,
                          [&](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(Model model,
                                                     make_model(client, kSaversMesh, "[x, -]", 0));
                            for (int i = 0; i < 3; ++i) TESSERA_RETURN_IF_ERROR(model.step(i));
                            TESSERA_RETURN_IF_ERROR(checkpoint::save(client, folder / "after 3",
                                                                     values_of(model.variables())));
                            TESSERA_RETURN_IF_ERROR(model.step(3));
                            return checkpoint::save(client, folder / "after 4",
                                                    values_of(model.variables()));
                          }),
              IsOk());
  EXPECT_THAT(
      run_clients(
          kRestorer,
          [&](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(Model model,
                                     make_model(client, kRestorersMesh, "[y, x]", 100));
            std::vector<Variable> variables = model.variables();
            TESSERA_REQUIRE(variables.size() == 8);
            TESSERA_REQUIRE(variables[3].name() == "w/second_moment", variables[3].name());
            TESSERA_RETURN_IF_ERROR(
                checkpoint::restore_into(client, folder / "after 3", absl::MakeSpan(variables)));
            TESSERA_RETURN_IF_ERROR(model.step(3));
            std::vector<checkpoint::Target> targets;
            for (const Variable& variable : variables) {
              targets.push_back({variable.name(), variable.layout()});
            }
            TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> expected,
                                     checkpoint::restore(client, folder / "after 4", targets));
            for (size_t i = 0; i < variables.size(); ++i) {
              const DTensor value = variables[i].value();
              TESSERA_RETURN_IF_ERROR(with_context(
                  value.dtype() == DType::kInt64 ? expect_same_bits<int64_t>(value, expected[i])
                                                 : expect_same_bits<float>(value, expected[i]),
                  variables[i].name()));
            }
            return absl::OkStatus();
          }),
      IsOk());
}

TEST(RunStateTest, RandomKey) {
  const Folder folder;
  const auto draw = [](const Client& client, const char* mesh, const char* layout,
                       const random::Key& key) -> StatusOr<DTensor> {
    TESSERA_ASSIGN_OR_RETURN(const Mesh live, live_mesh(client, mesh));
    return random::normal<float>(key, {9, 5}, Layout::parse(live, layout));
  };
  EXPECT_THAT(run_clients(kSaver,
                          [&](Client& client) -> Status {
                            // A key that has no seed of its own.
                            const random::Key key = random::Key::from_seed(1).fold_in(17);
                            TESSERA_ASSIGN_OR_RETURN(
                                const DTensor drawn,
                                draw(client, kSaversMesh, "[x, y]", key.fold_in(5)));
                            return checkpoint::save(client, folder / "a", {{"drawn", drawn}},
                                                    {.metadata = {{"key", key.to_string()}}});
                          }),
              IsOk());
  EXPECT_THAT(
      run_clients(kRestorer,
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(checkpoint::Info info,
                                             checkpoint::read_info(folder / "a"));
                    TESSERA_ASSIGN_OR_RETURN(const random::Key key,
                                             random::Key::parse(info.metadata["key"]));
                    TESSERA_ASSIGN_OR_RETURN(const DTensor drawn, draw(client, kRestorersMesh,
                                                                       "[y, -]", key.fold_in(5)));
                    TESSERA_ASSIGN_OR_RETURN(
                        const std::vector<DTensor> saved,
                        checkpoint::restore(client, folder / "a", {{"drawn", drawn.layout()}}));
                    return expect_same_bits<float>(drawn, saved[0]);
                  }),
      IsOk());
}

// Batches of numbers, over axis x.
StatusOr<input::Loader> load(const Client& client, const char* mesh,
                             const input::Dataset& dataset) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh live, live_mesh(client, mesh));
  TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::batch_sharded(live, "x", 1));
  return input::distribute(client, dataset, {layout});
}

TEST(RunStateTest, PositionInADataSet) {
  const input::Dataset dataset = input::Dataset::range(50).shuffle(/*seed=*/3).repeat(2).batch(7);
  const Folder folder;
  EXPECT_THAT(run_clients(kSaver,
                          [&](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(const input::Loader loader,
                                                     load(client, kSaversMesh, dataset));
                            TESSERA_ASSIGN_OR_RETURN(input::Iterator iterator, loader.iterate());
                            for (int i = 0; i < 9; ++i)
                              TESSERA_RETURN_IF_ERROR(iterator.next().status());
                            return checkpoint::save(
                                client, folder / "a", {},
                                {.metadata = {{"in_data", iterator.state().to_string()}}});
                          }),
              IsOk());
  EXPECT_THAT(
      run_clients(
          kRestorer,
          [&](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(checkpoint::Info info, checkpoint::read_info(folder / "a"));
            TESSERA_ASSIGN_OR_RETURN(const input::IteratorState state,
                                     input::IteratorState::parse(info.metadata["in_data"]));
            TESSERA_ASSIGN_OR_RETURN(const input::Loader loader,
                                     load(client, kRestorersMesh, dataset));
            TESSERA_ASSIGN_OR_RETURN(input::Iterator iterator, loader.iterate(state));
            TESSERA_ASSIGN_OR_RETURN(input::HostIterator oracle, dataset.iterate());
            for (int step = 0;; ++step) {
              TESSERA_ASSIGN_OR_RETURN(const std::optional<input::Element> expected, oracle.next());
              if (step < 9) continue;
              TESSERA_ASSIGN_OR_RETURN(const std::optional<input::Batch> batch, iterator.next());
              TESSERA_REQUIRE(batch.has_value() == expected.has_value(), "step ", step);
              if (!batch.has_value()) return absl::OkStatus();
              const absl::Span<const int64_t> numbers = (*expected)[0].view<int64_t>();
              TESSERA_REQUIRE(batch->size == static_cast<int64_t>(numbers.size()));
              TESSERA_RETURN_IF_ERROR(
                  expect_shards<int64_t>(batch->tensors[0], [&](int64_t i) { return numbers[i]; }));
            }
          }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
