// SPDX-License-Identifier: Apache-2.0
//
// Where the host's time goes when a group of NCCL gives a stream an all_gather: bare calls with one
// more of the things that a group does, in the same rounds, and all calls of CUDA and of NCCL of
// one process, by thread and time.
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

// How a client opens the functions, in its own process.
struct OpenApis {
  std::function<StatusOr<std::shared_ptr<const cuda::Libraries>>()> cuda;
  std::function<StatusOr<std::shared_ptr<nccl::Api>>()> nccl;
};

// Runs two clients of one device in the setting of `job`, whose hooks it sets. This process must
// not have used CUDA, where clients are processes. Adds rows, and prints the timelines of client 0
// to stderr.
Status measure_timeline(testing::JobSpec job, const OpenApis& open, const TimelineSizes& sizes,
                        Report* report);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_TIMELINE_H_
