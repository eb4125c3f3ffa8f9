// SPDX-License-Identifier: Apache-2.0
//
// 03_digits on GPUs: the table of matrix products, on the fake and, where there is a GPU, on
// cuBLASLt; the functions of cuBLASLt's library; and training, on the fakes of CUDA and NCCL,
// beside the CPU's. The kernels are tested with the network (digits_network_test).
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "collectives/nccl/fake/fake_nccl.h"  // NOTIDY(layers): several clients' fakes
#include "compute/cuda/fake/fake_math.h"      // NOTIDY(layers): GPUs of tests
#include "device/cuda/fake/fake_cuda.h"       // NOTIDY(layers): GPUs of tests
#include "device/cuda/open_api.h"             // NOTIDY(layers): whether there is a GPU
#include "examples/digits_csv.h"
#include "examples/digits_gpu/digits_math.h"
#include "examples/digits_gpu/digits_math_gpu.h"
#include "examples/digits_gpu/digits_network.h"
#include "examples/digits_gpu/fake_gpu_math.h"
#include "examples/digits_gpu/gpu_math.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/deadline.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/shared.h"

namespace tessera::examples {
namespace {

using cuda::FakeCuda;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::JobSpec;
using testing::run_clients;
using testing::run_isolated;
using testing::Shared;
using testing::StatusIs;
using testing::TestDeadline;

// out [rows, cols] = a b, of `terms` terms. Where a matrix is transposed, its transpose is in
// memory. All three begin so many elements after an address that is aligned to 256 bytes.
struct ProductCase {
  const char* name;
  int64_t rows, terms, cols;
  bool transposes_a = false, transposes_b = false;
  int64_t offset = 0;
};
void PrintTo(const ProductCase& c, std::ostream* out) { *out << c.name; }

const ProductCase kProducts[] = {
    {"one_element", 1, 1, 1},
    {"forward_first_layer", 16, 64, 48},
    {"forward_second_layer", 16, 48, 10},
    {"backward_by_weights", 64, 16, 48, /*transposes_a=*/true},
    {"backward_by_input", 16, 10, 48, false, /*transposes_b=*/true},
    {"both_transposed", 5, 7, 3, true, true},
    {"nothing_even", 17, 13, 11},
    {"a_row", 1, 33, 7},
    {"a_column", 9, 5, 1},
    {"aligned_to_an_element", 8, 12, 20, false, false, 1},
    {"transposed_aligned_to_two", 8, 12, 20, true, true, 2},
    {"larger_than_a_tile", 150, 257, 130},
    {"no_rows", 0, 4, 3},
    {"no_columns", 4, 3, 0},
    {"no_terms_are_zeros", 4, 0, 3},
};

// Whole numbers so small that every order of addition gives the same bits, but the first matrix's
// numbers so large that shorter types than f32 cannot hold them.
float large_value(int64_t i) { return static_cast<float>(i * 4001 % 8191 - 4095); }
float small_value(int64_t i) { return static_cast<float>((i * 37 + i / 7) % 17 - 8); }

// Memory of the current GPU and a stream of it, with pinned memory to fill and read it.
class Rig {
 public:
  static constexpr int64_t kElements = 1 << 18;

