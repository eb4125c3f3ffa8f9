// SPDX-License-Identifier: Apache-2.0
//
// Loops of random numbers on every instruction set of the CPU: blocks against Philox of one block,
// normal numbers against libm's functions in long double, all against the same bits of the
// baseline; and runs of any position and length against runs of one element.
#include "compute/cpu/random_loops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "Eigen/Core"
#include "base/dtype.h"
#include "compute/cpu/philox.h"
#include "compute/engine.h"
#include "device/arithmetic.h"
#include "gtest/gtest.h"

namespace tessera::kernels {
namespace {

class RandomLoopsTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  const RandomLoops& loops() const { return random_loops(GetParam()); }
};

std::vector<InstructionSet> sets() {
  std::vector<InstructionSet> result;
  for (int k = 0; k <= static_cast<int>(best_instruction_set()); ++k) {
    result.push_back(static_cast<InstructionSet>(k));
  }
  return result;
}
INSTANTIATE_TEST_SUITE_P(Sets, RandomLoopsTest, ::testing::ValuesIn(sets()), [](const auto& info) {
  return std::string(instruction_set_name(info.param));
});

TEST_P(RandomLoopsTest, WordsAreThoseOfPhilox) {
  const uint32_t key[2] = {0xa4093822, 0x299f31d0};
  for (const uint64_t first : {uint64_t{0}, uint64_t{5}, uint64_t{0xfffffff0}, ~uint64_t{40}}) {
    constexpr int64_t kBlocks = 4 * kPhiloxLanes;
    std::vector<uint32_t> words(4 * kBlocks);
    loops().philox(key, 3, first, kBlocks, words.data());
    for (int64_t k = 0; k < kBlocks; ++k) {
      const uint64_t block = first + static_cast<uint64_t>(k);
      const PhiloxBlock expected =
          philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 3},
                 {key[0], key[1]});
      for (int word = 0; word < 4; ++word) {
        ASSERT_EQ(words[4 * k + word], expected[word]) << block << " " << word;
      }
    }
  }
}

// Words of Philox, after words at the ends of the units and at quarters of the circle.
std::vector<uint32_t> hard_words() {
  std::vector<uint32_t> words;
  for (const uint32_t turns :
       {0u, 0x20000000u, 0x40000000u, 0x80000000u, 0xc0000000u, 0xe0000000u}) {
    for (const uint32_t below : {0u, 1u, 0x3ffu, 0xffffffffu}) {
      for (const uint32_t radius : {0u, 0x100u, 0xfffffcffu, 0xffffffffu, 0xb504f333u}) {
        for (const uint32_t word : {radius, radius, turns - below, turns - below}) {
          words.push_back(word);
        }
      }
    }
  }
  const size_t hard = words.size();
  words.resize(hard + (1 << 16));
  const uint32_t key[2] = {1, 2};
  random_loops(InstructionSet::kBaseline).philox(key, 2, 0, 1 << 14, words.data() + hard);
  return words;
}

// How many numbers of type T are between the value and the exact one, about.
template <class T>
double ulps(T value, long double exact) {
  const T nearest = static_cast<T>(exact);
  if (value == nearest) return 0;
  const T next = std::nextafter(std::abs(nearest), std::numeric_limits<T>::infinity());
  return static_cast<double>(std::abs(value - exact) / (next - std::abs(nearest)));
}
template <class T>
auto bits_of(T value) {
  return std::bit_cast<std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>(value);
}

// Element i of what all words make.
template <class T>
long double unit_of(const std::vector<uint32_t>& words, size_t i) {
  if constexpr (sizeof(T) == 4) {
    return ((words[i] >> 9) + 0.5L) * 0x1p-23L;
  } else {
    const uint64_t pair = words[2 * i] | uint64_t{words[2 * i + 1]} << 32;
    return (static_cast<long double>(pair >> 12) + 0.5L) * 0x1p-52L;
  }
}

template <class T>
void expect_normal(const RandomLoops& loops, LoopType type, double bound) {
  const std::vector<uint32_t> words = hard_words();
  std::vector<T> found(words.size() * 4 / sizeof(T));
  std::vector<T> baseline(found.size());
  const auto n = static_cast<int64_t>(found.size());
  loops.normal(type, {0, 1}, words.data(), n, found.data());
  random_loops(InstructionSet::kBaseline).normal(type, {0, 1}, words.data(), n, baseline.data());
  double worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(bits_of(found[i]), bits_of(baseline[i])) << i;
    // The angle from the nearest quarter, which is exact.
    const long double turns = unit_of<T>(words, i | 1);
    const long double quarters = std::rint(4 * turns);
    const long double angle = 2 * 3.14159265358979323846264338327950288L * (turns - quarters / 4);
    const int quarter = (static_cast<int>(quarters) + (i % 2 == 0 ? 1 : 0)) & 3;
    const long double wave = (quarter & 1) != 0 ? std::cos(angle) : std::sin(angle);
    const long double exact = std::sqrt(-2 * std::log(unit_of<T>(words, i & ~size_t{1}))) *
                              ((quarter & 2) != 0 ? -wave : wave);
    worst = std::max(worst, ulps(found[i], exact));
  }
  EXPECT_LE(worst, bound);
}

