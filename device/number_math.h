// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic that threads of the host and kernels of GPUs share: sums and products that wrap, the
// quotient of floor_div(), and the values from which f16 and bf16 are rounded once.
//
// Pure functions. nvcc reads this header: it includes nothing but the language's headers.
#ifndef TESSERA_DEVICE_NUMBER_MATH_H_
#define TESSERA_DEVICE_NUMBER_MATH_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/kernel_body.h"

namespace tessera::kernels {

// Signed integers are computed as unsigned ones, which wrap.
template <class T>
TESSERA_KERNEL_BODY auto as_unsigned(T x) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<std::make_unsigned_t<T>>(x);
  } else {
    return x;
  }
}
template <class T>
TESSERA_KERNEL_BODY T wrapped_sum(T x, T y) {
  return static_cast<T>(as_unsigned(x) + as_unsigned(y));
}
template <class T>
TESSERA_KERNEL_BODY T wrapped_product(T x, T y) {
  return static_cast<T>(as_unsigned(x) * as_unsigned(y));
}

// Whether a number that is not NaN and not 0 has the other sign than b.
TESSERA_KERNEL_BODY bool is_against(double a, double b) {
  return (a < 0 && b > 0) || (a > 0 && b < 0);
}

// The largest integer that is not above the exact a / b, rounded to the type. The floor of the
// rounded quotient may be above it: 1 / 0.1 rounds to 10, and 0.1 in f32 is above 1/10, so the
// result is 9.
//   by 0            a / b: an infinity, or NaN of 0 and NaN
//   infinity by b   NaN, as its remainder is
//   a by infinity   0, or -1 where the signs differ
TESSERA_KERNEL_BODY double floor_quotient(double a, double b) {
  const double quotient = a / b;
  const double below = std::floor(quotient);
  // A quotient that is no integer has the same integer below it as the exact quotient, because
  // rounding keeps order. The sign of a - below * b, which is rounded once, is exact.
  const double rest = below == 0 ? a : std::fma(-below, b, a);
  const double found = below == quotient && is_against(rest, b) ? below - 1 : below;
  return a - a == 0 || b == 0 ? found : a - a;
}
// A quotient of two floats that is no integer differs from every integer by more than the rounding
// error of f64, up to 2^28. Beyond that the result has too few digits to show the difference.
TESSERA_KERNEL_BODY float floor_quotient(float a, float b) {
  const double below = std::floor(static_cast<double>(a) / static_cast<double>(b));
  const double found = below == 0 && is_against(a, b) ? -1 : below;
  return a - a == 0 || b == 0 ? static_cast<float>(found) : a - a;
}

// A number rounded to odd: the number itself where the type has it, else the neighbour whose last
// bit is 1. Rounding the result to nearest, to a type with at least two digits less, gives the same
// as rounding the number itself. Rounding to nearest twice does not (to f16 by way of f32,
// 1.00048828125 + 1e-12 would become the middle of two numbers, and then the lower one).
TESSERA_KERNEL_BODY float odd_float(double x) {
  const float nearest = static_cast<float>(x);
  const double back = static_cast<double>(nearest);
  if (back == x || x != x) return nearest;
  uint32_t bits;
  memcpy(&bits, &nearest, sizeof bits);
  // Towards 0: infinity becomes the largest number, and no bits of 0 are taken.
  if (std::fabs(back) > std::fabs(x)) --bits;
  bits |= 1;
  float odd;
  memcpy(&odd, &bits, sizeof odd);
  return odd;
}
TESSERA_KERNEL_BODY double odd_double(uint64_t x) {
  if (x >> 53 == 0) return static_cast<double>(x);
  // The upper 53 bits; the last of them also represents the bits below.
  const uint64_t rest = x & 0x7ff;
  return static_cast<double>((x - rest) | (rest != 0 ? uint64_t{0x800} : 0));
}
TESSERA_KERNEL_BODY double odd_double(int64_t x) {
  return x < 0 ? -odd_double(0 - static_cast<uint64_t>(x)) : odd_double(static_cast<uint64_t>(x));
}
// The value from which f16 or bf16 is rounded.
TESSERA_KERNEL_BODY float odd_float(int64_t x) { return odd_float(odd_double(x)); }
TESSERA_KERNEL_BODY float odd_float(float x) { return x; }

}  // namespace tessera::kernels

#endif  // TESSERA_DEVICE_NUMBER_MATH_H_
