// SPDX-License-Identifier: Apache-2.0
//
// Helpers of operations that are composed of other operations. Internal, for ops/ and nn/.
//
// f16 and bf16. A composed operation computes in f32 and rounds its result, and each gradient,
// once; so its result depends on a layout by no more than a rounding. Only partial results are
// rounded term by term, as in primitive operations.
//
//   return in_f32({&x, 1}, out, [](absl::Span<const DTensor> x, const Out& out) {
//     return sqrt(sum(square(x[0])), out);
//   });
#ifndef TESSERA_OPS_COMPOSITE_H_
#define TESSERA_OPS_COMPOSITE_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "dtensor/dtensor.h"
#include "ops/operation.h"
#include "ops/out.h"
#include "ops/reductions.h"

namespace tessera::ops {

// x, reduced over its partial axes; its dims stay split as they are.
DTensor without_partial(const DTensor& x);
// The result of a composition: under `out`, or without partial axes.
DTensor finish(DTensor x, const Out& out);
// Sums a gradient back to this shape, from which an operand was broadcast.
DTensor sum_to(const DTensor& cotangent, const Shape& shape);
// The largest elements along the dims, which stay with size 1, within the finite numbers: to be
// subtracted from exponents. f32 and f64 only.
DTensor finite_max(const DTensor& x, const Dims& dims);

inline bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

// compute(operands, out), which gives a tensor of the dtype of operand 0. Where that is f16 or bf16
// it gets such operands as f32, and the result is rounded. Tapes record it as it is computed, so
// gradients are computed in f32 too.
using Computation = absl::FunctionRef<DTensor(absl::Span<const DTensor> operands, const Out& out)>;
DTensor in_f32(absl::Span<const DTensor> operands, const Out& out, Computation compute);

// As cast() of floats, but casts each term of a sum or average by itself: nothing is sent.
DTensor cast_terms(const DTensor& x, DType dtype);
// Tensors of f16 and bf16 as f32, others as they are.
std::vector<DTensor> widened(absl::Span<const DTensor> tensors);

// The gradients of an operation whose operands have one dtype. For f16 and bf16 they are computed
// from operands, cotangent and `result` in f32, and rounded. `result` is computed in f32 again,
// because differences such as 1 - y^2 magnify its rounding. Without `result` the result of the call
// is used.
using Derivative = absl::FunctionRef<Gradients(const GradientCall& call)>;
using Recomputation = absl::FunctionRef<DTensor(absl::Span<const DTensor> operands)>;
Gradients gradients_in_f32(const GradientCall& call, Derivative derivative);
Gradients gradients_in_f32(const GradientCall& call, Recomputation result, Derivative derivative);

}  // namespace tessera::ops

#endif  // TESSERA_OPS_COMPOSITE_H_
