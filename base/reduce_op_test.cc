// SPDX-License-Identifier: Apache-2.0
//
// Which reduction is defined for which dtype.
#include "base/reduce_op.h"

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ReduceOpTest, HasNames) {
  EXPECT_EQ(reduce_op_name(ReduceOp::kSum), "sum");
  EXPECT_EQ(reduce_op_name(ReduceOp::kProd), "prod");
  EXPECT_EQ(reduce_op_name(ReduceOp::kMin), "min");
  EXPECT_EQ(reduce_op_name(ReduceOp::kMax), "max");
  EXPECT_EQ(reduce_op_name(ReduceOp::kAvg), "avg");
}

TEST(ReduceOpTest, EveryPairIsDefinedOrRefused) {
  for (int i = 0; i < kNumReduceOps; ++i) {
    for (int j = 0; j < kNumDTypes; ++j) {
      const ReduceOp op = static_cast<ReduceOp>(i);
      const DType dtype = static_cast<DType>(j);
      const bool is_legal = dtype == DType::kBool
                                ? op == ReduceOp::kMin || op == ReduceOp::kMax
                                : op != ReduceOp::kAvg || is_floating_point(dtype);
      EXPECT_EQ(validate_reduction(op, dtype).ok(), is_legal)
          << reduce_op_name(op) << " of " << dtype_name(dtype);
    }
  }
}

// A sum of sums is divided twice, or rounded twice.
TEST(ReduceOpTest, WhatHostsMayAddFirst) {
  for (int i = 0; i < kNumReduceOps; ++i) {
    for (int j = 0; j < kNumDTypes; ++j) {
      const ReduceOp op = static_cast<ReduceOp>(i);
      const DType dtype = static_cast<DType>(j);
      const bool is_half = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
      const bool selects = op == ReduceOp::kMin || op == ReduceOp::kMax;
      EXPECT_EQ(may_add_by_host(op, dtype), selects || (op != ReduceOp::kAvg && !is_half))
          << reduce_op_name(op) << " of " << dtype_name(dtype);
    }
  }
  EXPECT_EQ(reduction_order_name(ReductionOrder::kByHost), "by_host");
  EXPECT_EQ(reduction_order_name(ReductionOrder::kFlat), "flat");
}

TEST(ReduceOpTest, ValuesThatAreNoEnumeratorsAreRefused) {
  for (int value = kNumReduceOps; value < 256; ++value) {
    const ReduceOp op = static_cast<ReduceOp>(value);
    EXPECT_EQ(reduce_op_name(op), "unknown");
    EXPECT_FALSE(validate_reduction(op, DType::kFloat32).ok());
  }
  EXPECT_THAT(
      validate_reduce_op(static_cast<ReduceOp>(17)),
      StatusIs(kInvalid,
               "ReduceOp(17) is not a reduction; use an enumerator of ReduceOp, kSum (0) to "
               "kAvg (4)"));
  EXPECT_THAT(validate_reduction(ReduceOp::kSum, static_cast<DType>(77)),
              StatusIs(kInvalid, ::testing::HasSubstr("DType(77) is not an element type")));
}

TEST(ReduceOpTest, RefusalsSayWhatToUse) {
  EXPECT_THAT(validate_reduction(ReduceOp::kSum, DType::kBool),
              StatusIs(kInvalid,
                       "sum is not defined for bool; use min (and) or max (or), or another dtype"));
  EXPECT_THAT(validate_reduction(ReduceOp::kAvg, DType::kInt32),
              StatusIs(kInvalid,
                       "avg is not defined for integers, and the dtype is i32; use sum, or a "
                       "floating-point dtype"));
}

}  // namespace
}  // namespace tessera
