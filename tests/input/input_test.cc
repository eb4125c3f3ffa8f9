// SPDX-License-Identifier: Apache-2.0
//
// Data sets on the devices of whole jobs, by the rows of tests/facts/input.md.
//
// The oracle is the same data set read by a HostIterator: every shard holds its box of that batch.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/host_array.h"
#include "base/shape.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "input/dataset.h"
#include "input/loader.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "tests/support/clients.h"
#include "tests/support/distribute/splits.h"
#include "tests/support/job_forms.h"
#include "tests/support/leaks.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using input::Batch;
using input::Dataset;
using input::distribute;
using input::HostIterator;
using input::Iterator;
using input::IteratorState;
using input::Loader;
using input::LoadOptions;
using input::Remainder;
using input::Source;
using input::TensorSpec;
using input::Transfer;

StatusOr<input::Element> plus_one(input::Element element) {
  element[0].view<int64_t>()[0] += 1;
  return element;
}
StatusOr<bool> is_odd(const input::Element& element) {
  return element[0].view<int64_t>()[0] % 2 == 1;
}
StatusOr<Layout> rows_of(const Client& client, absl::string_view mesh, int rank = 1) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh live, live_mesh(client, mesh));
  return Layout::batch_sharded(live, live.axes()[0].name, rank);
}
// The layout `[replica]` over all devices of the job.
StatusOr<Layout> replicas_of(const Client& client) {
  return rows_of(client, absl::StrCat("{replica=", client.devices().size(), "}"));
}

// The elements of a local shard, independent of their type.
template <class T>
StatusOr<std::pair<Box, std::string>> bytes_of_shard(const DTensor& tensor, int shard) {
  TESSERA_ASSIGN_OR_RETURN(const ShardView<T> view, tensor.shard<T>(shard));
  return std::pair(view.box, std::string(reinterpret_cast<const char*>(view.data.data()),
                                         view.data.size() * sizeof(T)));
}
StatusOr<std::pair<Box, std::string>> shard_bytes(const DTensor& tensor, int shard) {
  return tensor.dtype() == DType::kInt64 ? bytes_of_shard<int64_t>(tensor, shard)
                                         : bytes_of_shard<float>(tensor, shard);
}
std::string box_bytes(const HostArray& array, const Box& box) {
  std::string bytes;
  const auto size = static_cast<size_t>(dtype_size(array.dtype));
  for_each_element(box, [&](const std::vector<int64_t>& index, int64_t) {
    const auto* const first = reinterpret_cast<const char*>(array.bytes.data());
    bytes.append(first + flat_index(array.shape, index) * size, size);
  });
  return bytes;
}

// Compares the tensors of a step with the batch of the oracle.
Status expect_batch(const Batch& batch, const input::Element& expected) {
  TESSERA_REQUIRE(batch.tensors.size() == expected.size());
  TESSERA_REQUIRE(batch.size == expected[0].shape[0], batch.size);
  for (size_t k = 0; k < expected.size(); ++k) {
    const DTensor& tensor = batch.tensors[k];
    TESSERA_RETURN_IF_ERROR(tensor.status());
    TESSERA_REQUIRE(tensor.shape() == expected[k].shape, shape_to_string(tensor.shape()));
    TESSERA_REQUIRE(tensor.dtype() == expected[k].dtype);
    for (int shard = 0; shard < tensor.num_local_shards(); ++shard) {
      TESSERA_ASSIGN_OR_RETURN(const auto held, shard_bytes(tensor, shard));
      TESSERA_REQUIRE(held.second == box_bytes(expected[k], held.first), "step ", batch.step,
                      " tensor ", k, " shard ", shard, " ", held.first.to_string());
    }
  }
  return absl::OkStatus();
}

