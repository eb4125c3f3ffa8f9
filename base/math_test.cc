// SPDX-License-Identifier: Apache-2.0
//
// Exact integer arithmetic, against slow loops and at the edges of 64 bits.
#include "base/math.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(CeilMulDivTest, IsTheLeastNumberThatReachesTheQuotient) {
  int checked = 0;
  for (int64_t d = 1; d <= 12; ++d) {
    for (int64_t k = 0; k <= d; ++k) {
      for (int64_t n = 0; n <= 40; ++n, ++checked) {
        int64_t expected = 0;
        while (expected * d < k * n) ++expected;
        ASSERT_EQ(ceil_mul_div(k, n, d), expected) << k << " * " << n << " / " << d;
      }
    }
  }
  EXPECT_EQ(checked, 90 * 41);
}

TEST(CeilMulDivTest, IsExactWhereTheProductPasses64Bits) {
  EXPECT_EQ(ceil_mul_div(kMax, kMax, kMax), kMax);
  EXPECT_EQ(ceil_mul_div(kMax - 1, kMax, kMax), kMax - 1);
  EXPECT_EQ(ceil_mul_div(1, kMax, kMax), 1);
  EXPECT_EQ(ceil_mul_div(1, kMax, 2), kMax / 2 + 1);
  EXPECT_EQ(ceil_mul_div(65535, 4611686018427387905, 65536), 65535 * (int64_t{1} << 46) + 1);
  static_assert(ceil_mul_div(1, 10, 4) == 3);
}

struct ProductRow {
  const char* name;
  std::vector<int64_t> factors;
  std::optional<int64_t> product;
};
class CheckedProductTest : public ::testing::TestWithParam<ProductRow> {};

TEST_P(CheckedProductTest, IsExactOrNothing) {
  EXPECT_EQ(checked_product(GetParam().factors), GetParam().product);
}
INSTANTIATE_TEST_SUITE_P(
    Rows, CheckedProductTest,
    ::testing::Values(
        ProductRow{"none", {}, 1}, ProductRow{"one", {7}, 7}, ProductRow{"some", {2, 3, 4}, 24},
        ProductRow{"zero", {5, 0}, 0}, ProductRow{"zero_after_overflow", {kMax, kMax, 0}, 0},
        ProductRow{"largest", {kMax, 1}, kMax},
        ProductRow{"just_fits", {int64_t{1} << 31, int64_t{1} << 31}, int64_t{1} << 62},
        ProductRow{"just_too_large", {int64_t{1} << 32, int64_t{1} << 31}, std::nullopt},
        ProductRow{"far_too_large", {kMax, kMax}, std::nullopt}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera
