// SPDX-License-Identifier: Apache-2.0
//
// All parts of the benchmark for GPUs, on a GPU of this machine or, to see that they run, on the
// fakes.
#ifndef TESSERA_BENCHMARKS_GPU_BENCHMARK_H_
#define TESSERA_BENCHMARKS_GPU_BENCHMARK_H_

#include <string>

#include "base/status.h"
#include "benchmarks/gpu/rounds.h"

namespace tessera::benchmarks {

struct BenchmarkOptions {
  bool is_on_fake = false;  // small, and its times mean nothing
  int rounds = 15;
  // "collectives", "kernels", "products" or "timeline"; empty: all but the last.
  std::string only = {};
};

// OK where a process of this machine can use a GPU; the error of cuda::open_api() where there is
// none; Aborted where it does not answer. Leaves CUDA alone in this process.
Status find_gpu();

// The first error of a part that ran and failed, or was wrong. A part whose library is not there
// leaves its goals unmeasured. InvalidArgument for a part that there is not.
// find_gpu() is OK, unless it runs on the fakes. This process must not have used CUDA before.
Status run_benchmark(const BenchmarkOptions& options, Report* report);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_BENCHMARK_H_