// Compares all steps from `from` on, or `limit` steps, with the oracle. States agree before each
// step.
Status expect_steps(const Client& client, const Dataset& dataset, std::vector<Layout> layouts,
                    const LoadOptions& options = {}, const IteratorState& from = {},
                    int limit = 100) {
  TESSERA_ASSIGN_OR_RETURN(const Loader loader,
                           distribute(client, dataset, std::move(layouts), options));
  TESSERA_ASSIGN_OR_RETURN(Iterator iterator, loader.iterate(from));
  TESSERA_ASSIGN_OR_RETURN(HostIterator oracle, dataset.iterate(from));
  for (int step = 0; step < limit; ++step) {
    const IteratorState before = iterator.state();
    TESSERA_REQUIRE(before == oracle.state(), before.to_string());
    TESSERA_ASSIGN_OR_RETURN(const std::optional<input::Element> expected, oracle.next());
    TESSERA_ASSIGN_OR_RETURN(const std::optional<Batch> batch, iterator.next());
    TESSERA_REQUIRE(batch.has_value() == expected.has_value(), "step ", step);
    if (!batch.has_value()) {
      TESSERA_ASSIGN_OR_RETURN(const std::optional<Batch> again, iterator.next());
      TESSERA_REQUIRE(!again.has_value());
      return absl::OkStatus();
    }
    TESSERA_RETURN_IF_ERROR(expect_batch(*batch, *expected));
  }
  return absl::OkStatus();
}

// Facts about splits and clients.

Status expect_split(const Client& client, const SplitCase& row, bool maps) {
  TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
  Dataset dataset = Dataset::range(row.size);
  // A mapped data set has a round of the clients with each step.
  if (maps) dataset = dataset.map([](input::Element e) -> StatusOr<input::Element> { return e; });
  TESSERA_ASSIGN_OR_RETURN(const Loader loader,
                           distribute(client, dataset.batch(row.batch, row.remainder), {layout}));
  TESSERA_ASSIGN_OR_RETURN(Iterator iterator, loader.iterate());
  int64_t number = 0;
  for (const std::vector<std::string>& step : parse_steps(row.steps)) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<Batch> batch, iterator.next());
    TESSERA_REQUIRE(batch.has_value() && batch->step == number, row.name, " step ", number);
    ++number;
    for (int shard = 0; shard < batch->tensors[0].num_local_shards(); ++shard) {
      TESSERA_ASSIGN_OR_RETURN(const ShardView<int64_t> view,
                               batch->tensors[0].shard<int64_t>(shard));
      const int replica = client.local_devices()[shard].id;
      TESSERA_REQUIRE(text_of(view.data) == step[replica], row.name, " replica ", replica,
                      " holds ", text_of(view.data));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const std::optional<Batch> batch, iterator.next());
  TESSERA_REQUIRE(!batch.has_value(), row.name);
  return absl::OkStatus();
}

// Each row in two jobs: one client with all replicas, and one client per replica; with and without
// rounds.
TEST(InputSplitTest, ByReplica) {
  for (const int num_replicas : {2, 3, 4}) {
    const auto body = [&](Client& client) -> Status {
      for (const SplitCase& row : kSplits) {
        if (row.num_replicas != num_replicas) continue;
        for (const bool maps : {false, true}) {
          TESSERA_RETURN_IF_ERROR(expect_split(client, row, maps));
        }
      }
      return absl::OkStatus();
    };
    EXPECT_THAT(run_clients({.devices_per_client = num_replicas}, body), IsOk());
    EXPECT_THAT(run_clients({.setting = Setting::kProcesses, .num_clients = num_replicas}, body),
                IsOk());
  }
}

TEST(InputSplitTest, Clients2x2Range7) {
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
    TESSERA_ASSIGN_OR_RETURN(const Loader loader,
                             distribute(client, Dataset::range(7).batch(4), {layout}));
    TESSERA_ASSIGN_OR_RETURN(Iterator iterator, loader.iterate());
    for (const std::vector<std::string>& step : parse_steps("0 1 / 2 3; 4 5 / 6")) {
      TESSERA_ASSIGN_OR_RETURN(const std::optional<Batch> batch, iterator.next());
      std::vector<int64_t> held;
      for (int shard = 0; shard < 2; ++shard) {
        TESSERA_ASSIGN_OR_RETURN(const ShardView<int64_t> view,
                                 batch->tensors[0].shard<int64_t>(shard));
        held.insert(held.end(), view.data.begin(), view.data.end());
      }
      TESSERA_REQUIRE(text_of(held) == step[client.client_id()], text_of(held));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients({.num_clients = 2, .devices_per_client = 2}, body), IsOk());
}

