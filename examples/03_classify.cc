// SPDX-License-Identifier: Apache-2.0
//
// Classifies digits with the weights that 03_digits.cc has saved, on any number of devices and
// clients.
//
//   bazel build //job:tessera_run //examples:03_digits //examples:03_classify
//   bazel-bin/job/tessera_run --clients 4 bazel-bin/examples/03_digits --save=/tmp/digits
//   bazel-bin/examples/03_classify --weights=/tmp/digits
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "examples/data_file.h"
#include "examples/digits_csv.h"
#include "tessera/tessera.h"

ABSL_FLAG(std::string, weights, "", "a checkpoint, or a .safetensors file");
ABSL_FLAG(int, model, 1, "size of the mesh axis that splits the network");

namespace {

using namespace tessera;
using namespace tessera::examples;

// 1. The digits that were not in the training: the last fifth of a permutation that depends on the
//    seed.
struct Data {
  DTensor pixels, labels;  // [images, 64], [images], whole on every device
  DTensor held_out;        // indices of images, split along `batch`
};

StatusOr<uint64_t> read_seed(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(checkpoint::Info info, checkpoint::read_info(path));
  uint64_t seed;
  if (absl::SimpleAtoi(info.metadata["seed"], &seed)) return seed;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", path, "\" has no seed; give weights that 03_digits has saved"));
}

Data load_data(const Digits& digits, const Mesh& mesh, uint64_t seed) {
  const int64_t n = digits.num_images();
  const std::vector<float> pixels(digits.pixels.begin(), digits.pixels.end());
  const std::vector<int64_t> labels(digits.labels.begin(), digits.labels.end());
  const DTensor order =
      random::permutation(random::Key::from_seed(seed).fold_in(0), n, Layout::replicated(mesh, 1));
  return {from_host<float>(pixels, {n, kNumPixels}, Layout::replicated(mesh, 2)) / kMaxPixel,
          from_host<int64_t>(labels, {n}, Layout::replicated(mesh, 1)),
          ops::slice(order, {n - n / 5}, {n}, {}, "[batch]")};
}

Status classify(const char* program) {
  TESSERA_ASSIGN_OR_RETURN(const std::string file, find_data(program, "digits.csv"));
  TESSERA_ASSIGN_OR_RETURN(const Digits digits, read_digits(file));
  const std::string path = absl::GetFlag(FLAGS_weights);
  TESSERA_ASSIGN_OR_RETURN(const uint64_t seed, read_seed(path));
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect());
  const auto num_devices = static_cast<int64_t>(client.devices().size());
  const int64_t model = absl::GetFlag(FLAGS_model);
  TESSERA_ASSIGN_OR_RETURN(
      const Mesh mesh,
      create_mesh(client, {{"batch", model > 0 ? num_devices / model : 0}, {"model", model}}));
  const Data data = load_data(digits, mesh, seed);

  // 2. The weights under the layouts of this mesh. Each client reads only what its devices need.
  const auto layout = [&](const char* text) { return Layout::parse(mesh, text); };
  TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> w,
                           checkpoint::restore(client, path,
                                               {{"w1", layout("[-, model]")},
                                                {"b1", layout("[model]")},
                                                {"w2", layout("[model, -]")},
                                                {"b2", layout("[-]")}}));

  // 3. The network of 03_digits, and the digit with the largest logit.
  const DTensor x = ops::take(data.pixels, data.held_out, 0);
  const DTensor hidden = ops::relu(ops::matmul(x, w[0]) + w[1]);
  const DTensor logits = ops::matmul(hidden, w[2], x.layout()) + w[3];
  const DTensor is_right =
      ops::equal(ops::argmax(logits, 1), ops::take(data.labels, data.held_out, 0));
  TESSERA_ASSIGN_OR_RETURN(const double right,
                           ops::sum(ops::cast<double>(is_right)).item<double>());
  if (client.client_id() == 0) {
    absl::PrintF("clients %d, mesh %s, held-out accuracy %.4f\n", client.num_clients(),
                 mesh.to_string(), right / static_cast<double>(data.held_out.shape()[0]));
  }
  return client.shutdown();
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("classifies handwritten digits with saved weights");
  absl::ParseCommandLine(argc, argv);
  const Status status = classify(argv[0]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
