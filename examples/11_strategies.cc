// SPDX-License-Identifier: Apache-2.0
//
// One program under every strategy: the model of 09_input, written for a replica. The loss is the
// same under each, whatever the number of replicas.
//
//   bazel build //job:tessera_run //examples:11_strategies
//   bazel-bin/job/tessera_run --devices-per-client 4
//       bazel-bin/examples/11_strategies --strategy=mirrored
//   bazel-bin/job/tessera_run --clients 2 --devices-per-client 2
//       bazel-bin/examples/11_strategies --strategy=multi_worker
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "examples/data_file.h"
#include "tessera.h"

ABSL_FLAG(std::string, strategy, "mirrored", "one_device, mirrored, multi_worker or central");

namespace {

using namespace tessera;
using distribute::DistributedBatch;
using distribute::DistributedDataset;
using distribute::DistributedIterator;
using distribute::DistributedVariable;
using distribute::PerReplica;
using distribute::ReplicaContext;
using distribute::Strategy;

constexpr int64_t kNumPixels = 64;
constexpr int64_t kNumDigits = 10;

// 1. The strategies differ in the devices of their replicas, and in where variables are.
StatusOr<Strategy> make_strategy(const Client& client, const std::string& name) {
  if (name == "one_device") return distribute::one_device_strategy(client);
  if (name == "mirrored") return distribute::mirrored_strategy(client);
  if (name == "multi_worker") return distribute::multi_worker_mirrored_strategy(client);
  if (name == "central") return distribute::central_storage_strategy(client);
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no strategy ", name, "; use one_device, mirrored, multi_worker or central"));
}

StatusOr<input::Element> image_and_digit(input::Element columns) {
  std::vector<float> pixels;
  for (int64_t i = 0; i < kNumPixels; ++i) {
    pixels.push_back(static_cast<float>(columns[i].view<int32_t>()[0]) / 16);
  }
  return input::Element{HostArray::of<float>(pixels, {kNumPixels}), columns[kNumPixels]};
}

// 2. The examples of five epochs, as in 09_input.
StatusOr<input::Dataset> read_examples(const std::string& file) {
  const std::vector<DType> columns(kNumPixels + 1, DType::kInt32);
  TESSERA_ASSIGN_OR_RETURN(const input::Dataset lines, input::Dataset::csv({file}, columns));
  return lines.map(image_and_digit).cache().shuffle(/*seed=*/1).repeat(5);
}

// 3. Each replica computes the loss and the gradient of its examples, as parts of a mean over the
//    whole batch.
std::vector<PerReplica> loss_and_gradient(const Strategy& strategy, DistributedVariable& weights,
                                          const DistributedBatch& batch) {
  return strategy.run(
      [&](ReplicaContext& replica, const DTensor& images, const DTensor& digits) {
        Tape tape;
        const DTensor w = tape.watch(weights.value(replica));
        const DTensor losses = ops::softmax_cross_entropy(ops::matmul(images, w), digits);
        const DTensor loss = ops::sum(losses) / batch.size;
        return std::vector<DTensor>{loss, tape.gradient(loss, {w})[0]};
      },
      batch.values[0], batch.values[1]);
}

Status train(const std::string& file) {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect());
  TESSERA_ASSIGN_OR_RETURN(const Strategy strategy,
                           make_strategy(client, absl::GetFlag(FLAGS_strategy)));
  TESSERA_ASSIGN_OR_RETURN(const input::Dataset examples, read_examples(file));
  // 4. Batches, cut for the replicas: each has some of the examples.
  TESSERA_ASSIGN_OR_RETURN(const DistributedDataset batches,
                           strategy.distribute_dataset(examples.batch(128), {}));
  TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, batches.iterate());
  TESSERA_ASSIGN_OR_RETURN(
      DistributedVariable weights,
      strategy.variable("weights", zeros<float>({kNumPixels, kNumDigits},
                                                Layout::replicated(strategy.mesh(), 2))));
  Sgd optimizer{.learning_rate = 0.5};
  input::Progress progress({.steps = batches.cardinality(), .examples = examples.cardinality()});
  for (;;) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<DistributedBatch> batch, iterator.next());
    if (!batch.has_value()) break;
    progress.add(batch->size);

    const std::vector<PerReplica> results = loss_and_gradient(strategy, weights, *batch);
    // 5. Their sums are those of the batch.
    const DTensor loss = strategy.reduce(ReduceOp::kSum, results[0]);
    const DTensor gradient = strategy.reduce(ReduceOp::kSum, results[1]);
    TESSERA_RETURN_IF_ERROR(
        optimizer.apply(absl::MakeSpan(&weights.variable(), 1), absl::MakeSpan(&gradient, 1)));
    if (progress.steps() % 15 != 1) continue;
    TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> value, loss.to_host<float>());
    if (client.client_id() == 0) {
      std::printf("%d replicas  loss %.4f  %s\n", strategy.num_replicas_in_sync(), value.data[0],
                  progress.to_string().c_str());
    }
  }
  return client.shutdown();
}

}  // namespace

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const StatusOr<std::string> file = examples::find_data(argv[0], "digits.csv");
  const Status status = file.ok() ? train(*file) : file.status();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