// Every element appears once per epoch, for all sizes 0 to 40 in batches of 1 to 9 on 1 to 8
// replicas.
TEST(InputSplitTest, AllSizesBatchesAndReplicas) {
  for (int num_replicas = 1; num_replicas <= 8; ++num_replicas) {
    const auto body = [&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
      for (int64_t size = 0; size <= 40; ++size) {
        for (int64_t batch = 1; batch <= 9; ++batch) {
          TESSERA_RETURN_IF_ERROR(expect_steps(
              client, Dataset::range(size).shuffle(batch).batch(batch), {layout}, {.prefetch = 0}));
        }
      }
      return absl::OkStatus();
    };
    EXPECT_THAT(run_clients({.devices_per_client = num_replicas}, body), IsOk()) << num_replicas;
  }
}
// The same property for every third size, with one client per two replicas, and rounds.
TEST(InputSplitTest, AllSizesAndBatchesOfClients) {
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
    for (int64_t size = 0; size <= 40; size += 3) {
      for (int64_t batch = 1; batch <= 9; ++batch) {
        TESSERA_RETURN_IF_ERROR(expect_steps(
            client, Dataset::range(size).shuffle(batch).map(plus_one).batch(batch), {layout}));
      }
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients({.num_clients = 3, .devices_per_client = 2}, body), IsOk());
}

// Jobs of eight devices.

class InputTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, InputTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, InputTest, ::testing::Values(kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, InputTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

// Data sets of every kind.
std::vector<Dataset> some_datasets() {
  const Dataset range = Dataset::range(21);
  return {
      range.batch(4),
      range.shuffle(3).batch(4, Remainder::kDrop),
      range.shuffle(3).map(plus_one, 2).repeat(2).batch(5),
      range.filter(is_odd).repeat(2).batch(3),
      range.map(plus_one).filter(is_odd).shard(2, 1).batch(2),
      range.shard(2, 1).skip(1).take(8).cache().batch(3),
  };
}

TEST_P(InputTest, ShuffleSplitAndFilterHaveOneOrder) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
                for (const Dataset& dataset : some_datasets()) {
                  for (const int prefetch : {0, 8}) {
                    TESSERA_RETURN_IF_ERROR(
                        expect_steps(client, dataset, {layout}, {.prefetch = prefetch}));
                  }
                }
                return absl::OkStatus();
              }),
              IsOk());
}

// Saves the state after each step, and resumes from each on this number of clients.
TEST_P(InputTest, ResumeEverywhere) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
                for (const Dataset& dataset : some_datasets()) {
                  TESSERA_ASSIGN_OR_RETURN(HostIterator iterator, dataset.iterate());
                  for (bool ended = false; !ended;) {
                    TESSERA_RETURN_IF_ERROR(
                        expect_steps(client, dataset, {layout}, {}, iterator.state(), 2));
                    TESSERA_ASSIGN_OR_RETURN(const auto next, iterator.next());
                    ended = !next.has_value();
                  }
                }
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(InputTest, ResumeWithPrefetch) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
                TESSERA_ASSIGN_OR_RETURN(
                    const Loader loader,
                    distribute(client, Dataset::range(100).batch(4), {layout}, {.prefetch = 8}));
                TESSERA_ASSIGN_OR_RETURN(Iterator iterator, loader.iterate());
                TESSERA_RETURN_IF_ERROR(iterator.next().status());
                TESSERA_RETURN_IF_ERROR(iterator.next().status());
                TESSERA_REQUIRE(iterator.state().step == 2);
                return expect_steps(client, Dataset::range(100).batch(4), {layout}, {},
                                    iterator.state());
              }),
              IsOk());
}

