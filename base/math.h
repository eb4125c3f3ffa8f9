// SPDX-License-Identifier: Apache-2.0
//
// Exact integer arithmetic for sizes and boundaries: nothing here overflows silently.
#ifndef TESSERA_BASE_MATH_H_
#define TESSERA_BASE_MATH_H_

#include <cstdint>
#include <limits>
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

// a + b and, of non-negative numbers, a * b; the nearest int64 where the result exceeds 64 bits.
constexpr int64_t saturating_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return a < 0 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
}
constexpr int64_t saturating_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  if (!__builtin_mul_overflow(a, b, &product)) return product;
  return std::numeric_limits<int64_t>::max();
}
// The value, or the largest int64 where it exceeds that. For bytes that are reported and never used
// as sizes of memory.
constexpr int64_t saturated(__int128 value) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  return value > kMax ? kMax : static_cast<int64_t>(value);
}

}  // namespace tessera

#endif  // TESSERA_BASE_MATH_H_
