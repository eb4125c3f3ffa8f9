// SPDX-License-Identifier: Apache-2.0
//
// The mathematics of random numbers, which threads of the host and kernels of GPUs have in common:
// Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011,
// and what makes distributions of its words. tests/facts/random.md has the exact mapping.
//
// Pure functions. nvcc reads this header: it includes nothing but the language's headers.
#ifndef TESSERA_COMPUTE_RANDOM_MATH_H_
#define TESSERA_COMPUTE_RANDOM_MATH_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "device/kernel_body.h"

namespace tessera::kernels {

inline constexpr int kPhiloxRounds = 10;
inline constexpr uint32_t kPhiloxMultiplier0 = 0xd2511f53;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xcd9e8d57;
// The amounts by which the words of a key grow between rounds.
inline constexpr uint32_t kPhiloxWeyl0 = 0x9e3779b9;
inline constexpr uint32_t kPhiloxWeyl1 = 0xbb67ae85;

// The upper half of a product.
TESSERA_KERNEL_BODY uint64_t high_product(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

TESSERA_KERNEL_BODY void philox_round(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3,
                                      uint32_t key0, uint32_t key1) {
  const uint64_t product0 = uint64_t{kPhiloxMultiplier0} * c0;
  const uint64_t product1 = uint64_t{kPhiloxMultiplier1} * c2;
  c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
  c1 = static_cast<uint32_t>(product1);
  c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
  c3 = static_cast<uint32_t>(product0);
}

// A counter, or a block: what the counter becomes.
struct PhiloxWords {
  uint32_t words[4];
};
TESSERA_KERNEL_BODY PhiloxWords philox_words(PhiloxWords counter, uint32_t key0, uint32_t key1) {
  uint32_t* const c = counter.words;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    philox_round(c[0], c[1], c[2], c[3], key0, key1);
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return counter;
}

// a b, and a b + c: each operation is rounded by itself, which gives the same bits on every
// instruction set, and on GPUs. Needed where a product that is not exact is added to something.
TESSERA_KERNEL_BODY double times(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
TESSERA_KERNEL_BODY double times_plus(double a, double b, double c) { return times(a, b) + c; }
// c[0] + c[1] x + c[2] x^2 + ...
template <int kSize>
TESSERA_KERNEL_BODY double power_series(double x, const double (&c)[kSize]) {
  double value = c[kSize - 1];
  for (int k = kSize - 2; k >= 0; --k) value = times_plus(value, x, c[k]);
  return value;
}

TESSERA_KERNEL_BODY uint64_t bits_of_double(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
TESSERA_KERNEL_BODY double double_of_bits(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
// An integer below 2^52: the bits of 2^52 plus it, less 2^52.
TESSERA_KERNEL_BODY double double_of_52_bits(uint64_t value) {
  return double_of_bits(0x4330000000000000 | value) - 0x1p52;
}

// The open units of random numbers: never 0 or 1.
TESSERA_KERNEL_BODY double open_unit_of_word(uint32_t word) {
  return double_of_bits(0x3ff0000000000000 | uint64_t{word >> 9} << 29) - (1 - 0x1p-24);
}
TESSERA_KERNEL_BODY double open_unit_of_words(uint64_t words) {
  return double_of_bits(0x3ff0000000000000 | words >> 12) - (1 - 0x1p-53);
}

// The functions below have no branches, so that compilers may use vectors. Their polynomials are
// those of fdlibm (Sun Microsystems, 1993), whose errors are below 1 ulp.

// The natural logarithm of a positive number that is not subnormal: x = 2^k (1 + f) with 1 + f from
// sqrt(1/2) to sqrt(2), and log(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2)), where s = f / (2 + f).
TESSERA_KERNEL_BODY double log_of(double x) {
  constexpr uint64_t kRoot = 0x3fe6a09e00000000;  // sqrt(1/2)
  constexpr double kR[] = {6.666666666666735130e-01, 3.999999999940941908e-01,
                           2.857142874366239149e-01, 2.222219843214978396e-01,
                           1.818357216161805012e-01, 1.531383769920937332e-01,
                           1.479819860511658591e-01};
  const uint64_t shifted = bits_of_double(x) + (0x3ff0000000000000 - kRoot);
  const double k = double_of_52_bits(shifted >> 52) - 1023;
  const double f = double_of_bits((shifted & 0x000fffffffffffff) + kRoot) - 1;
  const double half_square = times(0.5 * f, f);
  const double s = f / (2 + f);
  const double square = s * s;
  const double rest = times_plus(square, power_series(square, kR), half_square);
  const double low =
      times_plus(s, rest, times(k, 1.90821492927058770002e-10));  // k (ln 2 - high part)
  return times_plus(k, 6.93147180369123816490e-01, low - half_square + f);
}
// Sine and cosine of an angle from -pi/4 to pi/4.
TESSERA_KERNEL_BODY double sin_of(double x) {
  constexpr double kS[] = {-1.66666666666666324348e-01, 8.33333333332248946124e-03,
                           -1.98412698298579493134e-04, 2.75573137070700676789e-06,
                           -2.50507602534068634195e-08, 1.58969099521155010221e-10};
  const double square = x * x;
  return times_plus(square * x, power_series(square, kS), x);
}
TESSERA_KERNEL_BODY double cos_of(double x) {
  constexpr double kC[] = {4.16666666666666019037e-02, -1.38888888888741095749e-03,
                           2.48015872894767294178e-05, -2.75573143513906633035e-07,
                           2.08757232129817482790e-09, -1.13596475577881948265e-11};
  const double square = x * x;
  const double half = 0.5 * square;
  const double near = 1 - half;
  // 1 - near - half is what the subtraction rounded off.
  return near + times_plus(square * square, power_series(square, kC), 1 - near - half);
}

// Box and Muller 1958: of two numbers in (0, 1) two normal numbers. The angle is reduced exactly,
// so that small results are accurate.
struct NormalPair {
  double even;
  double odd;
};
TESSERA_KERNEL_BODY NormalPair normal_pair(double radius_unit, double turns) {
  const double radius = std::sqrt(-2 * log_of(radius_unit));
  // 2^52 + 2^51 leaves units of 1 in the last bits of the sum: the nearest integer.
  const double sum = 4 * turns + 0x1.8p52;  // the product is exact
  const uint64_t quarter = bits_of_double(sum);
  const double angle = 2 * 3.14159265358979323846 * (turns - (sum - 0x1.8p52) / 4);
  const uint64_t sine = bits_of_double(sin_of(angle));
  const uint64_t cosine = bits_of_double(cos_of(angle));
  // Turned by the quarters: each odd one swaps the two, and two of them change the signs.
  const uint64_t swaps = 0 - (quarter & 1);
  const uint64_t even = (cosine & ~swaps) | (sine & swaps);
  const uint64_t odd = (sine & ~swaps) | (cosine & swaps);
  return {radius * double_of_bits(even ^ ((quarter + 1) & 2) << 62),
          radius * double_of_bits(odd ^ (quarter & 2) << 62)};
}

TESSERA_KERNEL_BODY double polynomial_of(double x, const double (&coefficients)[8]) {
  double value = 0;
  for (int k = 7; k >= 0; --k) value = value * x + coefficients[k];
  return value;
}
// The quantile of the normal distribution: Wichura 1988, Applied Statistics algorithm AS 241,
// PPND16.
TESSERA_KERNEL_BODY double normal_quantile(double p) {
  constexpr double kA[] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                           1.9715909503065514427e3, 1.3731693765509461125e4,
                           4.5921953931549871457e4, 6.7265770927008700853e4,
                           3.3430575583588128105e4, 2.5090809287301226727e3};
  constexpr double kB[] = {1.0,
                           4.2313330701600911252e1,
                           6.8718700749205790830e2,
                           5.3941960214247511077e3,
                           2.1213794301586595867e4,
                           3.9307895800092710610e4,
                           2.8729085735721942674e4,
                           5.2264952788528545610e3};
  constexpr double kC[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                           5.76949722146069140550e0,  3.64784832476320460504e0,
                           1.27045825245236838258e0,  2.41780725177450611770e-1,
                           2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double kD[] = {1.0,
                           2.05319162663775882187e0,
                           1.67638483018380384940e0,
                           6.89767334985100004550e-1,
                           1.48103976427480074590e-1,
                           1.51986665636164571966e-2,
                           5.47593808499534494600e-4,
                           1.05075007164441684324e-9};
  constexpr double kE[] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                           1.78482653991729133580e0,  2.96560571828504891230e-1,
                           2.65321895265761230930e-2, 1.24266094738807843860e-3,
                           2.71155556874348757815e-5, 2.01033439929228813265e-7};
  constexpr double kF[] = {1.0,
                           5.99832206555887937690e-1,
                           1.36929880922735805310e-1,
                           1.48753612908506148525e-2,
                           7.86869131145613259100e-4,
                           1.84631831751005468180e-5,
                           1.42151175831644588870e-7,
                           2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (std::fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial_of(r, kA) / polynomial_of(r, kB);
  }
  const double tail = std::sqrt(-std::log(q < 0 ? p : 1 - p));
  const double value = tail <= 5 ? polynomial_of(tail - 1.6, kC) / polynomial_of(tail - 1.6, kD)
                                 : polynomial_of(tail - 5, kE) / polynomial_of(tail - 5, kF);
  return q < 0 ? -value : value;
}
TESSERA_KERNEL_BODY double normal_cdf(double x) {
  return 0.5 * std::erfc(-x * 0.70710678118654752440);
}

// Normal numbers from `low` to `high`, in units of the standard deviation: what the quantiles of
// all elements have in common.
struct TruncatedNormal {
  double low;
  double high;
  double below_low;   // the probability of a number below `low`
  double below_high;  // and so on
  double above_low;
  double above_high;
};
TESSERA_KERNEL_BODY TruncatedNormal truncated_normal(double low, double high) {
  return {low, high, normal_cdf(low), normal_cdf(high), normal_cdf(-low), normal_cdf(-high)};
}
// A number from `low` on of the tail beyond 37, where the probabilities are no longer numbers: the
// density falls as exp(-z z / 2) within 1 / (low low). `u` is in (0, 1).
TESSERA_KERNEL_BODY double far_tail(double low, double high, double u) {
  const double all = -std::expm1(-(high - low) * (0.5 * (high + low)));
  const double depth = -2 * std::log1p(-u * all);
  return low + depth / (low + std::sqrt(low * low + depth));
}
// The number below which there are u of all, u in (0, 1).
TESSERA_KERNEL_BODY double truncated_quantile(const TruncatedNormal& t, double u) {
  constexpr double kFar = 37;
  double z;
  const double above = t.above_high + (t.above_low - t.above_high) * (1 - u);
  if (t.low > kFar) {
    z = far_tail(t.low, t.high, u);
  } else if (t.high < -kFar) {
    z = -far_tail(-t.high, -t.low, 1 - u);
  } else if (above < 0x1p-7) {
    // The upper tail as the lower one: 1 - p has lost digits that `above` has.
    z = -normal_quantile(above);
  } else {
    z = normal_quantile(t.below_low + (t.below_high - t.below_low) * u);
  }
  return z < t.low ? t.low : z > t.high ? t.high : z;
}

// Element i of a permutation of 0 to range - 1: a Feistel network of eight rounds over the least
// power of 4 that is not below the range, again until the number is in the range. `stream` is the
// last word of its counters.
TESSERA_KERNEL_BODY int64_t permuted_index(uint64_t i, uint64_t range, uint32_t stream,
                                           uint32_t key0, uint32_t key1) {
  uint32_t half_bits = 1;
  while (half_bits < 32 && uint64_t{1} << (2 * half_bits) < range) ++half_bits;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t x = i;
  do {
    uint64_t left = x >> half_bits;
    uint64_t right = x & mask;
    for (uint32_t round = 0; round < 8; ++round) {
      const PhiloxWords block =
          philox_words({{static_cast<uint32_t>(right), round, half_bits, stream}}, key0, key1);
      const uint64_t next = left ^ (block.words[0] & mask);
      left = right;
      right = next;
    }
    x = left << half_bits | right;
  } while (x >= range);
  return static_cast<int64_t>(x);
}

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_RANDOM_MATH_H_
