// SPDX-License-Identifier: Apache-2.0
//
// The kernels for GPUs beside a device-to-device copy of as many bytes, in the same rounds.
#ifndef TESSERA_BENCHMARKS_GPU_KERNELS_H_
#define TESSERA_BENCHMARKS_GPU_KERNELS_H_

#include <cstdint>

#include "base/status.h"
#include "benchmarks/gpu/gpu.h"
#include "benchmarks/gpu/rounds.h"

namespace tessera::benchmarks {

struct KernelSizes {
  // The bytes that a copy moves; a multiple of 64 KiB. Two blocks of twice this size are allocated.
  int64_t payload_bytes = int64_t{512} << 20;
  int rounds = 15;
  int repeats = 4;  // launches from idle to idle
};

// Adds rows, and the goal that packing, unpacking and strided copies of runs of 64 bytes or more
// reach 80 % of the copy's rate. Every kernel's result is checked before it is measured.
Status measure_kernels(Gpu& gpu, const KernelSizes& sizes, Report* report);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_KERNELS_H_
