// SPDX-License-Identifier: Apache-2.0
//
// Numbers that are rounded once: floor_div() of floats on every instruction set against integers of
// 128 bits, and conversions between dtypes next to the middle of every two numbers of f16 and bf16,
// at their ends, and next to the middles of many floats.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "Eigen/Core"
#include "base/dtype.h"
#include "compute/cpu/pointwise.h"
#include "device/arithmetic.h"
#include "gtest/gtest.h"

namespace tessera::kernels {
namespace {

template <class T>
const std::byte* bytes_of(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

// ---- Casts

template <class From, class To>
std::vector<To> cast_all(const std::vector<From>& values) {
  std::vector<To> result(values.size());
  cast(dtype_of<From>(), dtype_of<To>(), bytes_of(values),
       reinterpret_cast<std::byte*>(result.data()), static_cast<int64_t>(values.size()));
  return result;
}

template <class T>
T half_of_bits(uint16_t bits) {
  return Eigen::numext::bit_cast<T>(bits);
}
// The positive numbers of a half type in order, and the number that would follow the last one.
template <class T>
std::vector<double> positive_halves() {
  std::vector<double> values;
  for (uint16_t bits = 0; std::isfinite(static_cast<float>(half_of_bits<T>(bits))); ++bits) {
    values.push_back(static_cast<float>(half_of_bits<T>(bits)));
  }
  values.push_back(2 * values.back() - values[values.size() - 2]);
  return values;
}

// The bits of the nearest half, ties to even, by comparisons with the middle of two neighbours.
template <class T>
uint16_t nearest_half(const std::vector<double>& halves, long double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const long double size = std::abs(value);
  // The bits of a positive half are its place in the order; infinity follows the last one.
  const auto upper = std::upper_bound(halves.begin(), halves.end(), size);
  if (upper == halves.end()) return sign | static_cast<uint16_t>(halves.size() - 1);
  const auto place = static_cast<uint16_t>(upper - halves.begin() - 1);
  const long double middle = (static_cast<long double>(halves[place]) + *upper) / 2;
  const bool is_up = size > middle || (size == middle && place % 2 == 1);
  return sign | static_cast<uint16_t>(place + (is_up ? 1 : 0));
}

template <class From, class To>
int expect_casts(const std::vector<double>& halves, const std::vector<From>& values) {
  const std::vector<To> found = cast_all<From, To>(values);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto bits = Eigen::numext::bit_cast<uint16_t>(found[i]);
    const uint16_t expected = nearest_half<To>(halves, static_cast<long double>(values[i]));
    if (bits != expected) {
      ADD_FAILURE() << dtype_name(dtype_of<From>()) << " " << static_cast<long double>(values[i])
                    << " to " << dtype_name(dtype_of<To>()) << " is "
                    << static_cast<float>(found[i]) << ", not "
                    << static_cast<float>(half_of_bits<To>(expected));
      break;
    }
  }
  return static_cast<int>(values.size());
}

// Each number, the middle to the next one, and their nearest neighbours in the type.
template <class From>
std::vector<From> beside(const std::vector<double>& halves) {
  std::vector<From> values;
  const auto add = [&](double x) {
    if constexpr (std::is_floating_point_v<From>) {
      const auto near = static_cast<From>(x);
      const From far = std::numeric_limits<From>::max();
      for (const From each : {near, std::nextafter(near, far), std::nextafter(near, -far)}) {
        values.push_back(each);
      }
      // Beside it by less than f32 tells, and by more than f64 does.
      for (const double by : {1e-9, -1e-9, 1e-15, -1e-15}) {
        values.push_back(static_cast<From>(x * (1 + by)));
      }
    } else {
      const double limit = static_cast<double>(std::numeric_limits<From>::max());
      if (std::abs(x) >= limit || (x < 0 && std::is_unsigned_v<From>)) return;
      const auto near = static_cast<From>(std::trunc(x));
      for (const int by : {-1, 0, 1}) {
        const int64_t each = static_cast<int64_t>(near) + by;
        if (each == static_cast<From>(each)) values.push_back(static_cast<From>(each));
      }
    }
  };
  for (size_t i = 0; i + 1 < halves.size(); ++i) {
    // Each sign with odd and even numbers.
    const int sign = i % 4 < 2 ? 1 : -1;
    add(sign * halves[i]);
    add(sign * (halves[i] + halves[i + 1]) / 2);
  }
  return values;
}

template <class To>
int expect_casts_to_half() {
  const std::vector<double> halves = positive_halves<To>();
  int checked = expect_casts<double, To>(halves, beside<double>(halves));
  checked += expect_casts<float, To>(halves, beside<float>(halves));
  checked += expect_casts<int64_t, To>(halves, beside<int64_t>(halves));
  checked += expect_casts<int32_t, To>(halves, beside<int32_t>(halves));
  checked += expect_casts<int8_t, To>(halves, beside<int8_t>(halves));
  checked += expect_casts<uint8_t, To>(halves, beside<uint8_t>(halves));
  // Beyond the type, and integers whose upper bits are a middle and whose last one is beside it.
  const std::vector<double> ends = {1e300,
                                    -1e300,
                                    1e-300,
                                    -1e-300,
                                    std::numeric_limits<double>::infinity(),
                                    std::numeric_limits<double>::denorm_min(),
                                    std::numeric_limits<double>::max(),
                                    std::numeric_limits<float>::max(),
                                    std::nextafter(std::numeric_limits<float>::max(), 1e300)};
  checked += expect_casts<double, To>(halves, ends);
  std::vector<int64_t> integers = {std::numeric_limits<int64_t>::max(),
                                   std::numeric_limits<int64_t>::min()};
  for (int shift = 12; shift < 62; ++shift) {
    for (const int64_t top : {0x81, 0x83, 0x101, 0x103, 0x401, 0x403, 0x801, 0x803}) {
      for (const int64_t by : {-1, 0, 1}) {
        if (top >> (62 - shift) != 0) continue;
        integers.push_back((top << shift) + by);
        integers.push_back(-integers.back());
      }
    }
  }
  checked += expect_casts<int64_t, To>(halves, integers);
  // Every number of the other half type.
  using Other = std::conditional_t<std::is_same_v<To, Eigen::half>, Eigen::bfloat16, Eigen::half>;
  std::vector<Other> others;
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto value = half_of_bits<Other>(static_cast<uint16_t>(bits));
    if (!std::isnan(static_cast<float>(value))) others.push_back(value);
  }
  const std::vector<float> wide = cast_all<Other, float>(others);
  EXPECT_EQ((cast_all<Other, To>(others)), (cast_all<float, To>(wide)));
  return checked + expect_casts<float, To>(halves, wide);
}

TEST(CastTest, ToHalvesRoundOnce) {
  const int f16 = expect_casts_to_half<Eigen::half>();
  const int bf16 = expect_casts_to_half<Eigen::bfloat16>();
  EXPECT_GT(f16, 500'000);
  EXPECT_GT(bf16, 500'000);
  RecordProperty("casts", f16 + bf16);
}

// The situations of JuliaLang/julia#57809.
TEST(CastTest, ReportedSituations) {
  const auto f16 = [](double x) {
    return static_cast<double>(static_cast<float>(cast_all<double, Eigen::half>({x})[0]));
  };
  const auto bf16 = [](double x) {
    return static_cast<double>(static_cast<float>(cast_all<double, Eigen::bfloat16>({x})[0]));
  };
  EXPECT_EQ(f16(1.00048828125 + 1e-12), 1.0009765625);
  EXPECT_EQ(f16(65519.999999), 65504);
  EXPECT_EQ(bf16(1.00390625 + 1e-12), 1.0078125);
  EXPECT_EQ(static_cast<float>(cast_all<int32_t, Eigen::bfloat16>({16842753})[0]), 16908288.0F);
  const int64_t large = (int64_t{1} << 40) + (int64_t{1} << 32) + 1;
  EXPECT_EQ(static_cast<float>(cast_all<int64_t, Eigen::bfloat16>({large})[0]), 0x1p40F + 0x1p33F);
}

// To f32 and f64, next to the middle of neighbours.
template <class From, class To>
int expect_casts_to_float(const std::vector<From>& values) {
  const std::vector<To> found = cast_all<From, To>(values);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto exact = static_cast<long double>(values[i]);
    const To next =
        std::nextafter(found[i], exact > found[i] ? std::numeric_limits<To>::infinity()
                                                  : -std::numeric_limits<To>::infinity());
    const long double from_found = std::abs(exact - found[i]);
    const long double from_next = std::abs(exact - next);
    EXPECT_TRUE(from_found < from_next || exact == found[i] ||
                (from_found == from_next && std::fmod(std::ldexp(found[i], 40), 2) == 0))
        << exact << " is " << found[i];
  }
  return static_cast<int>(values.size());
}
TEST(CastTest, ToFloatsRoundOnce) {
  std::mt19937_64 generator(20261127);
  std::vector<double> doubles;
  std::vector<int64_t> integers;
  std::vector<int32_t> small;
  for (int k = 0; k < 20'000; ++k) {
    const auto bits = static_cast<int64_t>(generator());
    integers.push_back(bits >> (k % 63));
    small.push_back(static_cast<int32_t>(bits >> (32 + k % 31)));
    const auto x = std::ldexp(static_cast<float>(bits >> 40), k % 20 - 30);
    const float next = std::nextafter(x, 2 * x + 1);
    const double middle = (static_cast<double>(x) + static_cast<double>(next)) / 2;
    doubles.insert(doubles.end(), {middle, std::nextafter(middle, 1e30),
                                   std::nextafter(middle, -1e30), middle * (1 + 1e-14)});
  }
  int checked = expect_casts_to_float<int64_t, float>(integers);
  checked += expect_casts_to_float<int64_t, double>(integers);
  checked += expect_casts_to_float<int32_t, float>(small);
  for (size_t i = 0; i < doubles.size(); ++i) {
    // By the bits of f64: 29 more than f32 has.
    const float found = cast_all<double, float>({doubles[i]})[0];
    const float expected = static_cast<float>(doubles[i]);
    ASSERT_EQ(found, expected) << doubles[i];
  }
  EXPECT_EQ(checked, 60'000);
}

// ---- floor_div

// A finite number as integer * 2^exponent.
struct Scaled {
  __int128 integer;
  int exponent;
};
Scaled scaled(double value) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  auto integer = static_cast<int64_t>(std::ldexp(fraction, 53));
  exponent -= 53;
  while (integer != 0 && integer % 2 == 0) {
    integer /= 2;
    ++exponent;
  }
  return {integer, exponent};
}
// The exact floor of a / b, where 128 bits are enough to tell.
std::optional<__int128> exact_floor(double a, double b) {
  Scaled n = scaled(a);
  Scaled d = scaled(b);
  if (n.integer == 0) return 0;
  const int shift = n.exponent - d.exponent;
  if (shift > 72) return std::nullopt;
  if (shift < -72) return (a < 0) != (b < 0) ? -1 : 0;
  if (shift > 0) n.integer *= static_cast<__int128>(1) << shift;
  if (shift < 0) d.integer *= static_cast<__int128>(1) << -shift;
  const __int128 quotient = n.integer / d.integer;
  const bool is_rounded_up = n.integer % d.integer != 0 && (n.integer < 0) != (d.integer < 0);
  return quotient - (is_rounded_up ? 1 : 0);
}

class FloorDivTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  template <class T>
  std::vector<T> floor_div(const std::vector<T>& a, const std::vector<T>& b) const {
    std::vector<T> result(a.size());
    const int64_t sizes[] = {static_cast<int64_t>(a.size())};
    const int64_t strides[] = {1};
    const Strided operands[] = {{bytes_of(a), strides}, {bytes_of(b), strides}};
    pointwise(GetParam(), PointwiseOp::floor_div, dtype_of<T>(), operands, sizes,
              reinterpret_cast<std::byte*>(result.data()));
    return result;
  }

  // Numbers of all sizes, and next to and at products of whole numbers and `b`.
  template <class T, class Round>
  int expect_exact(int count, Round round) const {
    std::mt19937_64 generator(20261127);
    const auto number = [&] {
      const double fraction = static_cast<double>(generator() >> 11) * 0x1p-53 + 0.5;
      const double size = std::ldexp(fraction, static_cast<int>(generator() % 12) - 6);
      return generator() % 2 == 0 ? size : -size;
    };
    std::vector<T> a;
    std::vector<T> b;
    for (int k = 0; k < count; ++k) {
      const auto divisor =
          k % 3 == 0 ? round(number()) : round(1 / static_cast<double>(1 + generator() % 50));
      const int64_t whole = static_cast<int64_t>(generator() % 4000) - 2000;
      const double product = static_cast<double>(whole) * static_cast<double>(divisor);
      a.push_back(k % 5 == 0 ? round(number()) : round(product));
      b.push_back(divisor);
    }
    const std::vector<T> found = floor_div(a, b);
    for (int k = 0; k < count; ++k) {
      if (!std::isfinite(static_cast<double>(a[k]))) continue;
      const auto expected = exact_floor(static_cast<double>(a[k]), static_cast<double>(b[k]));
      if (!expected.has_value()) continue;
      if (found[k] == round(static_cast<double>(*expected))) continue;
      ADD_FAILURE() << static_cast<double>(a[k]) << " by " << static_cast<double>(b[k]) << " is "
                    << static_cast<double>(found[k]) << ", not " << static_cast<double>(*expected);
      return k;
    }
    return count;
  }
};

std::vector<InstructionSet> sets() {
  std::vector<InstructionSet> result;
  for (int k = 0; k <= static_cast<int>(best_instruction_set()); ++k) {
    result.push_back(static_cast<InstructionSet>(k));
  }
  return result;
}
INSTANTIATE_TEST_SUITE_P(Sets, FloorDivTest, ::testing::ValuesIn(sets()), [](const auto& info) {
  return std::string(instruction_set_name(info.param));
});

TEST_P(FloorDivTest, IsTheFloorOfTheExactQuotient) {
  constexpr int kCount = 100'000;
  EXPECT_EQ(expect_exact<double>(kCount, [](double x) { return x; }), kCount);
  EXPECT_EQ(expect_exact<float>(kCount, [](double x) { return static_cast<float>(x); }), kCount);
  EXPECT_EQ(expect_exact<Eigen::half>(
                kCount, [](double x) { return cast_all<double, Eigen::half>({x})[0]; }),
            kCount);
  EXPECT_EQ(expect_exact<Eigen::bfloat16>(
                kCount, [](double x) { return cast_all<double, Eigen::bfloat16>({x})[0]; }),
            kCount);
}

template <class T>
struct FloorDivRow {
  const char* name;
  T a;
  T b;
  T expected;
};

// The situations of numpy#6127 and fpy#130, zeros and infinities.
TEST_P(FloorDivTest, Rows) {
  const auto check = [&]<class T>(T) {
    const T inf = std::numeric_limits<T>::infinity();
    const T nan = std::numeric_limits<T>::quiet_NaN();
    const T least = std::numeric_limits<T>::denorm_min();
    const T most = std::numeric_limits<T>::max();
    const FloorDivRow<T> rows[] = {
        {"tenths", 1, T(0.1), 9},
        {"six_by_tenths", 6, T(0.1), 59},
        {"fifths", 8, T(0.2), 39},
        {"whole", 6, 2, 3},
        {"negative", -7, 2, -4},
        {"negative_divisor", 7, -2, -4},
        {"both_negative", -7, -2, 3},
        {"zero", 0, 3, 0},
        {"by_zero", 1, 0, inf},
        {"zero_by_zero", 0, 0, nan},
        {"infinity", inf, 2, nan},
        {"minus_infinity", -inf, 2, nan},
        {"infinity_by_zero", inf, 0, inf},
        {"infinities", inf, inf, nan},
        {"by_infinity", 1, inf, 0},
        {"negative_by_infinity", -1, inf, -1},
        {"by_minus_infinity", 1, -inf, -1},
        {"nan", nan, 2, nan},
        {"by_nan", 2, nan, nan},
        {"smallest_by_largest", least, most, 0},
        {"minus_smallest_by_largest", -least, most, -1},
        {"largest_by_smallest", most, least, inf},
    };
    for (const FloorDivRow<T>& row : rows) {
      const T found = floor_div<T>({row.a}, {row.b})[0];
      EXPECT_TRUE(std::isnan(row.expected) ? std::isnan(found) : found == row.expected)
          << row.name << " in " << dtype_name(dtype_of<T>()) << " is " << found;
    }
    EXPECT_TRUE(std::signbit(floor_div<T>({T(-0.0)}, {T(3)})[0]));
  };
  check(float{});
  check(double{});
  EXPECT_EQ(floor_div<double>({-1.75}, {1.0 / 12})[0], -22);
}

}  // namespace
}  // namespace tessera::kernels
