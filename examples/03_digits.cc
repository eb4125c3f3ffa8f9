// SPDX-License-Identifier: Apache-2.0
//
// Digits: a network learns to read handwritten digits, on any number of devices and clients.
//
//   bazel build //job:tessera_run //examples:03_digits
//   bazel-bin/job/tessera_run --clients 4 --devices-per-client 2 bazel-bin/examples/03_digits
//
// With --save=PATH it saves the weights as a checkpoint, which 03_classify.cc reads.
//
//   hidden = relu(x W1 + b1)     logits = hidden W2 + b2     loss = mean of -log
//   softmax(logits)[label]
//
// The mesh has an axis `batch`, which splits the images (data parallel), and an axis `model`, which
// splits the H hidden units (tensor parallel). The program sets the layouts of the first two rows
// and of the image indices; the others follow:
//
//   tensor          shape                layout                gradient, before it is reduced
//   W1, b1          [64, H], [H]         [-, model], [model]   ... sum{batch}
//   W2, b2          [H, 10], [10]        [model, -], [-]       ... sum{batch}
//   x, labels       [images, 64], ...    [batch, -], [batch]
//   hidden          [images, H]          [batch, model]
//   hidden W2       [images, 10]         [batch, -] sum{model}
//
// The mathematics is the same for every mesh: losses are means over the whole batch, and weights
// and batches depend only on global indices.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "examples/data_file.h"
#include "examples/digits_csv.h"
#include "examples/flag_limits.h"
#include "tessera/tessera.h"

ABSL_FLAG(int, epochs, 40, "passes over the training images");
ABSL_FLAG(int, batch_size, 64, "images per step");
ABSL_FLAG(uint64_t, seed, 1, "of the first weights and of every shuffle");
ABSL_FLAG(std::string, data, "", "the file of digits; empty: examples/data/digits.csv");
ABSL_FLAG(std::string, save, "", "a folder for a checkpoint of the weights; empty: none");
ABSL_FLAG(std::string, export, "", "a .safetensors file for the weights; empty: none");
ABSL_FLAG(std::string, loss_file, "", "a file for the loss of each epoch; empty: none");
ABSL_FLAG(std::string, device, "cpu", "what to run on: cpu or cuda");
ABSL_FLAG(int, devices, 0, "devices of this client; 0: as tessera_run says, else 1, or every GPU");
ABSL_FLAG(int, batch, 0, "size of the mesh axis that splits images; 0: what is left");
ABSL_FLAG(int, model, 0,
          "size of the mesh axis that splits the network; 0: 2 if there are 4, 6, 8, ... devices, "
          "else 1");

namespace {

using namespace tessera;
using namespace tessera::examples;

constexpr int64_t kHidden = 96;

// 1. The client, with the devices that the command line or the launcher asks for. The rest of the
//    program works with any devices.
StatusOr<Client> connect() {
  ClientOptions options;
  options.num_local_devices = absl::GetFlag(FLAGS_devices);
  const std::string device = absl::GetFlag(FLAGS_device);
  if (device != "cpu" && device != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device is \"", device, "\"; it should be \"cpu\" or \"cuda\""));
  }
  options.device_type = device == "cuda" ? DeviceType::kCuda : DeviceType::kCpu;
  return Client::connect(options);
}

// 2. The mesh: 8 devices are {batch=4, model=2}, one device is {batch=1, model=1}.
StatusOr<Mesh> make_mesh(const Client& client) {
  const auto num_devices = static_cast<int64_t>(client.devices().size());
  int64_t batch = absl::GetFlag(FLAGS_batch);
  int64_t model = absl::GetFlag(FLAGS_model);
  if (model == 0) {
    model = batch > 0 ? num_devices / batch : num_devices >= 4 && num_devices % 2 == 0 ? 2 : 1;
  }
  if (batch == 0 && model > 0) batch = num_devices / model;
  return create_mesh(client, {{"batch", batch}, {"model", model}});
}

// 3. The data. It is small, so every device has all images, and takes the images of its batches.
struct Data {
  DTensor pixels, labels;   // [images, 64], [images]
  DTensor train, held_out;  // indices of images
};

