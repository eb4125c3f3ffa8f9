// SPDX-License-Identifier: Apache-2.0
#include "compute/cpu/optimizer.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "Eigen/Core"
#include "base/check.h"
#include "compute/cpu/loops.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kBlock = 512;

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Eigen::half> || std::is_same_v<T, Eigen::bfloat16>;
template <class T>
constexpr HalfType kHalfType =
    std::is_same_v<T, Eigen::half> ? HalfType::kFloat16 : HalfType::kBFloat16;

// Elements from and to an array, as they are computed.
template <class T, class Wide>
void load(const std::byte* array, int64_t first, int64_t n, Wide* out) {
  const std::byte* const from = array + first * sizeof(T);
  if constexpr (kIsHalf<T>) {
    loops().widen(kHalfType<T>, reinterpret_cast<const uint16_t*>(from), out, n);
  } else {
    std::memcpy(out, from, n * sizeof(T));
  }
}
template <class T, class Wide>
void store(const Wide* values, int64_t first, int64_t n, std::byte* array) {
  std::byte* const to = array + first * sizeof(T);
  if constexpr (kIsHalf<T>) {
    loops().narrow(kHalfType<T>, values, reinterpret_cast<uint16_t*>(to), n);
  } else {
    std::memcpy(to, values, n * sizeof(T));
  }
}

// Block by block: a loop over copies needs no care where old and new arrays are the same memory,
// and the copies stay in the cache.
template <class T>
void step_of(const OptimizerStep& step, const StepArrays& arrays, int64_t num_elements) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  constexpr LoopType kType = std::is_same_v<T, double> ? LoopType::kFloat64 : LoopType::kFloat32;
  const int num_arrays = 1 + num_step_slots(step.rule);
  Wide gradient[kBlock];
  Wide state[1 + kMaxStepSlots][kBlock];
  for (int64_t first = 0; first < num_elements; first += kBlock) {
    const int64_t n = std::min(kBlock, num_elements - first);
    load<T>(arrays.gradient, first, n, gradient);
    load<T>(arrays.from[0], first, n, state[0]);
    for (int k = 1; k < num_arrays; ++k) load<Wide>(arrays.from[k], first, n, state[k]);
    loops().optimizer_step(kType, step, gradient, state[0], state[1], state[2], n);
    store<T>(state[0], first, n, arrays.to[0]);
    for (int k = 1; k < num_arrays; ++k) store<Wide>(state[k], first, n, arrays.to[k]);
  }
}

}  // namespace

void optimizer_step(const OptimizerStep& step, DType dtype, const StepArrays& arrays,
                    int64_t num_elements) {
  switch (dtype) {
    case DType::kFloat16:
      return step_of<Eigen::half>(step, arrays, num_elements);
    case DType::kBFloat16:
      return step_of<Eigen::bfloat16>(step, arrays, num_elements);
    case DType::kFloat32:
      return step_of<float>(step, arrays, num_elements);
    case DType::kFloat64:
      return step_of<double>(step, arrays, num_elements);
    default:
      TESSERA_CHECK(false, "optimizers change floats");
  }
}

}  // namespace tessera::kernels
