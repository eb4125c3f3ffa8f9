// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/dtypes.h"

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tessera::checkpoint::internal {
namespace {

struct ForeignDType {
  absl::string_view name;
  int64_t bits;
};

// The other dtypes of safetensors, in lower case.
constexpr ForeignDType kForeignDTypes[] = {
    {"f4", 4},      {"f6_e2m3", 6},     {"f6_e3m2", 6},     {"f8_e5m2", 8}, {"f8_e4m3", 8},
    {"f8_e8m0", 8}, {"f8_e5m2fnuz", 8}, {"f8_e4m3fnuz", 8}, {"i16", 16},    {"u16", 16},
    {"u32", 32},    {"u64", 64},        {"c64", 64},
};

std::optional<DType> known_dtype(absl::string_view name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (dtype_name(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> dtype_bits(absl::string_view dtype) {
  const std::optional<DType> known = known_dtype(dtype);
  if (known.has_value()) return dtype_size(*known) * 8;
  for (const ForeignDType& foreign : kForeignDTypes) {
    if (foreign.name == dtype) return foreign.bits;
  }
  return std::nullopt;
}

StatusOr<DType> dtype_of(const TensorInfo& tensor) {
  const std::optional<DType> known = known_dtype(tensor.dtype);
  if (known.has_value()) return *known;
  if (dtype_bits(tensor.dtype).has_value()) {
    return absl::UnimplementedError(
        absl::StrCat("tensor ", quoted(tensor.name), " is ", tensor.dtype,
                     ", which Tessera does not have; it can restore bool, i8, u8, i32, i64, f16, "
                     "bf16, f32 and f64"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", quoted(tensor.name), ": ", quoted(tensor.dtype), " is no dtype"));
}

}  // namespace tessera::checkpoint::internal
