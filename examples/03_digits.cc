// SPDX-License-Identifier: Apache-2.0
//
// Digits: a network learns to read handwritten digits, on any number of devices and clients.
//
//   bazel build //job:tessera_run //examples:03_digits
//   bazel-bin/job/tessera_run --clients 4 --devices-per-client 2 bazel-bin/examples/03_digits
//   bazel-bin/examples/03_digits --device cuda            on every GPU that it sees
//
// Here is the job: the mesh, the data, the epochs. The network itself, with its layouts, is in
// digits_network.cc; what a device computes is in digits_math.cc and, for GPUs, in
// digits_gpu/digits_math_gpu.cc.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
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
#include "examples/digits_gpu/digits_math_gpu.h"
#include "examples/digits_gpu/gpu_math.h"
#include "examples/digits_math.h"
#include "examples/digits_network.h"
#include "examples/npy.h"
#include "tessera.h"

ABSL_FLAG(int, epochs, 40, "passes over the training images");
ABSL_FLAG(int, batch_size, 64, "images a step");
ABSL_FLAG(uint64_t, seed, 1, "of the first weights and of every shuffle");
ABSL_FLAG(std::string, data, "", "the file of digits; empty: examples/data/digits.csv");
ABSL_FLAG(std::string, out, "", "a folder for the weights as .npy files; empty: none");
ABSL_FLAG(std::string, loss_file, "", "a file for the loss of each epoch; empty: none");
ABSL_FLAG(std::string, device, "cpu", "what to run on: cpu or cuda");
ABSL_FLAG(int, devices, 0, "devices of this client; 0: as tessera_run says, else 1, or every GPU");
ABSL_FLAG(int, batch, 0, "size of the mesh axis that splits images; 0: what is left");
ABSL_FLAG(int, model, 0,
          "size of the mesh axis that splits the network; 0: 2 if there are 4, 6, "
          "8, ... devices, else 1");

namespace {

using namespace tessera;
using namespace tessera::examples;

// 1. The client, with the devices that the command line or the launcher asks for; and what computes
//    on them. The rest of the program does not know which it is.
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

StatusOr<DigitsMath> math_of(const Client& client) {
  if (client.local_devices()[0].type == DeviceType::kCpu) return math_on_cpu();
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<GpuMath> gpu, open_gpu_math());
  return math_on_gpu(std::move(gpu));
}

// 2. The mesh. Images are split along `batch`, the hidden units of the network along `model`: 8
//    devices are {batch=4, model=2}, one device is {batch=1, model=1}. The program is the same.
StatusOr<Mesh> make_mesh(const Client& client) {
  const int64_t num_devices = static_cast<int64_t>(client.devices().size());
  int64_t batch = absl::GetFlag(FLAGS_batch);
  int64_t model = absl::GetFlag(FLAGS_model);
  if (model == 0) {
    if (batch > 0) {
      model = num_devices / batch;
    } else {
      model = num_devices >= 4 && num_devices % 2 == 0 ? 2 : 1;
    }
  }
  if (batch == 0 && model > 0) batch = num_devices / model;
  return create_mesh(client, {{"batch", batch}, {"model", model}});
}

// 3. The data. Every client reads the file, and holds out the same images.
StatusOr<Data> load_data(const char* program) {
  std::string path = absl::GetFlag(FLAGS_data);
  if (path.empty()) {
    TESSERA_ASSIGN_OR_RETURN(path, find_data(program, "digits.csv"));
  }
  TESSERA_ASSIGN_OR_RETURN(Digits digits, read_digits(path));
  return hold_out(std::move(digits), absl::GetFlag(FLAGS_seed));
}

Status write_text(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot create \"", path, "\""));
  }
  const bool written = std::fputs(text.c_str(), file) >= 0;
  if (std::fclose(file) != 0 || !written) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write \"", path, "\""));
  }
  return absl::OkStatus();
}

// 4. Training. Progress and files are for one client to write.
Status train(const Client& client, DigitsNetwork& network, const Data& data) {
  const bool is_first = client.client_id() == 0;
  const double n = static_cast<double>(data.train.size());
  std::string losses;
  for (int epoch = 1; epoch <= absl::GetFlag(FLAGS_epochs); ++epoch) {
    const absl::Time start = absl::Now();
    TESSERA_ASSIGN_OR_RETURN(Tally tally,
                             train_epoch(network, data,
                                         {.seed = absl::GetFlag(FLAGS_seed),
                                          .epoch = epoch,
                                          .batch_size = absl::GetFlag(FLAGS_batch_size)}));
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    absl::StrAppendFormat(&losses, "%.17g\n", tally.loss / n);
    if (!is_first) continue;
    absl::PrintF("epoch %3d  loss %.6f  accuracy %.4f  %6.0f examples/s\n", epoch, tally.loss / n,
                 tally.num_right / n, n / seconds);
    std::fflush(stdout);
  }
  const std::string path = absl::GetFlag(FLAGS_loss_file);
  return is_first && !path.empty() ? write_text(path, losses) : absl::OkStatus();
}

// 5. What counts is how it reads digits that it has never seen.
Status test(const Client& client, DigitsNetwork& network, const Data& data) {
  network.evaluate(data.digits, data.held_out);
  TESSERA_ASSIGN_OR_RETURN(Tally tally, network.read_tally());
  if (client.client_id() == 0) {
    absl::PrintF("held-out accuracy %.4f\n",
                 tally.num_right / static_cast<double>(data.held_out.size()));
  }
  return absl::OkStatus();
}

// 6. The weights. to_host() collects the shards from all devices, so every client calls it, and one
//    writes.
Status save(const Client& client, const DigitsNetwork& network) {
  const std::string folder = absl::GetFlag(FLAGS_out);
  if (folder.empty()) return absl::OkStatus();
  const char* names[] = {"w1", "b1", "w2", "b2"};
  const std::vector<DTensor> weights = network.weights();
  for (size_t i = 0; i < weights.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(HostTensor<float> host, weights[i].to_host<float>());
    if (client.client_id() != 0) continue;
    const std::string path = absl::StrCat(folder, "/", names[i], ".npy");
    TESSERA_RETURN_IF_ERROR(write_npy(path, host));
    absl::PrintF("saved %s %s\n", path, shape_to_string(host.shape));
  }
  return absl::OkStatus();
}

Status run(const char* program) {
  if (absl::GetFlag(FLAGS_batch_size) < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch_size is ", absl::GetFlag(FLAGS_batch_size), "; it should be at least 1"));
  }
  TESSERA_ASSIGN_OR_RETURN(Data data, load_data(program));
  TESSERA_ASSIGN_OR_RETURN(Client client, connect());
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, make_mesh(client));
  if (client.client_id() == 0) {
    absl::PrintF("clients %d, mesh %s, %d images to learn from, %d held out\n",
                 client.num_clients(), mesh.to_string(), data.train.size(), data.held_out.size());
  }
  TESSERA_ASSIGN_OR_RETURN(DigitsMath math, math_of(client));
  DigitsNetwork network(mesh, {.seed = absl::GetFlag(FLAGS_seed)}, math);
  TESSERA_RETURN_IF_ERROR(train(client, network, data));
  TESSERA_RETURN_IF_ERROR(test(client, network, data));
  TESSERA_RETURN_IF_ERROR(save(client, network));
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
