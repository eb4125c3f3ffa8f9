// SPDX-License-Identifier: Apache-2.0
//
// check_dlpack() and copy_dense(): the messages of what is refused, and random arrays against the
// elements that their fields name. tests/files/dlpack_test.cc has the rows of
// tests/facts/dlpack.md.
#include "files/dlpack_array.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "files/dlpack.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"
#include "tests/support/seed.h"

namespace tessera::files {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

// A [2, 3] array of f32 without strides.
struct Structure {
  std::vector<float> memory = {0, 1, 2, 3, 4, 5};
  std::vector<int64_t> shape = {2, 3};
  std::vector<int64_t> strides = {3, 1};
  DLManagedTensorVersioned managed = {};

  Structure() {
    managed.version = {1, 0};
    managed.dl_tensor = {.data = memory.data(),
                         .device = {kDLCPU, 0},
                         .ndim = 2,
                         .dtype = {kDLFloat, 32, 1},
                         .shape = shape.data(),
                         .strides = nullptr,
                         .byte_offset = 0};
  }
};

struct RefusedDType {
  const char* name;
  DLDataType dtype;
  StatusCode code;
  const char* text;
};
constexpr RefusedDType kRefusedDTypes[] = {
    {"i16", {kDLInt, 16, 1}, StatusCode::kUnimplemented, "(code 0, bits 16, lanes 1) is i16;"},
    {"i4", {kDLInt, 4, 1}, StatusCode::kUnimplemented, "is i4;"},
    {"u64", {kDLUInt, 64, 1}, StatusCode::kUnimplemented, "is u64; supported are bool, i8,"},
    {"f128", {kDLFloat, 128, 1}, StatusCode::kUnimplemented, "is f128;"},
    {"handle", {3, 64, 1}, StatusCode::kUnimplemented, "is opaque handle;"},
    {"bf8", {kDLBfloat, 8, 1}, StatusCode::kUnimplemented, "is bf8;"},
    {"complex64", {5, 64, 1}, StatusCode::kUnimplemented, "is complex64;"},
    {"fp4", {17, 4, 1}, StatusCode::kUnimplemented, "is float4_e2m1fn;"},
    {"next_code", {18, 8, 1}, StatusCode::kInvalidArgument, "has code 18, which DLPack 1"},
    {"no_lanes", {kDLFloat, 32, 0}, StatusCode::kInvalidArgument, "has lanes 0; an element has 1"},
};

TEST(DlpackArrayTest, RefusedDTypes) {
  for (const RefusedDType& row : kRefusedDTypes) {
    Structure structure;
    structure.managed.dl_tensor.dtype = row.dtype;
    EXPECT_THAT(check_dlpack(structure.managed, std::nullopt),
                StatusIs(row.code, HasSubstr(row.text)))
        << row.name;
  }
}

TEST(DlpackArrayTest, MemoryOfAGpuIsUnimplementedForAGpu) {
  Structure structure;
  structure.managed.dl_tensor.device = {kDLCUDA, 1};
  EXPECT_THAT(check_dlpack(structure.managed, 0),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("device (2, 1); give memory of")));
  EXPECT_THAT(check_dlpack(structure.managed, std::nullopt),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("device (2, 1); give memory of")));
  structure.managed.dl_tensor.device = {kDLCPU, 0};
  EXPECT_THAT(check_dlpack(structure.managed, 0), IsOk());
}

TEST(DlpackArrayTest, ElementsOutsideOfTheAddressSpace) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  for (const int64_t stride : {kMax, kMin, kMax / 4, kMin / 4, kMax / 8 + 1}) {
    Structure structure;
    structure.strides = {stride, stride};
    structure.managed.dl_tensor.strides = structure.strides.data();
    EXPECT_THAT(check_dlpack(structure.managed, std::nullopt),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("outside of the address space")))
        << stride;
  }
  Structure structure;
  structure.managed.dl_tensor.byte_offset = std::numeric_limits<uint64_t>::max() - 8;
  EXPECT_THAT(
      check_dlpack(structure.managed, std::nullopt),
      StatusIs(StatusCode::kInvalidArgument,
               HasSubstr("byte_offset 18446744073709551607 and strides [] of shape [2, 3]")));
}

