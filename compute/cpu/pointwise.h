// SPDX-License-Identifier: Apache-2.0
//
// Kernels of elementwise operations. Pure functions of one device's memory; they know nothing of
// layouts, allocate nothing for ranks of 8 and less, and may run in several threads at once.
//
// Numerics: f16 and bf16 are computed in f32 and rounded once; integers wrap. maximum and minimum
// ignore NaN. round is half to even; mod takes the sign of the divisor; gelu uses erf.
#ifndef TESSERA_COMPUTE_CPU_POINTWISE_H_
#define TESSERA_COMPUTE_CPU_POINTWISE_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "compute/engine.h"
#include "compute/pointwise_ops.h"
#include "device/arithmetic.h"

namespace tessera::kernels {

struct PointwiseInfo {
  const char* name;
  DTypes dtypes;
};
const PointwiseInfo& pointwise_info(PointwiseOp op);
bool accepts(DTypes dtypes, DType dtype);

// out[i] = op(operands[i]...) for every index of a dense result of these sizes. Operands are of
// `dtype`; the result is bool where the op gives bool, else of `dtype`. Requires
// accepts(pointwise_info(op).dtypes, dtype).
void pointwise(InstructionSet set, PointwiseOp op, DType dtype, absl::Span<const Strided> operands,
               absl::Span<const int64_t> sizes, std::byte* out);

// out[i] = condition[i] ? a[i] : b[i]; the condition is of bool.
void select(DType dtype, const Strided& condition, const Strided& a, const Strided& b,
            absl::Span<const int64_t> sizes, std::byte* out);

// out[i] = the nearest value to in[i] from low to high, elements of the dtype; NaN stays. Dense.
// Numbers; requires low <= high.
void clip(DType dtype, const std::byte* in, const std::byte* low, const std::byte* high,
          int64_t num_elements, std::byte* out);

// out[i] = in[i]: transposes, broadcasts, slices.
void copy_strided(DType dtype, const Strided& in, absl::Span<const int64_t> sizes, std::byte* out);

// Dense. A float becomes an integer by truncation; to bool is "not zero"; a narrower float is
// rounded to nearest, ties to even. Floats outside the range of an integer become its nearest
// value, and NaN 0.
void cast(DType from, DType to, const std::byte* in, std::byte* out, int64_t num_elements);

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_CPU_POINTWISE_H_