  explicit Rig(cuda::Api& api) : api_(api) {
    ready_ = api_.set_device(0);
    if (ready_.ok()) ready_ = make();
  }
  ~Rig() {
    if (stream != nullptr) api_.destroy_stream(stream).IgnoreError();
    if (event_ != nullptr) api_.destroy_event(event_).IgnoreError();
    if (gpu != nullptr) api_.free(reinterpret_cast<std::byte*>(gpu)).IgnoreError();
    if (host != nullptr) api_.free_pinned(reinterpret_cast<std::byte*>(host)).IgnoreError();
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  const Status& ready() const { return ready_; }
  // All of the memory, there or back; back() waits for it.
  Status there() { return copy(gpu, host); }
  Status back() {
    TESSERA_RETURN_IF_ERROR(copy(host, gpu));
    TESSERA_RETURN_IF_ERROR(api_.record_event(event_, stream));
    while (true) {
      TESSERA_ASSIGN_OR_RETURN(const bool done, api_.query_event(event_));
      if (done) return absl::OkStatus();
      std::this_thread::yield();
    }
  }

  float* gpu = nullptr;
  float* host = nullptr;
  cuda::StreamHandle stream = nullptr;

 private:
  Status make() {
    TESSERA_ASSIGN_OR_RETURN(stream, api_.create_stream());
    TESSERA_ASSIGN_OR_RETURN(event_, api_.create_event());
    TESSERA_ASSIGN_OR_RETURN(std::byte * memory, api_.allocate(kElements * sizeof(float)));
    gpu = reinterpret_cast<float*>(memory);
    TESSERA_ASSIGN_OR_RETURN(memory, api_.allocate_pinned(kElements * sizeof(float)));
    host = reinterpret_cast<float*>(memory);
    return absl::OkStatus();
  }
  Status copy(float* to, const float* from) {
    return api_.copy(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from),
                     kElements * sizeof(float), stream);
  }

  cuda::Api& api_;
  cuda::EventHandle event_ = nullptr;
  Status ready_;
};

// The product against loops over its definition; the memory around the result stays as it was.
Status check_product(const ProductCase& c, cuda::Api& api, GpuMath& math) {
  Rig rig(api);
  TESSERA_RETURN_IF_ERROR(rig.ready());
  const int64_t a_at = c.offset;
  const int64_t b_at = c.offset + (1 << 17);
  const int64_t out_at = c.offset + (1 << 17) + (1 << 16) + (1 << 14);
  for (int64_t i = 0; i < Rig::kElements; ++i) {
    rig.host[i] = i < b_at ? large_value(i) : small_value(i);
  }
  // NaN comes through where the old contents of the result are used.
  const int64_t size = c.rows * c.cols;
  for (int64_t i = 0; i < size; ++i) rig.host[out_at + i] = NAN;
  const std::vector<float> before(rig.host, rig.host + Rig::kElements);
  TESSERA_RETURN_IF_ERROR(rig.there());

  const Matrix a = c.transposes_a ? transposed({rig.gpu + a_at, c.terms, c.rows})
                                  : Matrix{rig.gpu + a_at, c.rows, c.terms};
  const Matrix b = c.transposes_b ? transposed({rig.gpu + b_at, c.cols, c.terms})
                                  : Matrix{rig.gpu + b_at, c.terms, c.cols};
  TESSERA_RETURN_IF_ERROR(math.multiply(a, b, rig.gpu + out_at, rig.stream));
  TESSERA_RETURN_IF_ERROR(rig.back());
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t col = 0; col < c.cols; ++col) {
      float expected = 0;
      for (int64_t k = 0; k < c.terms; ++k) {
        expected += before[a_at + (c.transposes_a ? k * c.rows + row : row * c.terms + k)] *
                    before[b_at + (c.transposes_b ? col * c.terms + k : k * c.cols + col)];
      }
      const float got = rig.host[out_at + row * c.cols + col];
      TESSERA_REQUIRE(got == expected, "row ", row, ", column ", col, ": ", got, " and not ",
                      expected);
    }
  }
  for (int64_t i = 0; i < Rig::kElements; ++i) {
    if (i >= out_at && i < out_at + size) continue;
    TESSERA_REQUIRE(rig.host[i] == before[i], "element ", i - out_at, " from the result");
  }
  return absl::OkStatus();
}

class ProductTest : public ::testing::TestWithParam<ProductCase> {};

