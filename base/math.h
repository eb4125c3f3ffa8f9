// SPDX-License-Identifier: Apache-2.0
//
// Exact integer arithmetic for sizes and boundaries: nothing here overflows silently.
#ifndef TESSERA_BASE_MATH_H_
#define TESSERA_BASE_MATH_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"

namespace tessera {

// ceil(k * n / d) for 0 <= k <= d, d >= 1, n >= 0. The product is taken in 128 bits, so that any
// n and k of 63 bits are exact.
constexpr int64_t ceil_mul_div(int64_t k, int64_t n, int64_t d) {
  // Planning asks this for each device; a division of 128 bits takes ten times as long.
  if (((k | n) >> 31) == 0) return (k * n + d - 1) / d;
  const __int128 product = static_cast<__int128>(k) * n;
  return static_cast<int64_t>((product + d - 1) / d);
}

// The product of non-negative factors (1 if there are none), or nothing where it exceeds int64.
std::optional<int64_t> checked_product(absl::Span<const int64_t> factors);

}  // namespace tessera

#endif  // TESSERA_BASE_MATH_H_
