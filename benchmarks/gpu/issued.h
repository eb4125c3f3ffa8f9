// SPDX-License-Identifier: Apache-2.0
//
// Waits until all calls of a client's only device are submitted to its stream, or done by it.
#ifndef TESSERA_BENCHMARKS_GPU_ISSUED_H_
#define TESSERA_BENCHMARKS_GPU_ISSUED_H_

#include "absl/time/time.h"
#include "base/status.h"
#include "benchmarks/gpu/gpu.h"
#include "dtensor/client.h"

namespace tessera::benchmarks {

// Returns the time when the issuing thread had submitted everything to the CUDA stream.
StatusOr<absl::Time> wait_issued(const Client& client);

// Returns when the GPU has done everything, without the pauses of a wait for a tensor: `gpu` waits
// for an event of the device's stream.
Status wait_done(const Client& client, Gpu& gpu);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_ISSUED_H_
