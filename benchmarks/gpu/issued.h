// SPDX-License-Identifier: Apache-2.0
//
// When the stream of a client's only device has been given, or has done, all that was called for.
#ifndef TESSERA_BENCHMARKS_GPU_ISSUED_H_
#define TESSERA_BENCHMARKS_GPU_ISSUED_H_

#include "absl/time/time.h"
#include "base/status.h"
#include "benchmarks/gpu/gpu.h"
#include "dtensor/client.h"

namespace tessera::benchmarks {

// Returns when the issuing thread has given the CUDA stream everything; when that was.
StatusOr<absl::Time> wait_issued(const Client& client);

// Returns when the GPU has done it, without the naps of a wait for a tensor: `gpu` waits behind an
// event of the device's stream.
Status wait_done(const Client& client, Gpu& gpu);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_ISSUED_H_
