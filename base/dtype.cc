// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.h"

#include "Eigen/Core"

namespace tessera {

int64_t dtype_size(DType dtype) {
  return visit_dtype(dtype, []<class T>() -> int64_t { return sizeof(T); });
}

absl::string_view dtype_name(DType dtype) {
  static constexpr absl::string_view kNames[kNumDTypes] = {"bool", "i8",   "u8",  "i32", "i64",
                                                           "f16",  "bf16", "f32", "f64"};
  return kNames[static_cast<int>(dtype)];
}

bool is_floating_point(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat32 ||
         dtype == DType::kFloat64;
}

}  // namespace tessera