TEST_P(ProductTest, HoldsOnTheFake) {
  const TestDeadline deadline(absl::Seconds(60), GetParam().name);
  const auto api = FakeCuda::create({.most_yields = 3});
  EXPECT_THAT(check_product(GetParam(), *api, *fake_gpu_math(api)), IsOk());
  EXPECT_THAT(api->misuses(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Table, ProductTest, ::testing::ValuesIn(kProducts),
                         [](const auto& info) { return info.param.name; });

// Whether tests are to use a GPU and the machine has it and cuBLASLt. The process of the test must
// use neither, because it forks.
Status math_of_this_machine() {
  if (std::getenv("TESSERA_TEST_GPU") == nullptr) {
    return absl::UnavailableError("$TESSERA_TEST_GPU is not set");
  }
  return run_isolated(absl::Seconds(60), []() -> Status {
    TESSERA_RETURN_IF_ERROR(cuda::open_api().status());
    return open_gpu_math().status();
  });
}

// The whole table in one process of its own, for the same reason.
TEST(ProductsOnAGpuTest, AreThoseOfTheTable) {
  if (const Status math = math_of_this_machine(); !math.ok()) GTEST_SKIP() << math;
  EXPECT_THAT(
      run_isolated(absl::Seconds(120),
                   []() -> Status {
                     TESSERA_ASSIGN_OR_RETURN(const auto api, cuda::open_api());
                     TESSERA_ASSIGN_OR_RETURN(const auto math, open_gpu_math());
                     for (const ProductCase& c : kProducts) {
                       TESSERA_RETURN_IF_ERROR(with_context(check_product(c, *api, *math), c.name));
                     }
                     return absl::OkStatus();
                   }),
      IsOk());
}

TEST(ProductErrorTest, MatricesFitTogether) {
  const auto math = fake_gpu_math(FakeCuda::create());
  EXPECT_THAT(math->multiply({nullptr, 2, 3}, {nullptr, 4, 5}, nullptr, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a is [2, 3] and b is [4, 5]; a should have as many columns")));
}

// The library that the build found has every name, and accepts the description of a product. On a
// machine without a GPU that is as far as it goes.
TEST(OpenGpuMathTest, TheLibraryTakesTheDescriptionOfAProduct) {
  if (std::getenv("TESSERA_TEST_GPU") != nullptr) GTEST_SKIP() << "the table goes further";
  const char* const library = std::getenv("TESSERA_CUBLASLT_LIBRARY");
  const StatusOr<std::shared_ptr<GpuMath>> math = open_gpu_math(library == nullptr ? "" : library);
  if (library == nullptr && !math.ok()) {
    EXPECT_THAT(math, StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("install")));
    return;
  }
  ASSERT_THAT(math, IsOk());
  float element = 1.0f;
  for (const Matrix& b : {Matrix{&element, 3, 4}, transposed({&element, 4, 3})}) {
    EXPECT_THAT(run_isolated(absl::Seconds(60),
                             [&]() -> Status {
                               if (cuda::open_api().ok()) return absl::OkStatus();
                               return (*math)->multiply({&element, 2, 3}, b, &element, nullptr);
                             }),
                AnyOf(IsOk(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       HasSubstr("cudaGetDevice: "))));
  }
}

TEST(OpenGpuMathTest, SaysWhatIsMissing) {
  EXPECT_THAT(open_gpu_math("libthere_is_none.so"),
              StatusIs(absl::StatusCode::kUnimplemented,
                       has_cublaslt() ? HasSubstr("matrix products on GPUs need cuBLASLt of CUDA")
                                      : HasSubstr("this build has no cuBLASLt")));
}

// The result of the training, in memory that the forked clients share with the test.
constexpr int kMaxEpochs = 40;
struct Curve {
  double losses[kMaxEpochs];
  double num_right;  // of the images held out
};

Status learn(Client& client, const DigitsMath& math, int epochs, Curve& curve) {
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"batch", 4}, {"model", 2}}));
  TESSERA_ASSIGN_OR_RETURN(Digits digits, read_digits("examples/data/digits.csv"));
  TESSERA_ASSIGN_OR_RETURN(const Data data, hold_out(std::move(digits), mesh, /*seed=*/1));
  DigitsNetwork network(mesh, {}, math);
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    TESSERA_ASSIGN_OR_RETURN(const Tally tally, train_epoch(network, data, {.epoch = epoch}));
    if (client.client_id() == 0) {
      curve.losses[epoch - 1] = tally.loss / static_cast<double>(data.train.size());
    }
  }
  network.evaluate(data.digits, data.held_out);
  TESSERA_ASSIGN_OR_RETURN(const Tally tally, network.read_tally());
  if (client.client_id() == 0) curve.num_right = tally.num_right;
  return absl::OkStatus();
}

