// SPDX-License-Identifier: Apache-2.0
//
// One program under every strategy: two layers that read digits, written for a replica. Loss and
// accuracy are the same under each strategy and for any number of replicas.
//
//   bazel build //job:tessera_run //examples:11_strategies
//   bazel-bin/job/tessera_run --devices-per-client 4
//       bazel-bin/examples/11_strategies --strategy=mirrored
//   bazel-bin/job/tessera_run --clients 2 --devices-per-client 2
//       bazel-bin/examples/11_strategies --strategy=multi_worker
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "examples/data_file.h"
#include "tessera/tessera.h"

ABSL_FLAG(std::string, strategy, "mirrored", "one_device, mirrored, multi_worker or central");
ABSL_FLAG(std::string, restore, "", "a checkpoint to begin with");
ABSL_FLAG(std::string, save, "", "a checkpoint to write at the end");

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
constexpr int64_t kNumHidden = 32;
constexpr int64_t kNumDigits = 10;

// 1. The strategies differ in the devices of their replicas, and in the places of variables.
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

// 3. Weights are the same on all replicas. Each replica has a part of `right`, the number of digits
//    read right; reading it adds up the parts.
struct Model {
  DistributedVariable hidden, output, right;

  std::vector<DistributedVariable> variables() const { return {hidden, output, right}; }
};
StatusOr<Model> make_model(const Strategy& strategy) {
  const StatusOr<Layout> mirrored = Layout::replicated(strategy.mesh(), 2);
  const random::Key key = random::Key::from_seed(1);
  const auto weights = [&](uint64_t number, const char* name, int64_t inputs, int64_t outputs) {
    return strategy.variable(
        name, random::normal<float>(key.fold_in(number), {inputs, outputs}, mirrored) * 0.2);
  };
  TESSERA_ASSIGN_OR_RETURN(DistributedVariable hidden,
                           weights(0, "hidden", kNumPixels, kNumHidden));
  TESSERA_ASSIGN_OR_RETURN(DistributedVariable output,
                           weights(1, "output", kNumHidden, kNumDigits));
  TESSERA_ASSIGN_OR_RETURN(
      DistributedVariable right,
      strategy.variable("right", zeros<float>({}, Layout::replicated(strategy.mesh(), 0)),
                        {.synchronization = distribute::VariableSynchronization::kOnRead,
                         .aggregation = distribute::VariableAggregation::kSum}));
  return Model{hidden, output, right};
}

// 4. Each replica computes the loss and the gradients of its examples, as parts of a mean over the
//    whole batch.
std::vector<PerReplica> loss_and_gradients(const Strategy& strategy, Model& model,
                                           const DistributedBatch& batch) {
  return strategy.run(
      [&](ReplicaContext& replica, const DTensor& images,
          const DTensor& digits) -> StatusOr<std::vector<DTensor>> {
        Tape tape;
        const DTensor hidden = tape.watch(model.hidden.value(replica));
        const DTensor output = tape.watch(model.output.value(replica));
        const DTensor scores = ops::matmul(ops::relu(ops::matmul(images, hidden)), output);
        const DTensor loss = ops::sum(ops::softmax_cross_entropy(scores, digits)) / batch.size;
        const DTensor is_right = ops::equal(ops::argmax(scores, 1), ops::cast<int64_t>(digits));
        TESSERA_RETURN_IF_ERROR(
            model.right.assign_add(replica, ops::sum(ops::cast<float>(is_right))));
        const std::vector<DTensor> gradients = tape.gradient(loss, {hidden, output});
        return std::vector<DTensor>{loss, gradients[0], gradients[1]};
      },
      batch.values[0], batch.values[1]);
}

// 5. The sums of the parts are the loss and the gradients of the batch.
Status update(const Strategy& strategy, Sgd& optimizer, Model& model,
              const std::vector<PerReplica>& results) {
  TESSERA_RETURN_IF_ERROR(results[0].status());  // if all replicas failed, it is the only result
  Variable weights[] = {model.hidden.variable(), model.output.variable()};
  const std::vector<DTensor> gradients = strategy.batch_reduce_to(
      ReduceOp::kSum, {results[1], results[2]}, {weights[0].layout(), weights[1].layout()});
  return optimizer.apply(weights, gradients);
}

// 6. A variable is saved as its value, and any strategy restores it.
Status save(const Client& client, const std::string& path, const Model& model) {
  std::vector<NamedTensor> values;
  for (const DistributedVariable& v : model.variables()) values.push_back({v.name(), v.value()});
  return checkpoint::save(client, path, values, {.overwrite = true});
}

Status restore(const Client& client, const std::string& path, const Model& model) {
  std::vector<DistributedVariable> variables = model.variables();
  std::vector<checkpoint::Target> targets;
  for (const DistributedVariable& v : variables) targets.push_back({v.name(), v.value().layout()});
  TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> values,
                           checkpoint::restore(client, path, targets));
  for (size_t i = 0; i < values.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(variables[i].assign(values[i]));
  }
  return absl::OkStatus();
}

Status train(const std::string& file) {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect());
  TESSERA_ASSIGN_OR_RETURN(const Strategy strategy,
                           make_strategy(client, absl::GetFlag(FLAGS_strategy)));
  TESSERA_ASSIGN_OR_RETURN(const input::Dataset examples, read_examples(file));
  // 7. Batches, split among the replicas: each has some of the examples.
  TESSERA_ASSIGN_OR_RETURN(const DistributedDataset batches,
                           strategy.distribute_dataset(examples.batch(128), {}));
  TESSERA_ASSIGN_OR_RETURN(DistributedIterator iterator, batches.iterate());
  TESSERA_ASSIGN_OR_RETURN(Model model, make_model(strategy));
  if (const std::string path = absl::GetFlag(FLAGS_restore); !path.empty()) {
    TESSERA_RETURN_IF_ERROR(restore(client, path, model));
  }
  Sgd optimizer{.learning_rate = 0.5};
  input::Progress progress({.steps = batches.cardinality(), .examples = examples.cardinality()});
  float seen = 0;
  for (;;) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<DistributedBatch> batch, iterator.next());
    if (!batch.has_value()) break;
    progress.add(batch->size);
    seen += static_cast<float>(batch->size);

    const std::vector<PerReplica> results = loss_and_gradients(strategy, model, *batch);
    TESSERA_RETURN_IF_ERROR(update(strategy, optimizer, model, results));
    const bool is_last = progress.steps() == batches.cardinality();
    if (progress.steps() % 15 != 0 && !is_last) continue;
    TESSERA_ASSIGN_OR_RETURN(const float loss,
                             strategy.reduce(ReduceOp::kSum, results[0]).item<float>());
    TESSERA_ASSIGN_OR_RETURN(const float right, model.right.value().item<float>());
    if (client.client_id() == 0) {
      std::printf("%d replicas  loss %.4f  accuracy %.1f %%  %s\n", strategy.num_replicas_in_sync(),
                  loss, 100 * right / seen, progress.to_string().c_str());
    }
    seen = 0;
    TESSERA_RETURN_IF_ERROR(
        model.right.assign(zeros<float>({}, Layout::replicated(strategy.mesh(), 0))));
  }
  if (const std::string path = absl::GetFlag(FLAGS_save); !path.empty()) {
    TESSERA_RETURN_IF_ERROR(save(client, path, model));
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
