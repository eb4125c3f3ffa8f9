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
// that differ or that the operation does not take, shapes that do not broadcast, and calls that
// run() refuses (op.h). f16 and bf16 are computed in f32 and rounded once; integers wrap.
#ifndef TESSERA_OPS_POINTWISE_H_
#define TESSERA_OPS_POINTWISE_H_

#include "base/dtype.h"
#include "dtensor/dtensor.h"
#include "ops/out.h"
#include "ops/scalar.h"

namespace tessera {
namespace ops {

#define TESSERA_UNARY_(name) DTensor name(const DTensor& x, const Out& out = {});
#define TESSERA_BINARY_(name)                                            \
  DTensor name(const DTensor& a, const DTensor& b, const Out& out = {}); \
  DTensor name(const DTensor& a, const Scalar& b, const Out& out = {});  \
  DTensor name(const Scalar& a, const DTensor& b, const Out& out = {});

// Takes numbers.
TESSERA_UNARY_(neg)
TESSERA_UNARY_(abs)
TESSERA_UNARY_(sign)
TESSERA_UNARY_(square)
TESSERA_UNARY_(relu)
// Takes floats.
TESSERA_UNARY_(exp)
TESSERA_UNARY_(expm1)
TESSERA_UNARY_(log)
TESSERA_UNARY_(log1p)
TESSERA_UNARY_(sqrt)
TESSERA_UNARY_(rsqrt)
TESSERA_UNARY_(reciprocal)
TESSERA_UNARY_(sin)
TESSERA_UNARY_(cos)
TESSERA_UNARY_(tanh)
TESSERA_UNARY_(sigmoid)
TESSERA_UNARY_(gelu)  // by erf
TESSERA_UNARY_(silu)
TESSERA_UNARY_(erf)
TESSERA_UNARY_(softplus)
TESSERA_UNARY_(floor)
TESSERA_UNARY_(ceil)
TESSERA_UNARY_(round)  // half to even
// Gives bool.
TESSERA_UNARY_(is_nan)       // of floats
TESSERA_UNARY_(logical_not)  // of bool

// Takes numbers; div takes floats.
TESSERA_BINARY_(add)
TESSERA_BINARY_(sub)
TESSERA_BINARY_(mul)
TESSERA_BINARY_(div)
// For masks and gradients; takes floats. 0 where a is 0, or b is 0 or (div_or_zero) infinite,
// whatever the other operand is; else a b, or a / b.
TESSERA_BINARY_(mul_or_zero)
TESSERA_BINARY_(div_or_zero)
// The floor of the exact quotient, also of floats: 1 by 0.1 is 9. An integer divided by 0 is 0.
TESSERA_BINARY_(floor_div)
TESSERA_BINARY_(mod)  // has the sign of b; of an integer and 0 it is 0
TESSERA_BINARY_(pow)  // an integer to a negative power is truncated
// NaN only where both operands are NaN.
TESSERA_BINARY_(maximum)
TESSERA_BINARY_(minimum)
// Gives bool; logical operations take bool.
TESSERA_BINARY_(equal)
TESSERA_BINARY_(not_equal)
TESSERA_BINARY_(less)
TESSERA_BINARY_(less_equal)
TESSERA_BINARY_(greater)
TESSERA_BINARY_(greater_equal)
TESSERA_BINARY_(logical_and)
TESSERA_BINARY_(logical_or)

#undef TESSERA_UNARY_
#undef TESSERA_BINARY_

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