TEST_P(RandomLoopsTest, NormalNumbersAreExactOnEverySet) {
  expect_normal<float>(loops(), LoopType::kFloat32, 0.51);
  expect_normal<double>(loops(), LoopType::kFloat64, 3.5);
}

template <class T>
void expect_uniform(const RandomLoops& loops, LoopType type, int bits) {
  const std::vector<uint32_t> words = hard_words();
  std::vector<T> found(words.size() * 4 / sizeof(T));
  const T last = std::nextafter(T(3), T(0));
  loops.uniform(type, {bits, -2, 5, 3, static_cast<double>(last)}, words.data(),
                static_cast<int64_t>(found.size()), found.data());
  for (size_t i = 0; i < found.size(); ++i) {
    T unit;
    if constexpr (sizeof(T) == 4) {
      unit = std::ldexp(static_cast<T>(words[i] >> (32 - bits)), -bits);
    } else {
      const uint64_t pair = words[2 * i] | uint64_t{words[2 * i + 1]} << 32;
      unit = std::ldexp(static_cast<T>(pair >> 11), -53);
    }
    const volatile T scaled = 5 * unit;
    const T value = -2 + scaled;
    ASSERT_EQ(found[i], value >= 3 ? last : value) << i;
  }
}

TEST_P(RandomLoopsTest, UniformNumbersAreRoundedByEachOperation) {
  expect_uniform<float>(loops(), LoopType::kFloat32, 24);
  expect_uniform<float>(loops(), LoopType::kFloat32, 8);
  expect_uniform<double>(loops(), LoopType::kFloat64, 53);
}

// The parameters of a distribution, the range of its numbers, and about their mean.
struct RangeRow {
  const char* name;
  RandomSpec spec;
  double least;
  double most;
  double mean;       // NaN where it is not known
  double tolerance;  // of the mean
};
std::vector<RangeRow> range_rows(double largest) {
  const auto uniform = [](const char* name, double low, double high) {
    return RangeRow{name,
                    {.kind = RandomKind::kUniform, .a = low, .b = high},
                    low,
                    high,
                    low / 2 + high / 2,
                    (high / 2 - low / 2) / 50};
  };
  const auto truncated = [](const char* name, double low, double high, double mean,
                            double tolerance) {
    return RangeRow{
        name, {.kind = RandomKind::kTruncatedNormal, .a = 0, .b = 1, .low = low, .high = high},
        low,  high,
        mean, tolerance};
  };
  constexpr double kInf = std::numeric_limits<double>::infinity();
  return {
      uniform("widest", -largest, largest),
      uniform("upper_half", 0, largest),
      uniform("lower_half", -largest, 0),
      uniform("one_number", 3, 3),
      uniform("rounded_down", 0.7, 0.75),
      uniform("rounded_up", -0.75, -0.7),
      // The means of mpmath.
      truncated("tail_7", 7, 8, 7.13706716, 0.005),
      truncated("tail_8", 8, 9, 8.12118899, 0.005),
      truncated("tail_9", 9, 10, 9.10845629, 0.005),
      truncated("tail_30", 30, 31, 30.0332597, 0.002),
      truncated("tail_to_infinity", 8, kInf, 8.12136811, 0.005),
      truncated("tail_beyond_f64", 50, 51, 50.019984, 0.001),
      truncated("far_tail", 1000, 2000, 1000.001, 0.0001),
      truncated("lower_tail", -9, -8, -8.12118899, 0.005),
      truncated("lower_tail_beyond_f64", -51, -50, -50.019984, 0.001),
      truncated("one_side", -1, kInf, 0.287599971, 0.03),
      truncated("all", -kInf, kInf, 0, 0.04),
      truncated("narrow", 0.7, 0.71, 0.704994125, 0.001),
  };
}

template <class T>
void expect_in_ranges(double largest) {
  constexpr int64_t kCount = 20'000;
  std::vector<T> values(kCount);
  for (RangeRow row : range_rows(largest)) {
    row.spec.key = {3, 5};
    random_run(row.spec, dtype_of<T>(), 0, kCount, reinterpret_cast<std::byte*>(values.data()));
    double sum = 0;
    for (const T value : values) {
      const auto real = static_cast<double>(value);
      ASSERT_TRUE(std::isfinite(real) && real >= row.least && real <= row.most)
          << row.name << " of " << dtype_name(dtype_of<T>()) << " gives " << real;
      if (row.spec.kind == RandomKind::kUniform && row.least < row.most) {
        ASSERT_LT(real, row.most) << row.name;
      }
      sum += real / kCount;
    }
    const double rounding = std::ldexp(std::abs(row.mean), 1 - std::numeric_limits<T>::digits);
    EXPECT_NEAR(sum, row.mean, row.tolerance + rounding + 1e-9 * std::abs(row.mean))
        << row.name << " of " << dtype_name(dtype_of<T>());
  }
}