// The strides of dims without a second element are not read.
TEST(DlpackArrayTest, StridesWithoutMeaning) {
  Structure structure;
  structure.shape = {1, 6};
  structure.strides = {std::numeric_limits<int64_t>::max(), 1};
  structure.managed.dl_tensor.strides = structure.strides.data();
  TESSERA_ASSERT_OK_AND_ASSIGN(const StridedArray array,
                               check_dlpack(structure.managed, std::nullopt));
  EXPECT_EQ(array.strides_bytes, std::vector<int64_t>({0, 4}));
  structure.shape = {6, 0};
  structure.managed.dl_tensor.data = nullptr;
  TESSERA_ASSERT_OK_AND_ASSIGN(const StridedArray empty,
                               check_dlpack(structure.managed, std::nullopt));
  EXPECT_EQ(empty.first, nullptr);
  copy_dense(empty, nullptr);
}

TEST(DlpackArrayTest, BytesOfBoolBecomeZeroOrOne) {
  Structure structure;
  uint8_t bytes[] = {0, 1, 2, 255, 128, 0};
  structure.managed.dl_tensor.data = bytes;
  structure.managed.dl_tensor.dtype = {kDLBool, 8, 1};
  for (const bool is_dense : {true, false}) {
    structure.strides = {is_dense ? 3 : 1, is_dense ? 1 : 2};
    structure.managed.dl_tensor.strides = structure.strides.data();
    TESSERA_ASSERT_OK_AND_ASSIGN(const StridedArray array,
                                 check_dlpack(structure.managed, std::nullopt));
    std::vector<uint8_t> out(6);
    copy_dense(array, reinterpret_cast<std::byte*>(out.data()));
    EXPECT_EQ(out, std::vector<uint8_t>({0, 1, 1, 1, 1, 0})) << is_dense;
  }
}

// Random shapes and strides of each dtype, as views of memory that holds them.
TEST(DlpackArrayTest, CopiesTheElementsThatTheFieldsName) {
  std::mt19937_64 random(testing::test_seed());
  const auto below = [&](int64_t count) { return static_cast<int64_t>(random() % count); };
  for (int round = 0; round < 5000; ++round) {
    const auto dtype = static_cast<DType>(below(kNumDTypes));
    const int64_t size = dtype_size(dtype);
    std::vector<int64_t> shape(below(5));
    std::vector<int64_t> strides(shape.size());
    int64_t low = 0;  // in elements from the first one
    int64_t high = 0;
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      shape[dim] = below(5);
      strides[dim] = below(21) - 10;
      (strides[dim] < 0 ? low : high) += strides[dim] * std::max<int64_t>(shape[dim] - 1, 0);
    }
    const int64_t shift = below(size);  // makes it unaligned
    std::vector<uint8_t> memory((high - low + 1) * size + shift);
    for (uint8_t& byte : memory)
      byte = static_cast<uint8_t>(below(dtype == DType::kBool ? 2 : 256));
    const int64_t offset = below(100);
    DLManagedTensorVersioned managed = {};
    managed.version = {1, 0};
    managed.dl_tensor = {.data = memory.data() - low * size + shift - offset,
                         .device = {kDLCPU, 0},
                         .ndim = static_cast<int32_t>(shape.size()),
                         .dtype = dlpack_dtype(dtype),
                         .shape = shape.data(),
                         .strides = strides.data(),
                         .byte_offset = static_cast<uint64_t>(offset)};
    TESSERA_ASSERT_OK_AND_ASSIGN(const StridedArray array, check_dlpack(managed, std::nullopt));
    ASSERT_EQ(array.dtype, dtype);
    ASSERT_EQ(array.shape, shape);
    const int64_t count = num_elements(shape);
    std::vector<uint8_t> out(count * size);
    copy_dense(array, reinterpret_cast<std::byte*>(out.data()));
    for (int64_t i = 0; i < count; ++i) {
      int64_t from = -low;
      int64_t rest = i;
      for (size_t dim = shape.size(); dim-- > 0; rest /= shape[dim]) {
        from += rest % shape[dim] * strides[dim];
      }
      ASSERT_EQ(std::memcmp(out.data() + i * size, memory.data() + shift + from * size, size), 0)
          << shape_to_string(shape) << " by " << shape_to_string(strides) << ", element " << i;
    }
  }
}

}  // namespace
}  // namespace tessera::files
