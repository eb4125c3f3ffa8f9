// SPDX-License-Identifier: Apache-2.0
//
// Kernels on the host: the implementation of Api::launch() in the fake.
#ifndef TESSERA_DEVICE_CUDA_FAKE_RUN_KERNEL_H_
#define TESSERA_DEVICE_CUDA_FAKE_RUN_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/api.h"

namespace tessera::cuda {

// Runs all items, one after another.
void run_kernel(const Kernel& kernel);

// The bytes that the kernel reads and writes, as spans from the first to the last one: (begin,
// number of bytes).
std::vector<std::pair<const std::byte*, uint64_t>> touched_bytes(const Kernel& kernel);

// The reason why a GPU would not run it: no items, misaligned vectors, too many terms. Empty: it
// would.
std::string why_invalid(const Kernel& kernel);

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_FAKE_RUN_KERNEL_H_
