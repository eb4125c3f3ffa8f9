// SPDX-License-Identifier: Apache-2.0
//
// The network against an oracle: the same formulas in plain loops over doubles, in one process.
#include "examples/digits_gpu/digits_network.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compute/cuda/fake/fake_math.h"  // NOTIDY(layers): GPUs of tests
#include "device/cuda/fake/fake_cuda.h"   // NOTIDY(layers): GPUs of tests
#include "dtensor/client_hooks.h"
#include "examples/digits_gpu/digits_math.h"
#include "examples/digits_gpu/digits_math_gpu.h"
#include "examples/digits_gpu/fake_gpu_math.h"
#include "examples/digits_gpu/gpu_math.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::examples {
namespace {

using cuda::FakeCuda;
using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kHidden = 13;  // splits unevenly over every mesh below but one

// Images of noise, with labels that repeat.
Digits noise(int64_t num_images) {
  Digits digits;
  for (int64_t i = 0; i < num_images * kNumPixels; ++i) {
    digits.pixels.push_back(static_cast<uint8_t>((i * i * 7 + i / 3) % (kMaxPixel + 1)));
  }
  for (int64_t i = 0; i < num_images; ++i) digits.labels.push_back(i * 7 % kNumDigits);
  return digits;
}

using Values = std::vector<double>;

// Loops only; no code shared with the network.
struct Oracle {
  NetworkOptions options;
  Values weights[4];  // W1, b1, W2, b2
  Values velocities[4];
  double loss = 0;

