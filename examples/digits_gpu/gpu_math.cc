// SPDX-License-Identifier: Apache-2.0
#include "examples/digits_gpu/gpu_math.h"

#include "absl/strings/str_cat.h"

namespace tessera::examples {

// A row-major matrix, read by columns, is its transpose. So out = a b is asked for as its
// transpose, b^T a^T: the second matrix comes first, and is stored transposed already unless `b` is
// meant to be. Likewise for `a`.
Status GpuMath::multiply(const Matrix& a, const Matrix& b, float* out, void* stream) {
  if (a.cols != b.rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("multiply: a is [", a.rows, ", ", a.cols, "] and b is [", b.rows, ", ", b.cols,
                     "]; a should have as many columns as b has rows"));
  }
  if (a.rows == 0 || b.cols == 0) return absl::OkStatus();
  if (a.cols == 0) {
    return launch(SumOfRows{.values = nullptr, .out = out, .rows = 0, .cols = a.rows * b.cols},
                  stream);
  }
  return run_gemm({.transpose_a = b.is_transposed,
                   .transpose_b = a.is_transposed,
                   .m = b.cols,
                   .n = a.rows,
                   .k = a.cols,
                   .a = b.data,
                   .lda = b.is_transposed ? b.rows : b.cols,
                   .b = a.data,
                   .ldb = a.is_transposed ? a.rows : a.cols,
                   .d = out,
                   .ldd = b.cols},
                  stream);
}

Status GpuMath::launch(const DigitsKernel& kernel, void* stream) {
  const bool has_items =
      std::visit([](const auto& values) { return values.num_items() > 0; }, kernel);
  return has_items ? run_kernel(kernel, stream) : absl::OkStatus();
}

}  // namespace tessera::examples