// Any layouts, partial ones too, of tensors of ranks 1 to 3.
TEST_P(InputTest, SeveralTensorsUnderAnyLayouts) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        const auto more = [](input::Element element) -> StatusOr<input::Element> {
          const auto i = static_cast<float>(element[0].view<int64_t>()[0]);
          std::vector<float> matrix, line;
          for (int k = 0; k < 15; ++k) matrix.push_back(100 * i + static_cast<float>(k));
          for (int k = 0; k < 3; ++k) line.push_back(-100 * i - static_cast<float>(k));
          element.push_back(HostArray::of<float>(matrix, {3, 5}));
          element.push_back(HostArray::of<float>(line, {3}));
          return element;
        };
        const Dataset dataset = Dataset::range(11).shuffle(1).map(more).batch(5);
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{a=2, b=4}"));
        const std::vector<std::vector<const char*>> all = {
            {"[a]", "[(a,b), -, -]", "[b, a]"},
            {"[-]", "[-, a, b]", "[-, b]"},
            {"[(b,a)]", "[b, -, a]", "[-, -]"},
            {"[b]", "[-, b, -]", "[a, -]"},
        };
        for (const std::vector<const char*>& texts : all) {
          std::vector<Layout> layouts;
          for (const char* const text : texts) {
            TESSERA_ASSIGN_OR_RETURN(Layout layout, Layout::parse(mesh, text));
            layouts.push_back(std::move(layout));
          }
          TESSERA_RETURN_IF_ERROR(expect_steps(client, dataset, layouts));
        }
        // A partial layout holds the value once: its sum is the batch.
        TESSERA_ASSIGN_OR_RETURN(const Layout partial, Layout::parse(mesh, "[a] sum{b}"));
        TESSERA_ASSIGN_OR_RETURN(const Loader loader,
                                 distribute(client, Dataset::range(11).batch(5), {partial}));
        TESSERA_ASSIGN_OR_RETURN(Iterator iterator, loader.iterate());
        TESSERA_ASSIGN_OR_RETURN(const std::optional<Batch> batch, iterator.next());
        return expect_iota<int64_t>(relayout(batch->tensors[0], Layout::parse(mesh, "[-]")));
      }),
      IsOk());
}

// Counts its reads. One counter in each process.
class CountingSource : public Source {
 public:
  CountingSource(int64_t size, Shape shape) : size_(size), shape_(std::move(shape)) {}
  std::vector<TensorSpec> spec() const override { return {{DType::kInt64, shape_}}; }
  std::optional<int64_t> size() const override { return size_; }
  StatusOr<input::Element> read(int64_t index) const override {
    ++num_read;
    const std::vector<int64_t> values(static_cast<size_t>(num_elements(shape_)), index);
    return input::Element{HostArray::of<int64_t>(values, shape_)};
  }
  mutable std::atomic<int64_t> num_read = 0;

 private:
  const int64_t size_;
  const Shape shape_;
};

TEST_P(InputTest, OnlyOwnExamples) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
                const auto source = std::make_shared<CountingSource>(1000, Shape{});
                TESSERA_ASSIGN_OR_RETURN(const Dataset dataset, Dataset::from_source(source));
                TESSERA_ASSIGN_OR_RETURN(
                    const Loader loader,
                    distribute(client, dataset.shuffle(1).batch(100), {layout}));
                TESSERA_ASSIGN_OR_RETURN(Iterator iterator, loader.iterate());
                for (bool ended = false; !ended;) {
                  TESSERA_ASSIGN_OR_RETURN(const std::optional<Batch> batch, iterator.next());
                  ended = !batch.has_value();
                }
                int64_t own = 0;
                for (const Device& device : client.local_devices()) {
                  own += 10 * layout.box({100}, device.id).sizes[0];
                }
                // Clients with two or more devices have equal parts.
                TESSERA_REQUIRE(own == 1000 / client.num_clients() || client.num_clients() == 8);
                TESSERA_REQUIRE(source->num_read == own, source->num_read.load());
                return absl::OkStatus();
              }),
              IsOk());
}

// Images under `[batch, h, w, -]`: each client reads the 4 images of its boxes.
TEST_P(InputTest, Layouts) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{batch=2, h=2, w=2}"));
                TESSERA_ASSIGN_OR_RETURN(const Layout layout,
                                         Layout::parse(mesh, "[batch, h, w, -]"));
                const auto source = std::make_shared<CountingSource>(8, Shape{32, 32, 3});
                TESSERA_ASSIGN_OR_RETURN(const Dataset dataset, Dataset::from_source(source));
                TESSERA_ASSIGN_OR_RETURN(const Loader loader,
                                         distribute(client, dataset.batch(8), {layout}));
                TESSERA_ASSIGN_OR_RETURN(Iterator iterator, loader.iterate());
                TESSERA_ASSIGN_OR_RETURN(const std::optional<Batch> batch, iterator.next());
                const int64_t own = client.num_clients() == 1 ? 8 : 4;
                TESSERA_REQUIRE(source->num_read == own, source->num_read.load());
                for (int shard = 0; shard < batch->tensors[0].num_local_shards(); ++shard) {
                  TESSERA_ASSIGN_OR_RETURN(const ShardView<int64_t> view,
                                           batch->tensors[0].shard<int64_t>(shard));
                  TESSERA_REQUIRE(view.shape == Shape({4, 16, 16, 3}));
                  TESSERA_REQUIRE(view.data[0] == view.box.offsets[0]);
                }
                return absl::OkStatus();
              }),
              IsOk());
}

