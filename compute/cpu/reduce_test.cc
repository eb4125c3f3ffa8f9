// SPDX-License-Identifier: Apache-2.0
//
// reduce_dims() and cumsum(): every set of dims against plain loops, and the errors of long sums.
#include "compute/cpu/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "gtest/gtest.h"

namespace tessera::kernels {
namespace {

template <class T>
const std::byte* bytes_of(const std::vector<T>& data) {
  return reinterpret_cast<const std::byte*>(data.data());
}
template <class T>
std::byte* bytes_of(std::vector<T>& data) {
  return reinterpret_cast<std::byte*>(data.data());
}

std::vector<float> sums_of(const std::vector<float>& in, const Shape& sizes,
                           const std::vector<bool>& is_reduced) {
  int64_t kept = 1;
  for (size_t dim = 0; dim < sizes.size(); ++dim) kept *= is_reduced[dim] ? 1 : sizes[dim];
  std::vector<float> out(kept);
  reduce_dims(ReduceOp::kSum, DType::kFloat32, bytes_of(in), sizes, is_reduced, 1, bytes_of(out));
  return out;
}

std::vector<float> plain_sums(const std::vector<float>& in, const Shape& sizes,
                              const std::vector<bool>& is_reduced) {
  std::vector<double> sums;
  for (size_t i = 0; i < in.size(); ++i) {
    size_t left = i;
    size_t place = 0;
    size_t stride = 1;
    for (size_t dim = sizes.size(); dim-- > 0;) {
      const size_t index = left % sizes[dim];
      left /= sizes[dim];
      if (is_reduced[dim]) continue;
      place += index * stride;
      stride *= sizes[dim];
    }
    sums.resize(std::max(sums.size(), place + 1));
    sums[place] += in[i];
  }
  return {sums.begin(), sums.end()};
}

// Whole numbers, whose sums f32 has.
TEST(ReduceTest, EverySetOfDims) {
  for (const Shape& sizes : {Shape{5000}, Shape{1000, 3}, Shape{300, 1, 7}, Shape{2, 700, 3, 5},
                             Shape{260, 2, 130}, Shape{3, 5, 2100}, Shape{140, 3, 150, 2}}) {
    std::vector<float> in(num_elements(sizes));
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>((i * 7 + i / 11) % 13);
    for (int set = 0; set < 1 << sizes.size(); ++set) {
      std::vector<bool> is_reduced;
      for (size_t dim = 0; dim < sizes.size(); ++dim) is_reduced.push_back((set >> dim & 1) != 0);
      EXPECT_EQ(sums_of(in, sizes, is_reduced), plain_sums(in, sizes, is_reduced))
          << shape_to_string(sizes) << " by " << absl::StrJoin(is_reduced, ", ");
    }
  }
}

// Near 33.3, then near -33.4: up to 7e7, and down again.
std::vector<float> cancelling(int64_t count) {
  std::vector<float> numbers(count);
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(i * 7919 % 1009) / 100'000;
    numbers[i] = i < count / 2 ? 33.3f + value : value - 33.4f;
  }
  return numbers;
}

double largest_error(const std::vector<float>& actual, const std::vector<double>& expected) {
  double largest = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    largest = std::max(largest, std::abs(actual[i] - expected[i]));
  }
  return largest;
}

constexpr int64_t kCount = int64_t{1} << 22;

// In f32 the sum of each half is a multiple of 8.
TEST(ReduceTest, LongSumsThatCancel) {
  const std::vector<float> numbers = cancelling(kCount);
  for (const int64_t columns : {1, 4, 64}) {
    std::vector<double> expected(columns);
    for (int64_t i = 0; i < kCount; ++i) expected[i % columns] += numbers[i];
    const std::vector<float> actual = sums_of(numbers, {kCount / columns, columns}, {true, false});
    EXPECT_LT(largest_error(actual, expected), 16) << columns;
  }
}

// Within a rounding of 7e7.
TEST(ReduceTest, LongCumsum) {
  const std::vector<float> numbers = cancelling(kCount);
  std::vector<double> expected(kCount);
  double sum = 0;
  for (int64_t i = 0; i < kCount; ++i) expected[i] = sum += numbers[i];
  std::vector<float> actual(kCount);
  cumsum(DType::kFloat32, bytes_of(numbers), {1, kCount, 1}, 0, kCount, bytes_of(actual));
  EXPECT_LE(largest_error(actual, expected), 4);
}

}  // namespace
}  // namespace tessera::kernels
