// SPDX-License-Identifier: Apache-2.0
//
// The host's cost of submitting a collective between two clients to a stream, beside the bare call
// of NCCL. Rates are not measured: clients that share a GPU send through sockets.
#ifndef TESSERA_BENCHMARKS_GPU_COLLECTIVES_H_
#define TESSERA_BENCHMARKS_GPU_COLLECTIVES_H_

#include <cstdint>

#include "base/status.h"
#include "benchmarks/gpu/rounds.h"
#include "tests/support/clients.h"

namespace tessera::benchmarks {

struct CollectiveSizes {
  int64_t bytes = 1024;  // of each client
  int rounds = 15;
  int repeats = 50;  // in a row, before the caller waits
};

// Runs two clients of one device in the setting of `job`, whose options may have the fakes. If
// clients are processes, this process must not have used CUDA. Adds rows, and the goal of at most 5
// us more than the bare call. Results are checked before they are measured.
Status measure_collectives(testing::JobSpec job, const CollectiveSizes& sizes, Report* report);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_COLLECTIVES_H_
