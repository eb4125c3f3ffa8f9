// SPDX-License-Identifier: Apache-2.0
//
// gpu_benchmark: kernels, dispatch and products on a GPU, each beside the bare call of CUDA, NCCL
// or cuBLASLt in the same rounds (benchmarks/README.md).
//
//   gpu_benchmark [--json=FILE] [--rounds=15] [--fake]
//                 [--only=collectives|kernels|products|timeline]
//   gpu_benchmark --check      only checks for a GPU
//
// Exit status 3 if there is no GPU, 1 if a part failed or had a wrong result. A goal that was not
// reached is not a failure; the output says so.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "benchmarks/gpu/benchmark.h"

namespace tessera::benchmarks {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUse = 2;
constexpr int kNoGpu = 3;

int fail(const Status& status, int exit_status) {
  std::fprintf(stderr, "gpu_benchmark: %s\n", status.ToString().c_str());
  return exit_status;
}

int run(int argc, char** argv) {
  BenchmarkOptions options;
  std::string json;
  bool is_check = false;
  for (int i = 1; i < argc; ++i) {
    absl::string_view flag = argv[i];
    if (absl::ConsumePrefix(&flag, "--json=")) {
      json = std::string(flag);
    } else if (absl::ConsumePrefix(&flag, "--only=")) {
      options.only = std::string(flag);
    } else if (flag == "--check") {
      is_check = true;
    } else if (flag == "--fake") {
      options.is_on_fake = true;
    } else if (!absl::ConsumePrefix(&flag, "--rounds=") ||
               !absl::SimpleAtoi(flag, &options.rounds) || options.rounds < 1) {
      std::fprintf(stderr,
                   "usage: gpu_benchmark [--json=FILE] [--rounds=N] "
                   "[--only=collectives|kernels|products|timeline] [--fake]\n"
                   "       gpu_benchmark --check\n");
      return kWrongUse;
    }
  }
  if (is_check || !options.is_on_fake) {
    const Status gpu = find_gpu();
    // A GPU that does not answer, or that kills the process, counts as present.
    const bool is_missing = absl::IsFailedPrecondition(gpu) || absl::IsUnimplemented(gpu);
    if (!gpu.ok()) return fail(gpu, is_missing ? kNoGpu : kFailed);
    if (is_check) return 0;
  }
  Report report;
  const Status status = run_benchmark(options, &report);
  // Measurements before a failure are printed too.
  if (!report.rows.empty() || !report.goals.empty())
    std::fputs(report.to_markdown().c_str(), stdout);
  if (!json.empty() && !report.rows.empty()) std::ofstream(json) << report.to_json();
  return status.ok() ? 0 : fail(status, kFailed);
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) { return tessera::benchmarks::run(argc, argv); }
