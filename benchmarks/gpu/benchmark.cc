// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/benchmark.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "benchmarks/gpu/collectives.h"
#include "benchmarks/gpu/gpu.h"
#include "benchmarks/gpu/kernels.h"
#include "benchmarks/gpu/local_products.h"
#include "benchmarks/gpu/timeline.h"
#include "collectives/nccl/fake/fake_nccl.h"
#include "collectives/nccl/gpu_sharing.h"
#include "collectives/nccl/interface.h"
#include "collectives/nccl/open_api.h"
#include "compute/cuda/fake/fake_math.h"
#include "compute/cuda/open_libraries.h"
#include "device/cuda/fake/fake_cuda.h"
#include "device/cuda/open_api.h"
#include "tests/support/clients.h"
#include "tests/support/forked.h"

namespace tessera::benchmarks {
namespace {

// Two clients: processes that share a GPU, or threads on the fakes.
Status collectives(const BenchmarkOptions& options, Report* report) {
  testing::JobSpec job;
  job.hooks.share_gpus = true;
  if (!options.is_on_fake) {
    job.setting = testing::Setting::kProcesses;
    job.deadline = absl::Minutes(4);
    return measure_collectives(job, {.rounds = options.rounds}, report);
  }
  const auto cuda = cuda::FakeCuda::create();
  job.hooks.cuda = cuda::fake_libraries(cuda);
  job.hooks.nccl = nccl::FakeNccl::create(cuda, {.shares_gpus = true});
  return measure_collectives(job, {.rounds = options.rounds, .repeats = 5}, report);
}

Status kernels(const BenchmarkOptions& options, Report* report) {
  std::shared_ptr<cuda::Api> api;
  KernelSizes sizes = {.rounds = options.rounds};
  if (options.is_on_fake) {
    api = cuda::FakeCuda::create();
    sizes = {.payload_bytes = 64 << 10, .rounds = options.rounds, .repeats = 1};
  } else {
    TESSERA_ASSIGN_OR_RETURN(api, cuda::open_api());
  }
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu, Gpu::create(api, 0));
  return measure_kernels(*gpu, sizes, report);
}

Status products(const BenchmarkOptions& options, Report* report) {
  if (options.is_on_fake) {
    return measure_products(cuda::fake_libraries(cuda::FakeCuda::create()),
                            {.small_rows = 16,
                             .large_rows = 48,
                             .rounds = options.rounds,
                             .small_repeats = 5,
                             .large_repeats = 2},
                            report);
  }
  TESSERA_ASSIGN_OR_RETURN(const auto libraries, cuda::open_libraries());
  return measure_products(libraries, {.rounds = options.rounds}, report);
}

// Runs two clients, as collectives() does. A client that is given NCCL does not apply this
// machine's settings, so this function applies them.
Status timeline(const BenchmarkOptions& options, Report* report) {
  testing::JobSpec job;
  job.hooks.share_gpus = true;
  if (!options.is_on_fake) {
    job.setting = testing::Setting::kProcesses;
    job.deadline = absl::Minutes(4);
    const auto open_cuda = [] {
      nccl::choose_interface();
      nccl::share_gpus_among_processes();
      return cuda::open_libraries();
    };
    return measure_timeline(job, {open_cuda, [] { return nccl::open_api(); }},
                            {.rounds = options.rounds}, report);
  }
  const auto cuda = cuda::FakeCuda::create();
  const auto nccl = nccl::FakeNccl::create(cuda, {.shares_gpus = true});
  return measure_timeline(
      job, {[cuda] { return cuda::fake_libraries(cuda); }, [nccl] { return nccl; }},
      {.rounds = options.rounds, .repeats = 5, .warm_up = 2, .operations = 10}, report);
}

struct Part {
  const char* name;
  Status (*run)(const BenchmarkOptions&, Report*);
  // Explains the others, and has no goal.
  bool is_on_request = false;
};

}  // namespace

Status find_gpu() {
  return testing::run_isolated(absl::Minutes(1), [] { return cuda::open_api().status(); });
}

Status run_benchmark(const BenchmarkOptions& options, Report* report) {
  // The first part forks, which a process that has used CUDA must not do.
  const Part parts[] = {{"collectives", collectives},
                        {"kernels", kernels},
                        {"products", products},
                        {"timeline", timeline, /*is_on_request=*/true}};
  const auto is_wanted = [&](const Part& part) {
    return options.only == part.name || (options.only.empty() && !part.is_on_request);
  };
  if (std::none_of(std::begin(parts), std::end(parts), is_wanted)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", options.only,
                     "\" is not a part; there are collectives, kernels, products, timeline"));
  }
  report->setting = {{"on", options.is_on_fake ? "the fakes: these times mean nothing" : "a GPU"},
                     {"date", absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone())},
                     {"rounds", absl::StrCat(options.rounds)}};
  for (const Part& part : parts) {
    if (!is_wanted(part)) continue;
    const Status status = part.run(options, report);
    if (absl::IsUnimplemented(status)) {
      report->goals.push_back({part.name, status.ToString()});
      continue;
    }
    TESSERA_RETURN_IF_ERROR(with_context(status, part.name));
  }
  return absl::OkStatus();
}

}  // namespace tessera::benchmarks