TEST(RandomRunTest, NumbersLieInTheRange) {
  expect_in_ranges<double>(std::numeric_limits<double>::max());
  expect_in_ranges<float>(std::numeric_limits<float>::max());
  expect_in_ranges<Eigen::bfloat16>(0x1.fep127);
  expect_in_ranges<Eigen::half>(65504);
}

// The upper tail is as fine as the lower one: it has as many different numbers.
TEST(RandomRunTest, TailsAreSymmetric) {
  constexpr int64_t kCount = 20'000;
  const auto num_different = [](double low, double high) {
    std::vector<float> values(kCount);
    const RandomSpec spec = {.kind = RandomKind::kTruncatedNormal,
                             .key = {3, 5},
                             .a = 0,
                             .b = 1,
                             .low = low,
                             .high = high};
    random_run(spec, DType::kFloat32, 0, kCount, reinterpret_cast<std::byte*>(values.data()));
    std::sort(values.begin(), values.end());
    return std::unique(values.begin(), values.end()) - values.begin();
  };
  for (const double low : {2.0, 5.0, 7.0, 8.0, 30.0, 50.0}) {
    const auto upper = static_cast<double>(num_different(low, low + 1));
    const auto lower = static_cast<double>(num_different(-low - 1, -low));
    EXPECT_NEAR(upper, lower, 0.01 * kCount) << low;
    EXPECT_GT(upper, 0.4 * kCount) << low;  // as f32 has there
  }
}

TEST(RandomRunTest, IntegersLieInTheRange) {
  for (int k = 0; k < kNumDTypes; ++k) {
    const auto dtype = static_cast<DType>(k);
    visit_dtype(dtype, [&]<class T>() {
      if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
        using Limits = std::numeric_limits<T>;
        const auto run = [&](T least, uint64_t range) {
          std::vector<T> values(5000);
          const RandomSpec spec = {.kind = RandomKind::kInteger,
                                   .key = {3, 5},
                                   .least = static_cast<int64_t>(least),
                                   .range = range};
          random_run(spec, dtype, 0, 5000, reinterpret_cast<std::byte*>(values.data()));
          for (const T value : values) {
            const uint64_t above = static_cast<uint64_t>(value) - static_cast<uint64_t>(least);
            ASSERT_TRUE(range == 0 || above < range) << dtype_name(dtype);
          }
        };
        const uint64_t all = sizeof(T) == 8 ? 0 : uint64_t{1} << (8 * sizeof(T) % 64);
        run(Limits::min(), all);
        run(Limits::min(), 1);
        run(Limits::max(), 1);
        run(static_cast<T>(Limits::max() - 2), 3);
        run(Limits::min(), static_cast<uint64_t>(Limits::max()));
      }
    });
  }
}

// A run equals the same elements one by one, wherever it begins in a block.
TEST(RandomRunTest, PositionsAndLengths) {
  const auto check = [](const RandomSpec& spec, DType dtype) {
    const int64_t size = dtype_size(dtype);
    for (const uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{254}}) {
      for (const int64_t count : {0, 1, 2, 5, 63, 64, 65, 256, 300, 700}) {
        std::vector<std::byte> run(count * size + 1, std::byte{0x5a});
        random_run(spec, dtype, first, count, run.data());
        for (int64_t k = 0; k < count; ++k) {
          std::byte element[8];
          random_run(spec, dtype, first + static_cast<uint64_t>(k), 1, element);
          ASSERT_TRUE(std::equal(element, element + size, run.data() + k * size))
              << static_cast<int>(spec.kind) << " " << dtype_name(dtype) << " " << first << " + "
              << k;
        }
        ASSERT_EQ(run.back(), std::byte{0x5a});
      }
    }
  };
  for (int k = 0; k < kNumDTypes; ++k) {
    const auto dtype = static_cast<DType>(k);
    RandomSpec spec = {.key = {7, 9}};
    if (is_floating_point(dtype)) {
      for (const RandomKind kind :
           {RandomKind::kUniform, RandomKind::kNormal, RandomKind::kTruncatedNormal}) {
        spec.kind = kind;
        check(spec, dtype);
      }
      continue;
    }
    check(spec, dtype);
    spec.a = 0.3;
    spec.range = 11;
    spec.kind = dtype == DType::kBool ? RandomKind::kBernoulli : RandomKind::kInteger;
    check(spec, dtype);
  }
}

}  // namespace
}  // namespace tessera::kernels
