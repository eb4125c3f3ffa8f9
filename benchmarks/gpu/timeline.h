// SPDX-License-Identifier: Apache-2.0
//
// The host's time when a group of NCCL submits an all_gather to a stream. Measures bare calls with
// one additional part of a group's work, in the same rounds. Prints all calls of CUDA and of NCCL
// of one process, by thread and time.
#ifndef TESSERA_BENCHMARKS_GPU_TIMELINE_H_
#define TESSERA_BENCHMARKS_GPU_TIMELINE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"
#include "benchmarks/gpu/rounds.h"
#include "collectives/nccl/api.h"
#include "compute/cuda/math_api.h"
#include "tests/support/clients.h"

namespace tessera::benchmarks {

struct TimelineSizes {
  int64_t bytes = 1024;  // of each client
  int rounds = 15;
  int repeats = 50;      // in a row, of a round
  int warm_up = 50;      // before the operations of a timeline
  int operations = 300;  // of a timeline, in a row
};

// Opens the functions in a client's own process.
struct OpenApis {
  std::function<StatusOr<std::shared_ptr<const cuda::Libraries>>()> cuda;
  std::function<StatusOr<std::shared_ptr<nccl::Api>>()> nccl;
};

// Runs two clients of one device in the setting of `job`, and sets its hooks. If clients are
// processes, this process must not have used CUDA. Adds rows, and prints the timelines of client 0
// to stderr.
Status measure_timeline(testing::JobSpec job, const OpenApis& open, const TimelineSizes& sizes,
                        Report* report);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_TIMELINE_H_
