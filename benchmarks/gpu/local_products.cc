// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/local_products.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "benchmarks/gpu/gpu.h"
#include "benchmarks/gpu/issued.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace tessera::benchmarks {
namespace {

using Eigen::bfloat16;

constexpr double kMostMicrosecondsOver = 5;
constexpr double kRateToReach = 0.97;
// The most that the toolkit's MathApi asks for.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

// Whole numbers from -2 to 2, without a pattern: their sums are exact in f32, and a GPU's clock
// depends on the numbers that it multiplies.
int value_of(int matrix, int64_t i) {
  auto x = static_cast<uint64_t>(i) * 2 + static_cast<uint64_t>(matrix);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<int>((x ^ (x >> 31)) % 5) - 2;
}

// c = a b of bf16, n x n, row-major, on a stream of GPU 0. Products on several streams must not
// overlap: they have one workspace.
struct Multiply {
  std::shared_ptr<cuda::MathApi> math;
  int64_t n;
  std::byte* workspace = nullptr;

  Status operator()(const std::byte* a, const std::byte* b, std::byte* c,
                    cuda::StreamHandle stream) const {
    cuda::Gemm gemm;
    gemm.type = cuda::ElementType::kBFloat16;
    gemm.rows = gemm.columns = gemm.summed = n;
    gemm.a = {a, false, n, 0};
    gemm.b = {b, false, n, 0};
    gemm.c = c;
    const auto give_workspace = [this](uint64_t size_bytes) -> StatusOr<std::byte*> {
      if (size_bytes <= uint64_t{kWorkspaceBytes}) return workspace;
      return absl::ResourceExhaustedError("a larger workspace than the benchmark has");
    };
    return math->multiply(gemm, give_workspace, stream);
  }
};

// One size of matrices: both as tensors of one device, and their product in either way.
class Products {
 public:
  static StatusOr<std::unique_ptr<Products>> create(Client& client, Gpu& gpu,
                                                    std::shared_ptr<cuda::MathApi> math,
                                                    int64_t n) {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 1}}));
    TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::parse(mesh, "[-, -]"));
    std::unique_ptr<Products> self(new Products(client, gpu, std::move(math), layout, n));
    for (int k = 0; k < 2; ++k) {
      self->inputs_.push_back(
          from_function<bfloat16>({n, n}, layout, [k](const Box&, absl::Span<bfloat16> out) {
            for (size_t i = 0; i < out.size(); ++i) {
              out[i] = bfloat16(static_cast<float>(value_of(k, static_cast<int64_t>(i))));
            }
          }));
    }
    TESSERA_RETURN_IF_ERROR(self->find_memory());
    return self;
  }

  DTensor give_local() {
    return local_map(layout_, {n_, n_}, DType::kBFloat16, inputs_,
                     [multiply = multiply_](LocalContext& local) -> Status {
                       const auto a = local.input<bfloat16>(0);
                       const auto b = local.input<bfloat16>(1);
                       return multiply(
                           reinterpret_cast<const std::byte*>(a.data.data()),
                           reinterpret_cast<const std::byte*>(b.data.data()),
                           reinterpret_cast<std::byte*>(local.output<bfloat16>().data.data()),
                           static_cast<cuda::StreamHandle>(local.cuda_stream()));
                     });
  }
  Status give_bare() { return multiply_(memory_[0], memory_[1], out_, gpu_.stream()); }

  // Checks that both results are equal, and right at every checked place.
  Status check();
  // The host's time per product for `repeats` consecutive products, until the last is submitted.
  StatusOr<absl::Duration> time_giving(int repeats, bool is_local);
  // From idle to idle.
  StatusOr<absl::Duration> time_doing(int repeats, bool is_local);

 private:
  Products(Client& client, Gpu& gpu, std::shared_ptr<cuda::MathApi> math, Layout layout, int64_t n)
      : client_(client),
        gpu_(gpu),
        layout_(std::move(layout)),
        n_(n),
        multiply_{std::move(math), n} {}

  // Finds the inputs' memory, which a local function receives.
  Status find_memory() {
    const DTensor seen =
        local_map(layout_, {n_, n_}, DType::kBFloat16, inputs_, [this](LocalContext& local) {
          for (int k = 0; k < 2; ++k) {
            memory_[k] = reinterpret_cast<const std::byte*>(local.input<bfloat16>(k).data.data());
          }
          return absl::OkStatus();
        });
    TESSERA_RETURN_IF_ERROR(seen.await());
    TESSERA_ASSIGN_OR_RETURN(out_, gpu_.allocate(n_ * n_ * dtype_size(DType::kBFloat16)));
    TESSERA_ASSIGN_OR_RETURN(multiply_.workspace, gpu_.allocate(kWorkspaceBytes));
    return absl::OkStatus();
  }

  Client& client_;
  Gpu& gpu_;
  const Layout layout_;
  const int64_t n_;
  Multiply multiply_;
  std::vector<DTensor> inputs_;
  const std::byte* memory_[2] = {};
  std::byte* out_ = nullptr;
};

