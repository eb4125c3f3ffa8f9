// SPDX-License-Identifier: Apache-2.0
//
// The kernels of operations on the host, for run_kernel.h.
#ifndef TESSERA_DEVICE_CUDA_FAKE_RUN_MATH_H_
#define TESSERA_DEVICE_CUDA_FAKE_RUN_MATH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/math.h"

namespace tessera::cuda {

// As the functions of run_kernel.h, for each kernel of math.h.
#define TESSERA_FAKE_(Value)                                                      \
  void run(const Value& value);                                                   \
  std::vector<std::pair<const std::byte*, uint64_t>> touched(const Value& value); \
  std::string invalid(const Value& value);
TESSERA_MATH_KERNELS_(TESSERA_FAKE_)
#undef TESSERA_FAKE_

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_FAKE_RUN_MATH_H_
