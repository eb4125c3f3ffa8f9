// SPDX-License-Identifier: Apache-2.0
//
// What operations that are made of others have in common. Internal to ops/.
//
// f16 and bf16. An operation that is made of others computes them in f32 and rounds its result, and
// each gradient, once; so what it gives depends on a layout by no more than a rounding. Only
// partial results are rounded term by term, as those of primitive operations are.
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
#include "dtensor/dtensor.h"
#include "ops/gradient.h"
#include "ops/out.h"
#include "ops/reductions.h"

namespace tessera::ops {

// The same value under the same dims with no partial axes.
DTensor without_partial(const DTensor& x);
// The result of a composition: under `out`, or without partial axes.
DTensor finish(DTensor x, const Out& out);
// The largest elements along the dims, which stay with size 1, within the finite numbers: what is
// subtracted from exponents. Of f32 and f64.
DTensor finite_max(const DTensor& x, const Dims& dims);

inline bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

// compute(operands, out), which gives a tensor of the dtype of operand 0. Where that is f16 or bf16
// it gets such operands as f32, and the result is rounded. Tapes record it as it is computed, so
// gradients are computed in f32 too.
using Computation = absl::FunctionRef<DTensor(absl::Span<const DTensor> operands, const Out& out)>;
DTensor in_f32(absl::Span<const DTensor> operands, const Out& out, Computation compute);

// As cast() of floats, of each term of a sum or average by itself: nothing is sent.
DTensor cast_terms(const DTensor& x, DType dtype);
// Tensors of f16 and bf16 as f32, others as they are.
std::vector<DTensor> widened(absl::Span<const DTensor> tensors);

// The gradients of an operation whose operands are of one dtype. Where that is f16 or bf16 they are
// computed of f32, and rounded: of the operands, the cotangent and `result`, which is computed of
// f32 too, because differences such as 1 - y^2 magnify what rounding did to it. Without `result`
// that of the call is used.
using Derivative = absl::FunctionRef<Gradients(const GradientCall& call)>;
using Recomputation = absl::FunctionRef<DTensor(absl::Span<const DTensor> operands)>;
Gradients gradients_in_f32(const GradientCall& call, Derivative derivative);
Gradients gradients_in_f32(const GradientCall& call, Recomputation result, Derivative derivative);

}  // namespace tessera::ops

#endif  // TESSERA_OPS_COMPOSITE_H_
