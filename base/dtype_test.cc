// SPDX-License-Identifier: Apache-2.0
//
// The table of element types: one row a dtype, so that a new one without a row shows.
#include "base/dtype.h"

#include <cstdint>
#include <set>
#include <string>
#include <type_traits>

#include "Eigen/Core"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

struct DTypeRow {
  DType dtype;
  int64_t size;
  const char* name;
  bool is_floating_point;
};
const DTypeRow kRows[] = {
    {DType::kBool, 1, "bool", false},    {DType::kInt8, 1, "i8", false},
    {DType::kUint8, 1, "u8", false},     {DType::kInt32, 4, "i32", false},
    {DType::kInt64, 8, "i64", false},    {DType::kFloat16, 2, "f16", true},
    {DType::kBFloat16, 2, "bf16", true}, {DType::kFloat32, 4, "f32", true},
    {DType::kFloat64, 8, "f64", true},
};
class DTypeTest : public ::testing::TestWithParam<DTypeRow> {};

TEST_P(DTypeTest, HasSizeNameAndType) {
  const DTypeRow& row = GetParam();
  EXPECT_EQ(dtype_size(row.dtype), row.size);
  EXPECT_EQ(dtype_name(row.dtype), row.name);
  EXPECT_EQ(is_floating_point(row.dtype), row.is_floating_point);
  EXPECT_EQ(visit_dtype(row.dtype, []<class T>() { return dtype_of<T>(); }), row.dtype);
}
INSTANTIATE_TEST_SUITE_P(Rows, DTypeTest, ::testing::ValuesIn(kRows),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(DTypeTest, TheTableHasEveryDType) {
  std::set<int> seen;
  for (const DTypeRow& row : kRows) seen.insert(static_cast<int>(row.dtype));
  EXPECT_EQ(static_cast<int>(seen.size()), kNumDTypes);
  EXPECT_EQ(*seen.rbegin(), kNumDTypes - 1);
}

// A DType cast from any integer has a defined answer: an error where the function can return one.
TEST(DTypeTest, ValuesThatAreNoEnumeratorsAreRefused) {
  for (int value = kNumDTypes; value < 256; ++value) {
    const DType dtype = static_cast<DType>(value);
    EXPECT_EQ(dtype_size(dtype), 0);
    EXPECT_EQ(dtype_name(dtype), "unknown");
    EXPECT_FALSE(is_floating_point(dtype));
    EXPECT_FALSE(validate_dtype(dtype).ok());
  }
  for (const DTypeRow& row : kRows) EXPECT_THAT(validate_dtype(row.dtype), testing::IsOk());
  EXPECT_THAT(
      validate_dtype(static_cast<DType>(17)),
      testing::StatusIs(absl::StatusCode::kInvalidArgument,
                        "DType(17) is not an element type; use an enumerator of DType, kBool "
                        "(0) to kFloat64 (8)"));
}

static_assert(dtype_of<float>() == DType::kFloat32);
static_assert(dtype_of<Eigen::bfloat16>() == DType::kBFloat16);
static_assert(HasDType<bool> && HasDType<Eigen::half>);
static_assert(!HasDType<std::string> && !HasDType<uint64_t> && !HasDType<const float>);

}  // namespace
}  // namespace tessera