// Errors.

// A failure on one client is the same error on all clients. Afterwards the job continues.
Status expect_step_fails(const Client& client, const Dataset& dataset, const Layout& layout,
                         int64_t step, StatusCode code, const std::vector<std::string>& texts) {
  for (const int prefetch : {0, 1, 4}) {
    TESSERA_ASSIGN_OR_RETURN(const Loader loader,
                             distribute(client, dataset, {layout}, {.prefetch = prefetch}));
    TESSERA_ASSIGN_OR_RETURN(Iterator iterator, loader.iterate());
    for (int64_t k = 0; k < step; ++k) {
      TESSERA_ASSIGN_OR_RETURN(const std::optional<Batch> batch, iterator.next());
      TESSERA_REQUIRE(batch.has_value() && batch->step == k);
    }
    const Status status = iterator.next().status();
    TESSERA_RETURN_IF_ERROR(expect_error(status, code, texts));
    TESSERA_REQUIRE(iterator.next().status() == status);
    TESSERA_REQUIRE(iterator.state().step == step);
    TESSERA_RETURN_IF_ERROR(layout.mesh().barrier("after", absl::Seconds(60)));
  }
  return absl::OkStatus();
}

TEST_P(InputTest, MapError) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
                const auto fail = [](input::Element element) -> StatusOr<input::Element> {
                  if (element[0].view<int64_t>()[0] == 5) return absl::AbortedError("boom");
                  return element;
                };
                return expect_step_fails(client, Dataset::range(8).map(fail).batch(2), layout, 2,
                                         StatusCode::kAborted,
                                         {"step 2 on client ", "element 5 of epoch 0: map: boom"});
              }),
              IsOk());
}

TEST_P(InputTest, ReaderFails) {
  EXPECT_THAT(run([](Client& client) -> Status {
                if (client.num_clients() == 1) return absl::OkStatus();
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
                class FailingSource : public CountingSource {
                 public:
                  FailingSource(bool fails) : CountingSource(32, {}), fails_(fails) {}
                  StatusOr<input::Element> read(int64_t index) const override {
                    if (fails_ && index >= 16) return absl::DataLossError("a bad disk");
                    return CountingSource::read(index);
                  }

                 private:
                  const bool fails_;
                };
                TESSERA_ASSIGN_OR_RETURN(
                    const Dataset dataset,
                    Dataset::from_source(std::make_shared<FailingSource>(client.client_id() == 1)));
                return expect_step_fails(client, dataset.batch(8), layout, 2, StatusCode::kDataLoss,
                                         {"step 2 on client 1: element 1", "a bad disk"});
              }),
              IsOk());
}

// The elements 0 to size - 1 as a stream, as vectors of `length` elements.
Dataset stream_of(int64_t size, int64_t length) {
  return *Dataset::generator(
      {{DType::kInt64, {-1}}},
      [size, length](int64_t index) -> StatusOr<std::optional<input::Element>> {
        if (index >= size) return std::nullopt;
        return input::Element{
            HostArray::of<int64_t>(std::vector<int64_t>(length, index), {length})};
      });
}

