// SPDX-License-Identifier: Apache-2.0
//
// Numbers that are rounded once: floor_div() of floats on every instruction set against integers of
// 128 bits.
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
#include "absl/types/span.h"
#include "base/dtype.h"
#include "device/arithmetic.h"
#include "gtest/gtest.h"
#include "ops/kernels/pointwise.h"

namespace tessera::kernels {
namespace {

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Eigen::half> || std::is_same_v<T, Eigen::bfloat16>;

template <class T>
const std::byte* bytes_of(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

template <class From, class To>
std::vector<To> cast_all(const std::vector<From>& values) {
  std::vector<To> result(values.size());
  cast(dtype_of<From>(), dtype_of<To>(), bytes_of(values),
       reinterpret_cast<std::byte*>(result.data()), static_cast<int64_t>(values.size()));
  return result;
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
