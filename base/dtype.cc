// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.h"

#include "Eigen/Core"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

bool is_known(DType dtype) { return static_cast<int>(dtype) < kNumDTypes; }

}  // namespace

int64_t dtype_size(DType dtype) {
  if (!is_known(dtype)) return 0;
  return visit_dtype(dtype, []<class T>() -> int64_t { return sizeof(T); });
}

absl::string_view dtype_name(DType dtype) {
  static constexpr absl::string_view kNames[kNumDTypes] = {"bool", "i8",   "u8",  "i32", "i64",
                                                           "f16",  "bf16", "f32", "f64"};
  return is_known(dtype) ? kNames[static_cast<int>(dtype)] : "unknown";
}

Status validate_dtype(DType dtype) {
  if (is_known(dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("DType(", static_cast<int>(dtype),
                                                 ") is not an element type; use an enumerator of "
                                                 "DType, kBool (0) to kFloat64 (",
                                                 kNumDTypes - 1, ")"));
}

bool is_floating_point(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat32 ||
         dtype == DType::kFloat64;
}

}  // namespace tessera