TEST_P(InputTest, SameEnd) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows_of(client, "{replica=8}", 2));
                for (int64_t size = 0; size < 12; ++size) {
                  for (const int prefetch : {0, 2}) {
                    TESSERA_RETURN_IF_ERROR(expect_steps(client, stream_of(size, 2).batch(5),
                                                         {layout}, {.prefetch = prefetch}));
                  }
                }
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(InputTest, ClientsThatReadDifferentData) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        if (client.num_clients() == 1) return absl::OkStatus();
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows_of(client, "{replica=8}", 2));
        const bool is_other = client.client_id() == 2;
        TESSERA_RETURN_IF_ERROR(
            expect_step_fails(client, stream_of(is_other ? 9 : 10, 2).batch(4), layout, 2,
                              StatusCode::kInvalidArgument,
                              {"clients read different data: client 0 has step 2 with 2 elements, "
                               "client 2 has step 2 "
                               "with 1 elements; give every client the same elements"}));
        TESSERA_RETURN_IF_ERROR(expect_step_fails(client, stream_of(is_other ? 4 : 10, 2).batch(4),
                                                  layout, 1, StatusCode::kInvalidArgument,
                                                  {"client 2 has the end of the data"}));
        return expect_step_fails(
            client, stream_of(10, is_other ? 3 : 2).batch(8), layout, 0,
            StatusCode::kInvalidArgument,
            {"step 0: elements are i64 [2] on client 0, and i64 [3] on client 2; map them"});
      }),
      IsOk());
}

TEST_P(InputTest, ClientsThatIterateOverDifferentThings) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        if (client.num_clients() == 1) return absl::OkStatus();
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
        const bool is_other = client.client_id() == 2;
        const std::string text = "iterate: clients 0 and 2 have different data sets, layouts";
        TESSERA_ASSIGN_OR_RETURN(
            const Loader sizes,
            distribute(client, Dataset::range(is_other ? 0 : 8).batch(2), {layout}));
        TESSERA_RETURN_IF_ERROR(
            expect_error(sizes.iterate().status(), StatusCode::kInvalidArgument, {text}));
        TESSERA_ASSIGN_OR_RETURN(const Loader loader,
                                 distribute(client, Dataset::range(8).batch(2), {layout}));
        TESSERA_RETURN_IF_ERROR(expect_error(loader.iterate({.step = is_other}).status(),
                                             StatusCode::kInvalidArgument, {text}));
        // A state that one client cannot use is an error on all clients.
        TESSERA_RETURN_IF_ERROR(expect_error(
            loader.iterate({.step = is_other ? 9 : 0}).status(), StatusCode::kInvalidArgument,
            {"iterate on client 2: the iterator state ", "is beyond the end of the data set"}));
        return loader.iterate().status();
      }),
      IsOk());
}

TEST_P(InputTest, Refusals) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout rows, replicas_of(client));
        TESSERA_ASSIGN_OR_RETURN(const Layout other, rows_of(client, "{other=8}"));
        TESSERA_ASSIGN_OR_RETURN(const Layout matrix, rows_of(client, "{replica=8}", 2));
        TESSERA_ASSIGN_OR_RETURN(const Layout scalar, Layout::replicated(rows.mesh(), 0));
        TESSERA_ASSIGN_OR_RETURN(const Mesh abstract, Mesh::create({{"replica", 8}}));
        TESSERA_ASSIGN_OR_RETURN(const Layout dead, Layout::parse(abstract, "[replica]"));
        const Dataset range = Dataset::range(8);
        const Dataset batches = range.batch(2);
        struct Case {
          const char* name;
          StatusOr<Loader> loader;
          StatusCode code;
          std::string text;
        };
        const Case cases[] = {
            {"unbatched", distribute(client, range, {rows}), StatusCode::kInvalidArgument,
             "distribute: the data set has no batches; call batch(size) last"},
            {"carried_error", distribute(client, range.take(-1).batch(2), {rows}),
             StatusCode::kInvalidArgument, "take: n is -1"},
            {"no_layouts", distribute(client, batches, {}), StatusCode::kInvalidArgument,
             "distribute: no layouts are given"},
            {"two_layouts", distribute(client, batches, {rows, rows}), StatusCode::kInvalidArgument,
             "distribute: 2 layouts are given, and an element has 1 tensors"},
            {"two_meshes", distribute(client, batches, {rows, other}), StatusCode::kInvalidArgument,
             "distribute: layouts are on {replica=8} and on {other=8}; give layouts on one mesh"},
            {"rank", distribute(client, batches, {matrix}), StatusCode::kInvalidArgument,
             "layout [replica, -] has 2 dims; tensor 0 is i64 [], in batches it has one dim more"},
            {"rank_0", distribute(client, batches, {scalar}), StatusCode::kInvalidArgument,
             "distribute: layout [] has no dims"},
            {"abstract", distribute(client, batches, {dead}), StatusCode::kFailedPrecondition,
             "distribute: mesh {replica=8} is abstract"},
            {"prefetch", distribute(client, batches, {rows}, {.prefetch = -1}),
             StatusCode::kInvalidArgument, "distribute: prefetch is -1; give 0 to 1024"},
            {"transfer",
             distribute(client, batches, {rows}, {.transfer = static_cast<input::Transfer>(7)}),
             StatusCode::kInvalidArgument,
             "distribute: Transfer(7) is not an enumerator; use kToDevice or kOnHost"},
        };
        for (const Case& row : cases) {
          TESSERA_RETURN_IF_ERROR(
              with_context(expect_error(row.loader.status(), row.code, {row.text}), row.name));
        }
        // Errors that are found only in elements.
        return expect_step_fails(client, range.map(plus_one).batch(8), matrix, 0,
                                 StatusCode::kInvalidArgument,
                                 {"step 0 on client ", "layout [replica, -] has 2 dims"});
      }),
      IsOk());
}