Status Products::check() {
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<bfloat16> local, give_local().to_host<bfloat16>());
  TESSERA_RETURN_IF_ERROR(gpu_.use());
  TESSERA_RETURN_IF_ERROR(give_bare());
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::byte> bare,
                           gpu_.read(out_, n_ * n_ * dtype_size(DType::kBFloat16)));
  const auto* const bare_values = reinterpret_cast<const bfloat16*>(bare.data());
  for (int64_t i = 0; i < n_ * n_; ++i) {
    if (local.data[i] == bare_values[i]) continue;
    return absl::InternalError(absl::StrCat("element ", i, " is ", float{local.data[i]},
                                            " through local_map, and ", float{bare_values[i]},
                                            " bare"));
  }
  for (int64_t sample = 0; sample < 64; ++sample) {
    const int64_t row = sample * 7919 % n_;
    const int64_t column = sample * 104729 % n_;
    float sum = 0;
    for (int64_t k = 0; k < n_; ++k) {
      sum += static_cast<float>(value_of(0, row * n_ + k) * value_of(1, k * n_ + column));
    }
    const float held{local.data[row * n_ + column]};
    if (held == float{bfloat16(sum)}) continue;
    return absl::InternalError(
        absl::StrCat("element [", row, ", ", column, "] is ", held, ", not ", sum));
  }
  return absl::OkStatus();
}

StatusOr<absl::Duration> Products::time_giving(int repeats, bool is_local) {
  TESSERA_RETURN_IF_ERROR(gpu_.use());
  TESSERA_RETURN_IF_ERROR(client_.sync_devices());
  TESSERA_RETURN_IF_ERROR(gpu_.wait());
  std::vector<DTensor> made;
  made.reserve(static_cast<size_t>(repeats));
  const absl::Time start = absl::Now();
  for (int i = 0; i < repeats; ++i) {
    if (is_local) {
      made.push_back(give_local());
    } else {
      TESSERA_RETURN_IF_ERROR(give_bare());
    }
  }
  absl::Time end = absl::Now();
  if (is_local) {
    TESSERA_ASSIGN_OR_RETURN(end, wait_issued(client_));
  }
  TESSERA_RETURN_IF_ERROR(client_.sync_devices());
  TESSERA_RETURN_IF_ERROR(gpu_.wait());
  return (end - start) / repeats;
}

StatusOr<absl::Duration> Products::time_doing(int repeats, bool is_local) {
  TESSERA_RETURN_IF_ERROR(gpu_.use());
  if (!is_local) {
    return gpu_.time(repeats, [this] { return give_bare(); });
  }
  TESSERA_RETURN_IF_ERROR(client_.sync_devices());
  TESSERA_RETURN_IF_ERROR(gpu_.wait());
  const absl::Time start = absl::Now();
  for (int i = 0; i < repeats; ++i) give_local();
  TESSERA_RETURN_IF_ERROR(wait_done(client_, gpu_));
  return (absl::Now() - start) / repeats;
}