  void train(const Digits& digits, const std::vector<int64_t>& images) {
    const int64_t h = options.num_hidden;
    Values gradients[4];
    for (int k = 0; k < 4; ++k) gradients[k].assign(weights[k].size(), 0);
    for (int64_t image : images) {
      Values x(kNumPixels), hidden(h), p(kNumDigits);
      for (int64_t i = 0; i < kNumPixels; ++i) {
        x[i] = digits.pixels[image * kNumPixels + i] / double{kMaxPixel};
      }
      for (int64_t j = 0; j < h; ++j) {
        double sum = weights[1][j];
        for (int64_t i = 0; i < kNumPixels; ++i) sum += x[i] * weights[0][i * h + j];
        hidden[j] = std::max(sum, 0.0);
      }
      double total = 0;
      for (int64_t d = 0; d < kNumDigits; ++d) {
        double sum = weights[3][d];
        for (int64_t j = 0; j < h; ++j) sum += hidden[j] * weights[2][j * kNumDigits + d];
        total += p[d] = std::exp(sum);
      }
      for (double& value : p) value /= total;
      loss -= std::log(p[digits.labels[image]]);
      for (int64_t d = 0; d < kNumDigits; ++d) {
        const double dl = (p[d] - (d == digits.labels[image])) / images.size();
        gradients[3][d] += dl;
        for (int64_t j = 0; j < h; ++j) {
          gradients[2][j * kNumDigits + d] += hidden[j] * dl;
          if (hidden[j] <= 0) continue;
          const double dh = dl * weights[2][j * kNumDigits + d];
          gradients[1][j] += dh;
          for (int64_t i = 0; i < kNumPixels; ++i) gradients[0][i * h + j] += x[i] * dh;
        }
      }
    }
    for (int k = 0; k < 4; ++k) {
      for (size_t i = 0; i < weights[k].size(); ++i) {
        velocities[k][i] = options.momentum * velocities[k][i] + gradients[k][i];
        weights[k][i] -= options.learning_rate * velocities[k][i];
      }
    }
  }
};

// On CPUs, on so many GPUs of the double, or on the machine's own.
constexpr int kRealGpus = -1;
struct MeshCase {
  const char* name;
  int64_t batch;
  int64_t model;
  int num_gpus = 0;
};
void PrintTo(const MeshCase& c, std::ostream* out) { *out << c.name; }

std::vector<MeshCase> mesh_cases() {
  std::vector<MeshCase> cases = {{"one_device", 1, 1},
                                 {"data", 3, 1},
                                 {"tensor", 1, 3},
                                 {"both", 4, 2},
                                 {"wide", 2, 4},
                                 {"one_device_on_a_gpu", 1, 1, 1},
                                 {"both_on_a_gpu", 4, 2, 1},
                                 {"both_on_three_gpus", 4, 2, 3},
                                 {"wide_on_eight_gpus", 2, 4, 8}};
  if (std::getenv("TESSERA_TEST_GPU") != nullptr) {
    cases.push_back({"both_on_the_gpu", 4, 2, kRealGpus});
  }
  return cases;
}

class DigitsNetworkTest : public ::testing::TestWithParam<MeshCase> {};

TEST_P(DigitsNetworkTest, ThreeStepsAgreeWithOracle) {
  const auto [name, batch, model, num_gpus] = GetParam();
  ClientOptions client_options;
  internal::ClientHooks hooks;
  client_options.num_local_devices = static_cast<int>(batch * model);
  DigitsMath math = math_on_cpu();
  const auto cuda = FakeCuda::create({.num_gpus = std::max(num_gpus, 1), .most_yields = 3});
  if (num_gpus != 0) {
    client_options.device_type = DeviceType::kCuda;
    std::shared_ptr<GpuMath> gpu = fake_gpu_math(cuda);
    if (num_gpus == kRealGpus) {
      TESSERA_ASSERT_OK_AND_ASSIGN(gpu, open_gpu_math());
    } else {
      hooks.cuda = cuda::fake_libraries(cuda);
    }
    math = math_on_gpu(std::move(gpu));
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(Client client, internal::connect(client_options, hooks));
  TESSERA_ASSERT_OK_AND_ASSIGN(Mesh mesh,
                               create_mesh(client, {{"batch", batch}, {"model", model}}));
  const NetworkOptions options = {.num_hidden = kHidden, .seed = 5};
  DigitsNetwork network(mesh, options, math);

  Oracle oracle;
  oracle.options = options;
  for (int k = 0; k < 4; ++k) {
    TESSERA_ASSERT_OK_AND_ASSIGN(HostTensor<float> host, network.weights()[k].to_host<float>());
    oracle.weights[k].assign(host.data.begin(), host.data.end());
    oracle.velocities[k].assign(host.data.size(), 0);
  }
  // Batches of 11, 3 and 1: uneven, and smaller than the mesh.
  const Digits digits = noise(15);
  const std::vector<std::vector<int64_t>> steps = {
      {0, 2, 4, 6, 8, 10, 12, 14, 13, 11, 9}, {1, 3, 5}, {7}};
  for (const std::vector<int64_t>& images : steps) {
    network.train(digits, images);
    oracle.train(digits, images);
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(Tally tally, network.read_tally());
  EXPECT_NEAR(tally.loss, oracle.loss, 1e-4);
  for (int k = 0; k < 4; ++k) {
    TESSERA_ASSERT_OK_AND_ASSIGN(HostTensor<float> host, network.weights()[k].to_host<float>());
    ASSERT_EQ(host.data.size(), oracle.weights[k].size());
    for (size_t i = 0; i < host.data.size(); ++i) {
      ASSERT_NEAR(host.data[i], oracle.weights[k][i], 1e-5) << "weight " << k << " at " << i;
    }
  }
  EXPECT_THAT(client.shutdown(), IsOk());
  EXPECT_THAT(cuda->misuses(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Meshes, DigitsNetworkTest, ::testing::ValuesIn(mesh_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(DigitsNetworkErrorTest, AMeshWithoutItsAxesIsNamedWhenTheTallyIsRead) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Client client, Client::connect());
  TESSERA_ASSERT_OK_AND_ASSIGN(Mesh mesh, create_mesh(client, {{"batch", 1}}));
  DigitsNetwork network(mesh, {});
  network.train(noise(1), {0});
  EXPECT_THAT(network.read_tally(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"model\"")));
  EXPECT_THAT(client.shutdown(), IsOk());
}

// The program that is made of operations begins with the same weights, and takes the same batches.
TEST(DigitsNetworkLossTest, AreThoseOfTheProgramMadeOfOperations) {
  constexpr int kEpochs = 8;
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/losses");
  const std::string command =
      absl::StrCat("examples/03_digits --epochs=", kEpochs, " --loss_file=", path);
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::ifstream file(path);
  TESSERA_ASSERT_OK_AND_ASSIGN(Client client, Client::connect());
  TESSERA_ASSERT_OK_AND_ASSIGN(Mesh mesh, create_mesh(client, {{"batch", 1}, {"model", 1}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(Digits digits, read_digits("examples/data/digits.csv"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Data data, hold_out(std::move(digits), mesh, /*seed=*/1));
  EXPECT_EQ(data.train.size(), 1438u);
  EXPECT_EQ(data.held_out.size(), 359u);
  DigitsNetwork network(mesh, {});
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Tally tally, train_epoch(network, data, {.epoch = epoch}));
    double loss = 0;
    ASSERT_TRUE(file >> loss) << "epoch " << epoch;
    EXPECT_NEAR(tally.loss / 1438, loss, 1e-6) << "epoch " << epoch;
  }
  EXPECT_THAT(client.shutdown(), IsOk());
}

}  // namespace
}  // namespace tessera::examples