TEST_P(InputTest, Devices) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
                const Dataset dataset = Dataset::range(20).batch(8);
                TESSERA_RETURN_IF_ERROR(
                    expect_steps(client, dataset, {layout}, {.transfer = Transfer::kToDevice}));
                const LoadOptions on_host = {.transfer = Transfer::kOnHost};
                if (client.local_devices()[0].type == DeviceType::kCpu) {
                  return expect_steps(client, dataset, {layout}, on_host);
                }
                return expect_error(distribute(client, dataset, {layout}, on_host).status(),
                                    StatusCode::kUnimplemented,
                                    {"kOnHost is not implemented for GPUs"});
              }),
              IsOk());
}

TEST_P(InputTest, AMeshOfSomeClients) {
  EXPECT_THAT(run([](Client& client) -> Status {
                if (client.num_clients() == 1) return absl::OkStatus();
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows_of(client, "{x=3} on 5,2,4"));
                const Dataset dataset = Dataset::range(10).map(plus_one).batch(4);
                for (const Device& device : client.local_devices()) {
                  if (layout.mesh().position_of_device(device.id).has_value()) {
                    return expect_steps(client, dataset, {layout});
                  }
                }
                return expect_error(distribute(client, dataset, {layout}).status(),
                                    StatusCode::kFailedPrecondition, {"has no device of {x=3}"});
              }),
              IsOk());
}

// Saves the state after 1 step on 4 replicas in 1 client, and reads the rest on 3 replicas in 3
// clients.
TEST(InputJobsTest, ResumeElsewhere) {
  const Dataset dataset = Dataset::range(30).shuffle(9).map(plus_one).batch(4);
  TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator oracle, dataset.iterate());
  ASSERT_THAT(oracle.next(), IsOk());
  const std::string text = oracle.state().to_string();
  EXPECT_THAT(run_clients({.devices_per_client = 4},
                          [&](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
                            TESSERA_ASSIGN_OR_RETURN(const Loader loader,
                                                     distribute(client, dataset, {layout}));
                            TESSERA_ASSIGN_OR_RETURN(Iterator iterator, loader.iterate());
                            TESSERA_RETURN_IF_ERROR(iterator.next().status());
                            TESSERA_REQUIRE(iterator.state().to_string() == text);
                            return absl::OkStatus();
                          }),
              IsOk());
  EXPECT_THAT(run_clients({.setting = Setting::kProcesses, .num_clients = 3},
                          [&](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
                            TESSERA_ASSIGN_OR_RETURN(const IteratorState state,
                                                     IteratorState::parse(text));
                            return expect_steps(client, dataset, {layout}, {}, state);
                          }),
              IsOk());
}

