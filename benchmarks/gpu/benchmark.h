// SPDX-License-Identifier: Apache-2.0
//
// All parts of the benchmark for GPUs, on a GPU of this machine. They also run on the fakes, to
// test them.
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

// OK if a process of this machine can use a GPU. Else the error of cuda::open_api(), or Aborted if
// the GPU does not answer. Does not use CUDA in this process.
Status find_gpu();

// Returns the first error of a part that failed or had a wrong result. The goals of a part whose
// library is missing stay unmeasured. InvalidArgument for an unknown part. Requires find_gpu() to
// be OK, unless the fakes are used. This process must not have used CUDA before.
Status run_benchmark(const BenchmarkOptions& options, Report* report);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_BENCHMARK_H_
