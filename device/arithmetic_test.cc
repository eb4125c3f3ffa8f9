// SPDX-License-Identifier: Apache-2.0
//
// Texts of Arithmetic, and what two hosts have in common.
#include "device/arithmetic.h"

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using testing::IsOkAndHolds;
using testing::StatusIs;

constexpr Arithmetic kBaseline = {InstructionSet::kBaseline, false};
constexpr Arithmetic kAvx2 = {InstructionSet::kAvx2, false};
constexpr Arithmetic kAvx2WithOpenBlas = {InstructionSet::kAvx2, true};
constexpr Arithmetic kAvx512 = {InstructionSet::kAvx512, false};

TEST(ArithmeticTest, TextsAreReadAsTheyWereWritten) {
  const auto read = [](const Arithmetic& arithmetic) {
    return Arithmetic::parse(arithmetic.to_string());
  };
  for (const Arithmetic& each : {kBaseline, kAvx2, kAvx2WithOpenBlas, kAvx512}) {
    EXPECT_THAT(read(each), IsOkAndHolds(each));
  }
  EXPECT_THAT(read(Arithmetic::of_this_host()), IsOkAndHolds(Arithmetic::of_this_host()));
  EXPECT_EQ(kAvx2WithOpenBlas.to_string(), "avx2, openblas");
  for (const char* wrong : {"", "sse", "avx2,openblas", "baseline, openblas", "avx512, openblas"}) {
    EXPECT_THAT(Arithmetic::parse(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::HasSubstr("is not an arithmetic that this build knows")));
  }
}

// Each pair, in both orders.
TEST(ArithmeticTest, WhatTwoHaveInCommonIsTheLeast) {
  struct Row {
    Arithmetic a, b, common;
  };
  const Row rows[] = {
      {kBaseline, kAvx2, kBaseline},     {kBaseline, kAvx2WithOpenBlas, kBaseline},
      {kBaseline, kAvx512, kBaseline},   {kAvx2, kAvx2WithOpenBlas, kAvx2},
      {kAvx2, kAvx512, kAvx2},           {kAvx2WithOpenBlas, kAvx512, kAvx2},
      {kBaseline, kBaseline, kBaseline}, {kAvx2, kAvx2, kAvx2},
      {kAvx512, kAvx512, kAvx512},       {kAvx2WithOpenBlas, kAvx2WithOpenBlas, kAvx2WithOpenBlas},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(common_arithmetic(row.a, row.b), row.common);
    EXPECT_EQ(common_arithmetic(row.b, row.a), row.common);
  }
}

}  // namespace
}  // namespace tessera