StatusOr<Digits> read(const char* program) {
  std::string path = absl::GetFlag(FLAGS_data);
  if (path.empty()) {
    TESSERA_ASSIGN_OR_RETURN(path, find_data(program, "digits.csv"));
  }
  return read_digits(path);
}

Data load_data(const Digits& digits, const Mesh& mesh, random::Key key) {
  const int64_t n = digits.num_images();
  const int64_t num_train = n - n / 5;
  const std::vector<float> pixels(digits.pixels.begin(), digits.pixels.end());
  const std::vector<int64_t> labels(digits.labels.begin(), digits.labels.end());
  const DTensor order = random::permutation(key, n, Layout::replicated(mesh, 1));
  return {from_host<float>(pixels, {n, kNumPixels}, Layout::replicated(mesh, 2)) / kMaxPixel,
          from_host<int64_t>(labels, {n}, Layout::replicated(mesh, 1)),
          order[{Range{0, num_train}}], order[{Range{num_train}}]};
}

// 4. The network. Weights are uniform in [-limit, limit), with the limit of Glorot and Bengio,
//    2010.
nn::Parameters make_weights(const Mesh& mesh, random::Key key) {
  const auto layout = [&](const char* text) { return Layout::parse(mesh, text); };
  const double limit1 = std::sqrt(6.0 / (kNumPixels + kHidden));
  const double limit2 = std::sqrt(6.0 / (kHidden + kNumDigits));
  nn::Parameters weights;
  weights.add("w1", random::uniform<float>(key.fold_in(0), {kNumPixels, kHidden},
                                           layout("[-, model]"), -limit1, limit1));
  weights.add("b1", zeros<float>({kHidden}, layout("[model]")));
  weights.add("w2", random::uniform<float>(key.fold_in(1), {kHidden, kNumDigits},
                                           layout("[model, -]"), -limit2, limit2));
  weights.add("b2", zeros<float>({kNumDigits}, layout("[-]")));
  return weights;
}

// The mean loss of some images.
//
// - `tally` grows by the sum of their losses and the number of right answers. Each device adds its
//   own images, so the tally is partial along `batch`, and nothing is sent until it is read.
// - The second product sums over hidden units, of which each device has some. Its layout asks for
//   the sum here, once for all uses.
DTensor loss_of(const std::vector<DTensor>& w, const Data& data, const DTensor& images,
                DTensor& tally) {
  const DTensor x = ops::take(data.pixels, images, 0);
  const DTensor labels = ops::take(data.labels, images, 0);
  const DTensor hidden = ops::relu(ops::matmul(x, w[0]) + w[1]);
  const DTensor logits = ops::matmul(hidden, w[2], x.layout()) + w[3];
  const DTensor losses = ops::softmax_cross_entropy(logits, labels);
  const DTensor right = ops::equal(ops::argmax(logits, 1), labels);
  tally = tally + ops::stack({ops::sum(ops::cast<double>(stop_gradient(losses))),
                              ops::sum(ops::cast<double>(right))});
  return ops::mean(losses);
}

// 5. Training: every image once, in an order that the key decides. Calls enqueue work and return.
Status train_epoch(const nn::Parameters& weights, Sgd& optimizer, const Data& data, random::Key key,
                   DTensor& tally) {
  const StatusOr<Layout> split = Layout::parse(data.train.layout().mesh(), "[batch]");
  const int64_t n = data.train.shape()[0];
  const DTensor shuffled =
      ops::take(data.train, random::permutation(key, n, data.train.layout()), 0);
  const int64_t batch_size = absl::GetFlag(FLAGS_batch_size);
  for (int64_t begin = 0; begin < n; begin += batch_size) {
    const int64_t end = std::min(begin + batch_size, n);
    Tape tape;
    const std::vector<DTensor> w = weights.watch(tape);
    const DTensor loss = loss_of(w, data, ops::slice(shuffled, {begin}, {end}, {}, split), tally);
    TESSERA_RETURN_IF_ERROR(optimizer.apply(weights.variables(), tape.gradient(loss, w)));
  }
  return absl::OkStatus();
}

// One client writes the progress and the files.
Status train(const Client& client, const nn::Parameters& weights, const Data& data,
             random::Key key) {
  Sgd optimizer{.learning_rate = 0.05, .momentum = 0.9};
  const auto n = static_cast<double>(data.train.shape()[0]);
  std::string losses;
  for (int epoch = 1; epoch <= absl::GetFlag(FLAGS_epochs); ++epoch) {
    const absl::Time start = absl::Now();
    DTensor tally = zeros<double>({2}, data.labels.layout());
    TESSERA_RETURN_IF_ERROR(train_epoch(weights, optimizer, data, key.fold_in(epoch), tally));
    TESSERA_ASSIGN_OR_RETURN(const HostTensor<double> sums, tally.to_host<double>());
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    absl::StrAppendFormat(&losses, "%.17g\n", sums.data[0] / n);
    if (client.client_id() != 0) continue;
    absl::PrintF("epoch %3d  loss %.6f  accuracy %.4f  %6.0f examples/s\n", epoch, sums.data[0] / n,
                 sums.data[1] / n, n / seconds);
    std::fflush(stdout);
  }
  const std::string path = absl::GetFlag(FLAGS_loss_file);
  if (client.client_id() != 0 || path.empty()) return absl::OkStatus();
  if (std::ofstream(path) << losses << std::flush) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot write \"", path, "\""));
}

// 6. The test: the loss and accuracy on digits that were not in the training.
Status test(const Client& client, const nn::Parameters& weights, const Data& data) {
  std::vector<DTensor> w;
  for (const Variable& weight : weights.variables()) w.push_back(weight.value());
  DTensor tally = zeros<double>({2}, data.labels.layout());
  loss_of(w, data, relayout(data.held_out, "[batch]"), tally);
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<double> sums, tally.to_host<double>());
  if (client.client_id() == 0) {
    absl::PrintF("held-out accuracy %.4f\n",
                 sums.data[1] / static_cast<double>(data.held_out.shape()[0]));
  }
  return absl::OkStatus();
}

// 7. The weights, with the seed, which decides the digits that are held out. A checkpoint can be
//    read under any layouts, on any number of clients. Other tools read the file.
Status save(const Client& client, const nn::Parameters& weights) {
  std::vector<NamedTensor> values;
  for (const Variable& weight : weights.variables()) {
    values.push_back({weight.name(), weight.value()});
  }
  const std::map<std::string, std::string> metadata = {
      {"seed", absl::StrCat(absl::GetFlag(FLAGS_seed))}};
  if (const std::string path = absl::GetFlag(FLAGS_save); !path.empty()) {
    TESSERA_RETURN_IF_ERROR(
        checkpoint::save(client, path, values, {.metadata = metadata, .overwrite = true}));
  }
  if (const std::string path = absl::GetFlag(FLAGS_export); !path.empty()) {
    TESSERA_RETURN_IF_ERROR(write_safetensors(client, path, values, metadata));
  }
  return absl::OkStatus();
}

Status run(const char* program) {
  TESSERA_RETURN_IF_ERROR(check_at_least(1, "batch_size", absl::GetFlag(FLAGS_batch_size)));
  TESSERA_RETURN_IF_ERROR(check_at_least(0, "epochs", absl::GetFlag(FLAGS_epochs)));
  TESSERA_ASSIGN_OR_RETURN(const Digits digits, read(program));
  TESSERA_ASSIGN_OR_RETURN(Client client, connect());
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, make_mesh(client));
  const random::Key key = random::Key::from_seed(absl::GetFlag(FLAGS_seed));
  const Data data = load_data(digits, mesh, key.fold_in(0));
  if (client.client_id() == 0) {
    absl::PrintF("clients %d, mesh %s, %d images to learn from, %d held out\n",
                 client.num_clients(), mesh.to_string(), data.train.shape()[0],
                 data.held_out.shape()[0]);
  }
  const nn::Parameters weights = make_weights(mesh, key.fold_in(1));
  TESSERA_RETURN_IF_ERROR(train(client, weights, data, key.fold_in(2)));
  TESSERA_RETURN_IF_ERROR(test(client, weights, data));
  TESSERA_RETURN_IF_ERROR(save(client, weights));
  TESSERA_RETURN_IF_ERROR(mesh.barrier("trained", absl::Seconds(60)));
  return client.shutdown();
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("trains a network on handwritten digits");
  absl::ParseCommandLine(argc, argv);
  const Status status = run(argv[0]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