StatusOr<std::pair<Times, Times>> measure(
    int rounds, const std::function<StatusOr<absl::Duration>(bool is_local)>& run) {
  const Contestant contestants[] = {{"bare", [&] { return run(false); }},
                                    {"local_map", [&] { return run(true); }}};
  TESSERA_ASSIGN_OR_RETURN(std::vector<Times> times, measure_in_turn(contestants, rounds));
  return std::make_pair(std::move(times[0]), std::move(times[1]));
}

Status measure_giving(Products& small, const ProductSizes& sizes, Report* report) {
  TESSERA_RETURN_IF_ERROR(small.check());
  TESSERA_ASSIGN_OR_RETURN(const auto times, measure(sizes.rounds, [&](bool is_local) {
                             return small.time_giving(sizes.small_repeats, is_local);
                           }));
  const auto& [bare, local] = times;
  const std::string what =
      absl::StrCat("to give a stream a product of ", sizes.small_rows, " cubed");
  const double over = median(local) - median(bare);
  report->rows.push_back({"dispatch", what + ", bare", bare, "", "", {}});
  report->rows.push_back({"dispatch", what + ", local_map", local, "",
                          absl::StrFormat("%.2f us over the bare call", over), bare});
  report->goals.push_back({"a product through local_map, at most 5 us over the bare call",
                           absl::StrFormat("%.2f us", over), true, over <= kMostMicrosecondsOver});
  return absl::OkStatus();
}

Status measure_doing(Products& large, const ProductSizes& sizes, Report* report) {
  TESSERA_RETURN_IF_ERROR(large.check());
  TESSERA_ASSIGN_OR_RETURN(const auto times, measure(sizes.rounds, [&](bool is_local) {
                             return large.time_doing(sizes.large_repeats, is_local);
                           }));
  const auto& [bare, local] = times;
  const double operations = 2.0 * static_cast<double>(sizes.large_rows) *
                            static_cast<double>(sizes.large_rows) *
                            static_cast<double>(sizes.large_rows);
  const auto rate = [&](const Times& of) {
    return absl::StrFormat("%.0f TFLOP/s", operations / (median(of) * 1e6));
  };
  const std::string what = absl::StrCat("product of bf16, ", sizes.large_rows, " cubed");
  const double share = median(bare) / median(local);
  report->rows.push_back({"products", what + ", bare", bare, rate(bare), "", {}});
  report->rows.push_back({"products", what + ", local_map", local, rate(local),
                          absl::StrFormat("%.3f of the bare call's rate", share), bare});
  report->goals.push_back(
      {absl::StrCat("a bf16 product of ", sizes.large_rows,
                    " cubed through local_map, at least 0.97 of the bare call's rate"),
       absl::StrFormat("%.3f", share), true, share >= kRateToReach});
  return absl::OkStatus();
}

}  // namespace

Status measure_products(const std::shared_ptr<const cuda::Libraries>& libraries,
                        const ProductSizes& sizes, Report* report) {
  ClientOptions options;
  options.device_type = DeviceType::kCuda;
  options.num_local_devices = 1;
  options.num_clients = 1;
  options.client_id = 0;
  TESSERA_ASSIGN_OR_RETURN(Client client, internal::connect(options, {.cuda = libraries}));
  {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu, Gpu::create(libraries->cuda, 0));
    TESSERA_ASSIGN_OR_RETURN(const auto small,
                             Products::create(client, *gpu, libraries->math, sizes.small_rows));
    TESSERA_RETURN_IF_ERROR(measure_giving(*small, sizes, report));
    TESSERA_ASSIGN_OR_RETURN(const auto large,
                             Products::create(client, *gpu, libraries->math, sizes.large_rows));
    TESSERA_RETURN_IF_ERROR(measure_doing(*large, sizes, report));
  }
  return client.shutdown();
}

}  // namespace tessera::benchmarks
