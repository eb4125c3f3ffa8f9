// SPDX-License-Identifier: Apache-2.0
//
// The kernels of math.h on the host: what the fake does for MathApi::launch().
#ifndef TESSERA_COMPUTE_CUDA_FAKE_RUN_MATH_H_
#define TESSERA_COMPUTE_CUDA_FAKE_RUN_MATH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "compute/cuda/math.h"

namespace tessera::cuda {

// For each kernel:
//   run()      runs all items, one after another
//   touched()  the bytes that the kernel reads and writes, as spans from the first to the last one:
//              (begin, number of bytes)
//   invalid()  why a GPU would not run it: no items, misaligned vectors. Empty: it would
#define TESSERA_FAKE_(Value)                                                      \
  void run(const Value& value);                                                   \
  std::vector<std::pair<const std::byte*, uint64_t>> touched(const Value& value); \
  std::string invalid(const Value& value);
TESSERA_MATH_KERNELS_(TESSERA_FAKE_)
#undef TESSERA_FAKE_

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_FAKE_RUN_MATH_H_
