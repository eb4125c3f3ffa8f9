// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/dtypes.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "files/safetensors.h"

namespace tessera::checkpoint::internal {
namespace {

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
  // Other dtypes have the names of safetensors, in lower case.
  if (absl::AsciiStrToLower(dtype) != dtype) return std::nullopt;
  return files::bits_of_safetensors(absl::AsciiStrToUpper(dtype));
}

StatusOr<DType> dtype_of(const TensorInfo& tensor) {
  const std::optional<DType> known = known_dtype(tensor.dtype);
  if (known.has_value()) return *known;
  if (dtype_bits(tensor.dtype).has_value()) {
    return absl::UnimplementedError(
        absl::StrCat("tensor ", in_quotes(tensor.name), " is ", tensor.dtype,
                     ", which Tessera does not have; it can restore bool, i8, u8, i32, i64, f16, "
                     "bf16, f32 and f64"));
  }
  return absl::InvalidArgumentError(absl::StrCat("tensor ", in_quotes(tensor.name), ": ",
                                                 in_quotes(tensor.dtype), " is no dtype"));
}

}  // namespace tessera::checkpoint::internal
