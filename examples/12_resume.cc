// SPDX-License-Identifier: Apache-2.0
//
// A run that can be killed at any time. It saves all that it holds every few steps, and continues
// from the newest complete checkpoint, on any number of clients and devices.
//
//   bazel build //job:tessera_run //examples:12_resume
//   RUN="bazel-bin/job/tessera_run --devices-per-client 2 --clients"
//   $RUN 4 bazel-bin/examples/12_resume --root=/tmp/run --stop_at=50    killed after step 50
//   $RUN 2 bazel-bin/examples/12_resume --root=/tmp/run                 continues, on another mesh
//
// The losses are those of a run without interruption, up to rounding: a sum over more devices has
// another order. With --exact every sum is exact, and the losses are equal bit by bit.
//
// After SIGTERM the clients save, and leave with the exit code 42. `tessera_run --max-restarts 9`
// then starts them again.
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "examples/data_file.h"
#include "examples/flag_limits.h"
#include "tessera/tessera.h"

ABSL_FLAG(std::string, root, "", "the folder of the checkpoints");
ABSL_FLAG(int, steps, 100, "steps of the whole run");
ABSL_FLAG(int, save_every, 5, "steps from one checkpoint to the next");
ABSL_FLAG(uint64_t, seed, 1, "of the first weights and of the noise, where the run begins");
ABSL_FLAG(int, model, 0,
          "size of the mesh axis that splits the network; 0: 2 if there are 4, 6, 8, ... devices, "
          "else 1");
ABSL_FLAG(bool, exact, false, "compute so that no sum is rounded");
ABSL_FLAG(int, stop_at, 0, "for tests: every client is killed after this step; 0: none is");

