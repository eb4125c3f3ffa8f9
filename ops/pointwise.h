// SPDX-License-Identifier: Apache-2.0
//
// Elementwise operations, with NumPy's broadcasting.
//
//   DTensor y = ops::relu(x * w + 1.0);
//
// The result has the layout on which the operands agree: each of its dims is split as the operands
// split it, and an operand that does not split a dim is sliced for nothing. neg, add, sub, select,
// mul (each operand by itself), div (the numerator), and add, sub, mul and div with a scalar keep
// sums and averages partial; other operations reduce partial operands first.
//
// Operands have one dtype, except where a C++ scalar takes the tensor's. InvalidArgument for dtypes
// that differ or that the operation does not take, shapes that do not broadcast, and operands on
// different meshes. f16 and bf16 are computed in f32 and rounded once; integers wrap.
#ifndef TESSERA_OPS_POINTWISE_H_
#define TESSERA_OPS_POINTWISE_H_

#include "base/dtype.h"
#include "compute/pointwise_ops.h"
#include "dtensor/dtensor.h"
#include "ops/out.h"
#include "ops/scalar.h"

namespace tessera {
namespace ops {

// A function for each row of compute/pointwise_ops.h, which lists the names and the dtypes:
//
//   DTensor exp(const DTensor& x, const Out& out = {});             rows of one operand
//
//   DTensor add(const DTensor& a, const DTensor& b, const Out& out = {});      rows of two
//   DTensor add(const DTensor& a, const Scalar& b, const Out& out = {});
//   DTensor add(const Scalar& a, const DTensor& b, const Out& out = {});
//
//   gelu          by erf
//   round         half to even
//   mul_or_zero   for masks and gradients: 0 where a or b is 0, whatever the other operand is
//   div_or_zero   0 where a is 0, or b is 0 or infinite, whatever the other operand is
//   floor_div     the floor of the exact quotient, also of floats: 1 by 0.1 is 9; 0 for an integer
//                 divided by 0
//   mod           has the sign of b; 0 for an integer and 0
//   pow           an integer to a negative power is truncated
//   maximum, minimum   NaN only where both operands are NaN
//   is_nan, equal, less, logical_and, ...   give bool
#define TESSERA_FUNCTION_1_(name) DTensor name(const DTensor& x, const Out& out = {});
#define TESSERA_FUNCTION_2_(name)                                        \
  DTensor name(const DTensor& a, const DTensor& b, const Out& out = {}); \
  DTensor name(const DTensor& a, const Scalar& b, const Out& out = {});  \
  DTensor name(const Scalar& a, const DTensor& b, const Out& out = {});
#define TESSERA_FUNCTION_(name, operands, dtypes, family) TESSERA_FUNCTION_##operands##_(name)
TESSERA_POINTWISE_OPS_(TESSERA_FUNCTION_)
#undef TESSERA_FUNCTION_
#undef TESSERA_FUNCTION_2_
#undef TESSERA_FUNCTION_1_

// a where the condition, a tensor of bool, holds, else b.
DTensor select(const DTensor& condition, const DTensor& a, const DTensor& b, const Out& out = {});
// The nearest value in [low, high], of numbers; NaN stays. The gradient passes at the bounds.
DTensor clip(const DTensor& x, const Scalar& low, const Scalar& high, const Out& out = {});

// A float becomes an integer by truncation, and the nearest one where it is out of range (0 for
// NaN); to bool is "not zero"; a narrower float is rounded to nearest, ties to even.
DTensor cast(const DTensor& x, DType dtype, const Out& out = {});
template <HasDType T>
DTensor cast(const DTensor& x, const Out& out = {}) {
  return cast(x, dtype_of<T>(), out);
}

}  // namespace ops

inline DTensor operator-(const DTensor& x) { return ops::neg(x); }
#define TESSERA_OPERATOR_(symbol, name)                                                          \
  inline DTensor operator symbol(const DTensor& a, const DTensor& b) { return ops::name(a, b); } \
  inline DTensor operator symbol(const DTensor& a, const ops::Scalar& b) {                       \
    return ops::name(a, b);                                                                      \
  }                                                                                              \
  inline DTensor operator symbol(const ops::Scalar& a, const DTensor& b) { return ops::name(a, b); }
TESSERA_OPERATOR_(+, add)
TESSERA_OPERATOR_(-, sub)
TESSERA_OPERATOR_(*, mul)
TESSERA_OPERATOR_(/, div)
#undef TESSERA_OPERATOR_

}  // namespace tessera

#endif  // TESSERA_OPS_POINTWISE_H_
