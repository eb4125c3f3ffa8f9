// SPDX-License-Identifier: Apache-2.0
//
// Training from a file. Each client reads its own part of each batch of a data set. The program
// prints positions in the data set, from which another run can continue. The model is one matrix:
// softmax regression.
//
//   bazel build //job:tessera_run //examples:09_input
//   bazel-bin/job/tessera_run --clients 4 --devices-per-client 2 bazel-bin/examples/09_input
//   ... 09_input --from='{dataset=h..., epoch=2, step=1, pipelines=[]}'
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "examples/data_file.h"
#include "tessera/tessera.h"

ABSL_FLAG(std::string, from, "", "the position in the data to begin at, as a run prints it");

namespace {

using namespace tessera;

constexpr int64_t kNumPixels = 64;
constexpr int64_t kNumDigits = 10;

// 1. Makes an element from a line of the file, which has 65 columns: the pixels from 0 to 1, and
//    the digit.
StatusOr<input::Element> image_and_digit(input::Element columns) {
  std::vector<float> pixels;
  for (int64_t i = 0; i < kNumPixels; ++i) {
    pixels.push_back(static_cast<float>(columns[i].view<int32_t>()[0]) / 16);
  }
  return input::Element{HostArray::of<float>(pixels, {kNumPixels}), columns[kNumPixels]};
}

Status train(const std::string& file) {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect());
  const auto num_devices = static_cast<int64_t>(client.devices().size());
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"batch", num_devices}}));

  // 2. The examples and their order, which are the same on every mesh.
  const std::vector<DType> columns(kNumPixels + 1, DType::kInt32);
  TESSERA_ASSIGN_OR_RETURN(const input::Dataset lines, input::Dataset::csv({file}, columns));
  const input::Dataset batches =
      lines.map(image_and_digit).cache().shuffle(/*seed=*/1).repeat(5).batch(128);

  // 3. A batch is split along its examples.
  TESSERA_ASSIGN_OR_RETURN(const Layout images, Layout::batch_sharded(mesh, "batch", 2));
  TESSERA_ASSIGN_OR_RETURN(const Layout digits, Layout::batch_sharded(mesh, "batch", 1));
  TESSERA_ASSIGN_OR_RETURN(const input::Loader loader,
                           input::distribute(client, batches, {images, digits}));

  // 4. Starts at the beginning, or at the position of another run.
  input::IteratorState from;
  if (const std::string text = absl::GetFlag(FLAGS_from); !text.empty()) {
    TESSERA_ASSIGN_OR_RETURN(from, input::IteratorState::parse(text));
  }
  TESSERA_ASSIGN_OR_RETURN(input::Iterator iterator, loader.iterate(from));

  std::vector<Variable> weights = {
      Variable("weights", zeros<float>({kNumPixels, kNumDigits}, Layout::replicated(mesh, 2)))};
  Sgd optimizer{.learning_rate = 0.5};
  for (int64_t number = 0;; ++number) {
    // 5. The next batch, as tensors; nothing at the end.
    TESSERA_ASSIGN_OR_RETURN(const std::optional<input::Batch> batch, iterator.next());
    if (!batch.has_value()) break;
    const DTensor& x = batch->tensors[0];
    const DTensor& labels = batch->tensors[1];
    Tape tape;
    const DTensor w = tape.watch(weights[0].value());
    const DTensor loss = ops::mean(ops::softmax_cross_entropy(ops::matmul(x, w), labels));
    const std::vector<DTensor> gradients = tape.gradient(loss, {w}, {.reduce = Reduce::kLater});
    TESSERA_RETURN_IF_ERROR(optimizer.apply(weights, gradients));
    if (number % 15 != 0) continue;
    TESSERA_ASSIGN_OR_RETURN(const float value, loss.item<float>());
    if (client.client_id() == 0) {
      std::printf("%3d images  loss %.4f  next: %s\n", static_cast<int>(batch->size), value,
                  iterator.state().to_string().c_str());
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