namespace {

using namespace tessera;

constexpr int64_t kNumPixels = 64;
constexpr int64_t kHidden = 32;
constexpr int64_t kNumDigits = 10;
constexpr int kPreempted = 42;  // exit code

// 1. The data: digits in another order in each epoch.
StatusOr<input::Element> image_and_digit(input::Element columns) {
  std::vector<float> pixels;
  for (int64_t i = 0; i < kNumPixels; ++i) {
    pixels.push_back(static_cast<float>(columns[i].view<int32_t>()[0]) / 16);
  }
  return input::Element{HostArray::of<float>(pixels, {kNumPixels}), columns[kNumPixels]};
}

StatusOr<input::Loader> load(const Client& client, const Mesh& mesh, const std::string& file) {
  const std::vector<DType> columns(kNumPixels + 1, DType::kInt32);
  TESSERA_ASSIGN_OR_RETURN(const input::Dataset lines, input::Dataset::csv({file}, columns));
  const input::Dataset batches =
      lines.map(image_and_digit).cache().shuffle(/*seed=*/1).repeat().batch(64);
  TESSERA_ASSIGN_OR_RETURN(const Layout images, Layout::batch_sharded(mesh, "batch", 2));
  TESSERA_ASSIGN_OR_RETURN(const Layout digits, Layout::batch_sharded(mesh, "batch", 1));
  return input::distribute(client, batches, {images, digits});
}

// 2. The network: two matrices. The noise of dropout depends on the key of the step and on global
//    indices, so it is the same on every mesh.
nn::Parameters make_weights(const Mesh& mesh, random::Key key) {
  const auto uniform = [&](uint64_t index, const Shape& shape, const char* layout) {
    return random::uniform<float>(key.fold_in(index), shape, Layout::parse(mesh, layout), -0.5,
                                  0.5);
  };
  nn::Parameters weights;
  weights.add("w1", uniform(0, {kNumPixels, kHidden}, "[-, model]"));
  weights.add("w2", uniform(1, {kHidden, kNumDigits}, "[model, -]"));
  return weights;
}

// With --exact the network uses its weights rounded to eighths, and a loss that is a sum of linear
// functions. Then products and sums, also those of the gradients, are multiples of a power of two,
// and fit their dtype.
DTensor used(const Variable& weight) {
  if (!absl::GetFlag(FLAGS_exact)) return weight.value();
  return ops::round(weight.value() * 8) / 8;
}

// The sum of the losses of some images.
DTensor loss_of(const std::vector<DTensor>& w, const DTensor& images, const DTensor& digits,
                random::Key key) {
  const DTensor hidden = ops::relu(ops::matmul(images, w[0]));
  const DTensor kept =
      ops::cast<float>(random::bernoulli(key, hidden.shape(), hidden.layout())) * 2;
  const DTensor logits = ops::matmul(hidden * kept, w[1], images.layout());
  if (!absl::GetFlag(FLAGS_exact)) return ops::sum(ops::softmax_cross_entropy(logits, digits));
  const DTensor signs = ops::one_hot(digits, kNumDigits) * 2 - 1;
  return ops::sum(ops::relu(1 - signs * logits));
}

// 3. What the run holds in tensors, under names: "w1", "w2", "w1/first_moment", ...
std::vector<Variable> variables_of(const nn::Parameters& weights, AdamW& optimizer) {
  std::vector<Variable> variables;
  absl::c_copy(weights.variables(), std::back_inserter(variables));
  absl::c_copy(optimizer.state().variables(), std::back_inserter(variables));
  return variables;
}

std::vector<NamedTensor> values_of(const std::vector<Variable>& variables) {
  std::vector<NamedTensor> values;
  for (const Variable& variable : variables) values.push_back({variable.name(), variable.value()});
  return values;
}

// 4. The rest of what it holds. The metadata of a checkpoint has it as texts.
struct Place {
  int64_t step = 0;
  input::IteratorState in_data = {};
  random::Key key = random::Key::from_seed(absl::GetFlag(FLAGS_seed));
};

std::map<std::string, std::string> metadata_of(const Place& place) {
  return {{"in_data", place.in_data.to_string()}, {"key", place.key.to_string()}};
}

StatusOr<Place> place_of(checkpoint::Info checkpoint) {
  Place place = {.step = checkpoint.step};
  TESSERA_ASSIGN_OR_RETURN(place.in_data,
                           input::IteratorState::parse(checkpoint.metadata["in_data"]));
  TESSERA_ASSIGN_OR_RETURN(place.key, random::Key::parse(checkpoint.metadata["key"]));
  return place;
}

// Returns the exit code.
StatusOr<int> train(const std::string& file) {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect());
  const auto num_devices = static_cast<int64_t>(client.devices().size());
  int64_t model = absl::GetFlag(FLAGS_model);
  if (model < 1) model = num_devices >= 4 && num_devices % 2 == 0 ? 2 : 1;
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh,
                           create_mesh(client, {{"batch", num_devices / model}, {"model", model}}));
  TESSERA_ASSIGN_OR_RETURN(const input::Loader loader, load(client, mesh, file));

  // 5. The checkpoints of the run. Where there is none, the run begins.
  TESSERA_ASSIGN_OR_RETURN(
      checkpoint::Checkpointer run,
      checkpoint::Checkpointer::open(client, absl::GetFlag(FLAGS_root), {.keep_last = 3}));
  TESSERA_ASSIGN_OR_RETURN(const std::optional<checkpoint::Info> last, run.latest());
  Place place;
  if (last.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(place, place_of(*last));
  }

  // 6. Weights and the state of the optimizer, which get the saved values in their own layouts.
  nn::Parameters weights = make_weights(mesh, place.key.fold_in(0));
  AdamW optimizer{.learning_rate = 0.01, .shard_state = true};
  TESSERA_RETURN_IF_ERROR(optimizer.prepare(weights.variables()));
  std::vector<Variable> variables = variables_of(weights, optimizer);
  if (last.has_value()) {
    TESSERA_RETURN_IF_ERROR(
        checkpoint::restore_into(client, last->path, absl::MakeSpan(variables)));
  }
  if (client.client_id() == 0) {
    absl::PrintF("clients %d, mesh %s, begins after step %d\n", client.num_clients(),
                 mesh.to_string(), place.step);
  }

  TESSERA_ASSIGN_OR_RETURN(input::Iterator iterator, loader.iterate(place.in_data));
  while (place.step < absl::GetFlag(FLAGS_steps)) {
    ++place.step;
    TESSERA_ASSIGN_OR_RETURN(const std::optional<input::Batch> batch, iterator.next());
    Tape tape;
    std::vector<DTensor> w;
    for (const Variable& weight : weights.variables()) w.push_back(tape.watch(used(weight)));
    const DTensor loss =
        loss_of(w, batch->tensors[0], batch->tensors[1], place.key.fold_in(1).fold_in(place.step));
    TESSERA_RETURN_IF_ERROR(optimizer.apply(weights.variables(), tape.gradient(loss, w)));
    TESSERA_ASSIGN_OR_RETURN(const float value, loss.item<float>());
    if (client.client_id() == 0) {
      absl::PrintF("step %4d  loss %.9g\n", place.step, value / batch->size);
      std::fflush(stdout);
    }

    // 7. The save goes on in the background: it holds these values, and the next steps make others.
    const bool leaves = run.preempted(place.step);
    if (leaves || place.step % absl::GetFlag(FLAGS_save_every) == 0) {
      place.in_data = iterator.state();
      TESSERA_ASSIGN_OR_RETURN(const checkpoint::Pending pending,
                               run.save(place.step, values_of(variables), metadata_of(place)));
      if (leaves) {
        TESSERA_RETURN_IF_ERROR(pending.await());
        break;
      }
    }
    if (place.step == absl::GetFlag(FLAGS_stop_at)) std::raise(SIGKILL);
  }
  // shutdown() waits for the saves, and has the error of one that failed.
  TESSERA_RETURN_IF_ERROR(client.shutdown());
  return place.step < absl::GetFlag(FLAGS_steps) ? kPreempted : 0;
}

StatusOr<int> run(const char* program) {
  TESSERA_RETURN_IF_ERROR(
      examples::check_at_least(1, "save_every", absl::GetFlag(FLAGS_save_every)));
  if (absl::GetFlag(FLAGS_root).empty()) {
    return absl::InvalidArgumentError("--root is empty; give a folder for the checkpoints");
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string file, examples::find_data(program, "digits.csv"));
  return train(file);
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("trains a network, and continues where an earlier run ended");
  absl::ParseCommandLine(argc, argv);
  const StatusOr<int> exit_code = run(argv[0]);
  if (!exit_code.ok()) std::fprintf(stderr, "%s\n", exit_code.status().ToString().c_str());
  return exit_code.ok() ? *exit_code : 1;
}