// Eight devices of so many clients, on GPUs of the fake or on real ones.
constexpr int kRealGpus = -1;
struct TrainingCase {
  const char* name;
  int num_clients;
  int num_gpus;
  int epochs;
};
void PrintTo(const TrainingCase& c, std::ostream* out) { *out << c.name; }

std::vector<TrainingCase> training_cases() {
  // On GPUs all epochs of 03_digits; the fake takes a third of a second for an epoch, under a
  // sanitizer ten times as long.
  std::vector<TrainingCase> cases = {
      {"one_client_of_eight", 1, 2, testing::kSanitized ? 4 : 12},
      {"two_clients_of_four", 2, 8, testing::kSanitized ? 2 : 8},
  };
  if (std::getenv("TESSERA_TEST_GPU") != nullptr) {
    cases.push_back({"eight_devices_on_the_gpu", 1, kRealGpus, kMaxEpochs});
  }
  return cases;
}

Status learn_on_gpus(const TrainingCase& c, Curve& curve) {
  JobSpec spec = {.num_clients = c.num_clients, .devices_per_client = 8 / c.num_clients};
  spec.options.device_type = DeviceType::kCuda;
  if (c.num_gpus == kRealGpus) {
    return run_clients(spec, [&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<GpuMath> gpu, open_gpu_math());
      return learn(client, math_on_gpu(std::move(gpu)), c.epochs, curve);
    });
  }
  const auto cuda = FakeCuda::create({.num_gpus = c.num_gpus});
  const auto nccl = nccl::FakeNccl::create(cuda);
  spec.hooks.cuda = cuda::fake_libraries(cuda);
  spec.hooks.nccl = nccl;
  return run_clients(spec, [&](Client& client) -> Status {
    TESSERA_RETURN_IF_ERROR(learn(client, math_on_gpu(fake_gpu_math(cuda)), c.epochs, curve));
    for (const std::vector<std::string>& misuses : {cuda->misuses(), nccl->misuses()}) {
      TESSERA_REQUIRE(misuses.empty(), misuses[0]);
    }
    TESSERA_REQUIRE(cuda->num_calls("cublasLtMatmul") > 0);
    return absl::OkStatus();
  });
}

class TrainingTest : public ::testing::TestWithParam<TrainingCase> {};

TEST_P(TrainingTest, ComesToWhatTheCpuComesTo) {
  if (GetParam().num_gpus == kRealGpus) {
    const Status status = math_of_this_machine();
    if (!status.ok()) GTEST_SKIP() << status;
  }
  const int epochs = GetParam().epochs;
  Shared<Curve> cpu;
  ASSERT_THAT(
      run_clients({.devices_per_client = 8},
                  [&](Client& client) { return learn(client, math_on_cpu(), epochs, *cpu); }),
      IsOk());
  EXPECT_LT(cpu->losses[epochs - 1], cpu->losses[0]);
  EXPECT_GE(cpu->num_right, (epochs == kMaxEpochs ? 0.95 : 0.6) * 359);
  Shared<Curve> gpu;
  ASSERT_THAT(learn_on_gpus(GetParam(), *gpu), IsOk());
  // Terms are added in another order, and exp is another one: so the last bits differ. On the
  // fake they always differ in the same way; on a GPU an image may be on the edge between two
  // digits.
  for (int epoch = 0; epoch < epochs; ++epoch) {
    EXPECT_NEAR(gpu->losses[epoch], cpu->losses[epoch], 1e-5) << "epoch " << epoch + 1;
  }
  EXPECT_NEAR(gpu->num_right, cpu->num_right, GetParam().num_gpus == kRealGpus ? 1 : 0);
}

INSTANTIATE_TEST_SUITE_P(Clients, TrainingTest, ::testing::ValuesIn(training_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::examples