TEST(InputJobsTest, PrefetchStops) {
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
    const Dataset dataset = Dataset::range(1000).map(plus_one, 3).batch(4);
    const auto half_way = [&]() -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Loader loader,
                               distribute(client, dataset, {layout}, {.prefetch = 4}));
      TESSERA_ASSIGN_OR_RETURN(Iterator iterator, loader.iterate());
      for (int i = 0; i < 10; ++i) TESSERA_RETURN_IF_ERROR(iterator.next().status());
      return absl::OkStatus();
    };
    TESSERA_RETURN_IF_ERROR(half_way());  // allocates everything that the client keeps
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
    // 20 iterators of 4 batches would hold more.
    TESSERA_REQUIRE(after.heap_bytes - before.heap_bytes < 10000, before.heap_bytes, " ",
                    after.heap_bytes);
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients({.devices_per_client = 2}, body), IsOk());
}

// On client 1 a function does not return until client 0 has reached its deadline.
TEST(InputJobsTest, AReaderThatDoesNotReturnIsADeadlineOfTheOthers) {
  std::atomic<bool> given_up = false;
  const auto body = [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
    const int client_id = client.client_id();
    const auto hang = [&, client_id](input::Element element) -> StatusOr<input::Element> {
      if (client_id == 1 && element[0].view<int64_t>()[0] >= 4) given_up.wait(false);
      return element;
    };
    TESSERA_ASSIGN_OR_RETURN(const Loader loader,
                             distribute(client, Dataset::range(8).map(hang).batch(4), {layout}));
    TESSERA_ASSIGN_OR_RETURN(Iterator iterator, loader.iterate());
    TESSERA_RETURN_IF_ERROR(iterator.next().status());
    const Status status = iterator.next().status();
    given_up = true;
    given_up.notify_all();
    return expect_error(status, StatusCode::kDeadlineExceeded, {"missing client 1"});
  };
  JobSpec spec = {.num_clients = 2};
  spec.options.collective_timeout = absl::Seconds(3);
  EXPECT_THAT(run_clients(spec, body), IsOk());
}

TEST(InputJobsTest, ALoaderThatWasMovedFromSaysSo) {
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
    TESSERA_ASSIGN_OR_RETURN(Loader loader,
                             distribute(client, Dataset::range(3).batch(2), {layout}));
    const Loader other = std::move(loader);
    TESSERA_REQUIRE(!loader.cardinality().has_value() && loader.element_spec().empty());
    return expect_error(loader.iterate().status(), StatusCode::kFailedPrecondition,
                        {"the loader was moved from"});
  };
  EXPECT_THAT(run_clients({}, body), IsOk());
}

TEST(InputJobsTest, AnIteratorThatWasMovedFromSaysSo) {
  EXPECT_THAT(run_clients({},
                          [](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
                            TESSERA_ASSIGN_OR_RETURN(
                                const Loader loader,
                                distribute(client, Dataset::range(3).batch(2), {layout}));
                            TESSERA_REQUIRE(loader.cardinality() == 2);
                            TESSERA_REQUIRE(loader.element_spec().size() == 1);
                            TESSERA_ASSIGN_OR_RETURN(Iterator iterator, loader.iterate());
                            const Iterator other = std::move(iterator);
                            TESSERA_REQUIRE(iterator.state() == IteratorState());
                            return expect_error(iterator.next().status(),
                                                StatusCode::kFailedPrecondition,
                                                {"the iterator was moved from"});
                          }),
              IsOk());
}

// A client is killed while it reads. The other client gets an error and does not wait.
TEST(InputJobsTest, AClientIsKilledInNext) {
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Layout layout, replicas_of(client));
    const int client_id = client.client_id();
    const auto die = [client_id](input::Element element) -> StatusOr<input::Element> {
      if (client_id == 1 && element[0].view<int64_t>()[0] >= 8) kill(getpid(), SIGKILL);
      return element;
    };
    TESSERA_ASSIGN_OR_RETURN(const Loader loader,
                             distribute(client, Dataset::range(16).map(die).batch(4), {layout}));
    TESSERA_ASSIGN_OR_RETURN(Iterator iterator, loader.iterate());
    Status status;
    for (int step = 0; status.ok() && step < 4; ++step) status = iterator.next().status();
    return expect_error(status, StatusCode::kUnavailable, {"client 1"});
  };
  const std::vector<Status> statuses =
      run_processes({.setting = Setting::kProcesses, .num_clients = 2}, body);
  EXPECT_THAT(statuses[0], IsOk());
}

}  // namespace
}  // namespace tessera::testing
