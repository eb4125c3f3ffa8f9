// SPDX-License-Identifier: Apache-2.0
//
// cuda_kernels: how fast the kernels for GPUs are, beside a device-to-device copy of the same run.
//
//   $ bazel-bin/benchmarks/cuda_kernels
//   what                       bytes moved     time     GB/s    of copy
//   cudaMemcpyAsync               2.00 GiB   1.05 ms    2045     1.00
//   box copy, runs of 64 B        2.00 GiB   ...
//
// Bytes moved are those read and those written. Times are medians of single launches, each from an
// idle GPU to an idle GPU by the host's clock, so that they hold a few microseconds of launch.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/kernel_plan.h"
#include "device/cuda/open_api.h"

namespace tessera::cuda {
namespace {

constexpr int kRounds = 20;

class Benchmark {
 public:
  static StatusOr<std::unique_ptr<Benchmark>> create() {
    TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Api> api, open_api());
    std::unique_ptr<Benchmark> benchmark(new Benchmark());
    TESSERA_ASSIGN_OR_RETURN(benchmark->queue_, CudaQueue::create(api, 0));
    return benchmark;
  }

  // Memory of the GPU, for as long as the program runs.
  StatusOr<std::byte*> memory(int64_t size_bytes) {
    return queue_->api()->allocate(static_cast<uint64_t>(size_bytes));
  }

  // The median of the time that the GPU takes for what `give` gives it.
  StatusOr<absl::Duration> time(const std::function<Status(Api&, StreamHandle)>& give) {
    std::vector<absl::Duration> times;
    for (int round = -2; round < kRounds; ++round) {
      TESSERA_RETURN_IF_ERROR(queue_->wait_done(absl::InfiniteFuture()));
      const absl::Time start = absl::Now();
      TESSERA_RETURN_IF_ERROR(give(*queue_->api(), queue_->handle()));
      TESSERA_RETURN_IF_ERROR(queue_->wait_done(absl::InfiniteFuture()));
      if (round >= 0) times.push_back(absl::Now() - start);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  // Times it and prints a row; the first row is what the others are compared with.
  Status row(const std::string& what, int64_t bytes_moved,
             const std::function<Status(Api&, StreamHandle)>& give) {
    TESSERA_ASSIGN_OR_RETURN(const absl::Duration time, this->time(give));
    const double rate = static_cast<double>(bytes_moved) / absl::ToDoubleNanoseconds(time);
    if (copy_rate_ == 0) copy_rate_ = rate;
    std::printf("%-32s %10.1f MiB %10.1f us %8.0f GB/s %6.2f\n", what.c_str(),
                static_cast<double>(bytes_moved) / (1 << 20), absl::ToDoubleMicroseconds(time),
                rate, rate / copy_rate_);
    return absl::OkStatus();
  }

 private:
  Benchmark() = default;
  std::unique_ptr<CudaQueue> queue_;
  double copy_rate_ = 0;  // GB/s
};

// Half of each row of a matrix, into a dense one.
Status box_copies(Benchmark& benchmark, std::byte* from, std::byte* to, int64_t size_bytes) {
  for (const int64_t run : {4, 16, 64, 256, 4096, 65536}) {
    const int64_t rows = size_bytes / (2 * run);
    const Box whole = {{0, 0}, {rows, 2 * run}};
    const Box half = {{0, run}, {rows, run}};
    CopyPlan plan;
    add_copy(half, from, whole, to, half, 1, &plan);
    TESSERA_RETURN_IF_ERROR(benchmark.row(absl::StrCat("box copy, runs of ", run, " B"),
                                          2 * rows * run,
                                          [&](Api& api, StreamHandle stream) -> Status {
                                            for (const CopyBatch& batch : plan.batches) {
                                              TESSERA_RETURN_IF_ERROR(api.launch(batch, stream));
                                            }
                                            return absl::OkStatus();
                                          }));
  }
  return absl::OkStatus();
}

Status reductions(Benchmark& benchmark, int64_t size_bytes) {
  for (const int num_terms : {2, 4, 8}) {
    std::vector<const std::byte*> terms;
    for (int k = 0; k < num_terms; ++k) {
      TESSERA_ASSIGN_OR_RETURN(const std::byte* term, benchmark.memory(size_bytes / 8));
      terms.push_back(term);
    }
    TESSERA_ASSIGN_OR_RETURN(std::byte * out, benchmark.memory(size_bytes / 8));
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const std::vector<Reduce> plan =
          plan_reduce(dtype, ReduceOp::kSum, terms, absl::MakeConstSpan(&out, 1),
                      size_bytes / 8 / dtype_size(dtype));
      TESSERA_RETURN_IF_ERROR(benchmark.row(
          absl::StrCat("sum of ", num_terms, " terms of ", dtype_name(dtype)),
          (num_terms + 1) * size_bytes / 8, [&](Api& api, StreamHandle stream) -> Status {
            for (const Reduce& reduce : plan) TESSERA_RETURN_IF_ERROR(api.launch(reduce, stream));
            return absl::OkStatus();
          }));
    }
  }
  return absl::OkStatus();
}

Status run() {
  constexpr int64_t kBytes = int64_t{1} << 30;
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Benchmark> benchmark, Benchmark::create());
  TESSERA_ASSIGN_OR_RETURN(std::byte * from, benchmark->memory(kBytes));
  TESSERA_ASSIGN_OR_RETURN(std::byte * to, benchmark->memory(kBytes));
  TESSERA_RETURN_IF_ERROR(benchmark->row(
      "cudaMemcpyAsync", kBytes,
      [&](Api& api, StreamHandle stream) { return api.copy(to, from, kBytes / 2, stream); }));
  TESSERA_RETURN_IF_ERROR(box_copies(*benchmark, from, to, kBytes));
  TESSERA_RETURN_IF_ERROR(reductions(*benchmark, kBytes));
  const float zero = 0;
  TESSERA_RETURN_IF_ERROR(benchmark->row("fill of f32", kBytes, [&](Api& api, StreamHandle stream) {
    return api.launch(plan_fill(DType::kFloat32, &zero, to, kBytes / 4), stream);
  }));
  // What a launch costs by itself.
  return benchmark->row("fill of 16 B", 16, [&](Api& api, StreamHandle stream) {
    return api.launch(plan_fill(DType::kFloat32, &zero, to, 4), stream);
  });
}

}  // namespace
}  // namespace tessera::cuda

int main() {
  const tessera::Status status = tessera::cuda::run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "cuda_kernels: %s\n", status.ToString().c_str());
  return 1;
}
