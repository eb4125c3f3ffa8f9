// SPDX-License-Identifier: Apache-2.0
//
// Elementwise operations, with NumPy's broadcasting.
//
//   DTensor y = ops::relu(x * w + 1.0);
//   y /= 2;
//   DTensor is_large = y > 0.5;            of bool
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
#include "base/public.h"
#include "dtensor/dtensor.h"
#include "ops/out.h"
#include "ops/scalar.h"

namespace TESSERA_PUBLIC tessera {
namespace ops {

// Each function has its formula, and behind "dx", "da" and "db" the derivative by the operand,
// where y is the result. A gradient is the derivative times the cotangent of the result, and 0
// where one of the two is 0. Results of bool and of integers have none.

// ---- One operand: numbers

// -x; dx: -1
DTensor neg(const DTensor& x, const Out& out = {});
// |x|; dx: sign(x)
DTensor abs(const DTensor& x, const Out& out = {});
// -1, 0 or 1, NaN of NaN; dx: 0
DTensor sign(const DTensor& x, const Out& out = {});
// x^2; dx: 2 x
DTensor square(const DTensor& x, const Out& out = {});
// x where x > 0, else 0; dx: 1 where x > 0, else 0
DTensor relu(const DTensor& x, const Out& out = {});

// ---- One operand: floats

// e^x; dx: y
DTensor exp(const DTensor& x, const Out& out = {});
// e^x - 1, also exact near 0; dx: y + 1
DTensor expm1(const DTensor& x, const Out& out = {});
// ln(x); dx: 1 / x
DTensor log(const DTensor& x, const Out& out = {});
// ln(1 + x), also exact near 0; dx: 1 / (1 + x)
DTensor log1p(const DTensor& x, const Out& out = {});
// The square root; dx: 1 / (2 y)
DTensor sqrt(const DTensor& x, const Out& out = {});
// 1 / sqrt(x); dx: -y^3 / 2
DTensor rsqrt(const DTensor& x, const Out& out = {});
// 1 / x; dx: -y^2
DTensor reciprocal(const DTensor& x, const Out& out = {});
// The sine; dx: cos(x)
DTensor sin(const DTensor& x, const Out& out = {});
// The cosine; dx: -sin(x)
DTensor cos(const DTensor& x, const Out& out = {});
// The hyperbolic tangent; dx: 1 - y^2
DTensor tanh(const DTensor& x, const Out& out = {});
// 1 / (1 + e^-x); dx: y (1 - y)
DTensor sigmoid(const DTensor& x, const Out& out = {});
// x c(x) with c(x) = (1 + erf(x / sqrt(2))) / 2; dx: c(x) + x e^(-x^2 / 2) / sqrt(2 pi)
DTensor gelu(const DTensor& x, const Out& out = {});
// x s with s = sigmoid(x); dx: s (1 + x (1 - s))
DTensor silu(const DTensor& x, const Out& out = {});
// The error function; dx: 2 e^(-x^2) / sqrt(pi)
DTensor erf(const DTensor& x, const Out& out = {});
// ln(1 + e^x), without overflow; dx: sigmoid(x)
DTensor softplus(const DTensor& x, const Out& out = {});
// The largest integer that is not above x; dx: 0
DTensor floor(const DTensor& x, const Out& out = {});
// The smallest integer that is not below x; dx: 0
DTensor ceil(const DTensor& x, const Out& out = {});
// The nearest integer, half to even; dx: 0
DTensor round(const DTensor& x, const Out& out = {});
// Whether x is NaN: bool
DTensor is_nan(const DTensor& x, const Out& out = {});

// ---- One operand: bool

// Whether x is false
DTensor logical_not(const DTensor& x, const Out& out = {});

// ---- Two operands: numbers

// a + b; da: 1, db: 1
DTensor add(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor add(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor add(const Scalar& a, const DTensor& b, const Out& out = {});

// a - b; da: 1, db: -1
DTensor sub(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor sub(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor sub(const Scalar& a, const DTensor& b, const Out& out = {});

// a b; da: b, db: a
DTensor mul(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor mul(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor mul(const Scalar& a, const DTensor& b, const Out& out = {});

// The floor of the exact quotient, also of floats: 1 by 0.1 is 9; 0 for an integer divided by 0;
// da: 0, db: 0
DTensor floor_div(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor floor_div(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor floor_div(const Scalar& a, const DTensor& b, const Out& out = {});

// a - floor_div(a, b) b, with the sign of b; 0 for an integer and 0; da: 1, db: -floor_div(a, b)
DTensor mod(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor mod(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor mod(const Scalar& a, const DTensor& b, const Out& out = {});

// a^b; an integer to a negative power is truncated; da: b a^(b - 1), db: y ln(a), and 0 where a is
// not positive
DTensor pow(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor pow(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor pow(const Scalar& a, const DTensor& b, const Out& out = {});

// ---- Two operands: floats

// a / b; da: 1 / b, db: -y / b
DTensor div(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor div(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor div(const Scalar& a, const DTensor& b, const Out& out = {});

// For masks and gradients: 0 where a or b is 0, whatever the other is, else a b; as mul()
DTensor mul_or_zero(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor mul_or_zero(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor mul_or_zero(const Scalar& a, const DTensor& b, const Out& out = {});

// 0 where a is 0 or b is infinite, whatever the other is, else a / b; as div()
DTensor div_or_zero(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor div_or_zero(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor div_or_zero(const Scalar& a, const DTensor& b, const Out& out = {});

// ---- Two operands: every dtype

// The larger one; NaN only where both are NaN; da: 1 where a is larger, 1/2 where the operands are
// equal, else 0; db: alike
DTensor maximum(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor maximum(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor maximum(const Scalar& a, const DTensor& b, const Out& out = {});

// The smaller one, as maximum()
DTensor minimum(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor minimum(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor minimum(const Scalar& a, const DTensor& b, const Out& out = {});

// Whether a = b: bool, as all below
DTensor equal(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor equal(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor equal(const Scalar& a, const DTensor& b, const Out& out = {});

// Whether a and b differ
DTensor not_equal(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor not_equal(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor not_equal(const Scalar& a, const DTensor& b, const Out& out = {});

// Whether a < b
DTensor less(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor less(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor less(const Scalar& a, const DTensor& b, const Out& out = {});

// Whether a <= b
DTensor less_equal(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor less_equal(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor less_equal(const Scalar& a, const DTensor& b, const Out& out = {});

// Whether a > b
DTensor greater(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor greater(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor greater(const Scalar& a, const DTensor& b, const Out& out = {});

// Whether a >= b
DTensor greater_equal(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor greater_equal(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor greater_equal(const Scalar& a, const DTensor& b, const Out& out = {});

// ---- Two operands: bool

// Whether both are true
DTensor logical_and(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor logical_and(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor logical_and(const Scalar& a, const DTensor& b, const Out& out = {});

// Whether one or both are true
DTensor logical_or(const DTensor& a, const DTensor& b, const Out& out = {});
DTensor logical_or(const DTensor& a, const Scalar& b, const Out& out = {});
DTensor logical_or(const Scalar& a, const DTensor& b, const Out& out = {});

// ---- Others

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

// ---- Operators
//
// Of tensors, and of a tensor and a C++ number on either side. Comparisons are elementwise and give
// tensors of bool; `%` is mod(). `x += y` is `x = x + y`: x becomes another tensor, and copies of x
// keep the value.

inline DTensor operator-(const DTensor& x) { return ops::neg(x); }

inline DTensor operator+(const DTensor& a, const DTensor& b) { return ops::add(a, b); }
inline DTensor operator+(const DTensor& a, const ops::Scalar& b) { return ops::add(a, b); }
inline DTensor operator+(const ops::Scalar& a, const DTensor& b) { return ops::add(a, b); }

inline DTensor operator-(const DTensor& a, const DTensor& b) { return ops::sub(a, b); }
inline DTensor operator-(const DTensor& a, const ops::Scalar& b) { return ops::sub(a, b); }
inline DTensor operator-(const ops::Scalar& a, const DTensor& b) { return ops::sub(a, b); }

inline DTensor operator*(const DTensor& a, const DTensor& b) { return ops::mul(a, b); }
inline DTensor operator*(const DTensor& a, const ops::Scalar& b) { return ops::mul(a, b); }
inline DTensor operator*(const ops::Scalar& a, const DTensor& b) { return ops::mul(a, b); }

inline DTensor operator/(const DTensor& a, const DTensor& b) { return ops::div(a, b); }
inline DTensor operator/(const DTensor& a, const ops::Scalar& b) { return ops::div(a, b); }
inline DTensor operator/(const ops::Scalar& a, const DTensor& b) { return ops::div(a, b); }

inline DTensor operator%(const DTensor& a, const DTensor& b) { return ops::mod(a, b); }
inline DTensor operator%(const DTensor& a, const ops::Scalar& b) { return ops::mod(a, b); }
inline DTensor operator%(const ops::Scalar& a, const DTensor& b) { return ops::mod(a, b); }

inline DTensor operator==(const DTensor& a, const DTensor& b) { return ops::equal(a, b); }
inline DTensor operator==(const DTensor& a, const ops::Scalar& b) { return ops::equal(a, b); }
inline DTensor operator==(const ops::Scalar& a, const DTensor& b) { return ops::equal(a, b); }

inline DTensor operator!=(const DTensor& a, const DTensor& b) { return ops::not_equal(a, b); }
inline DTensor operator!=(const DTensor& a, const ops::Scalar& b) { return ops::not_equal(a, b); }
inline DTensor operator!=(const ops::Scalar& a, const DTensor& b) { return ops::not_equal(a, b); }

inline DTensor operator<(const DTensor& a, const DTensor& b) { return ops::less(a, b); }
inline DTensor operator<(const DTensor& a, const ops::Scalar& b) { return ops::less(a, b); }
inline DTensor operator<(const ops::Scalar& a, const DTensor& b) { return ops::less(a, b); }

inline DTensor operator<=(const DTensor& a, const DTensor& b) { return ops::less_equal(a, b); }
inline DTensor operator<=(const DTensor& a, const ops::Scalar& b) { return ops::less_equal(a, b); }
inline DTensor operator<=(const ops::Scalar& a, const DTensor& b) { return ops::less_equal(a, b); }

inline DTensor operator>(const DTensor& a, const DTensor& b) { return ops::greater(a, b); }
inline DTensor operator>(const DTensor& a, const ops::Scalar& b) { return ops::greater(a, b); }
inline DTensor operator>(const ops::Scalar& a, const DTensor& b) { return ops::greater(a, b); }

inline DTensor operator>=(const DTensor& a, const DTensor& b) { return ops::greater_equal(a, b); }
inline DTensor operator>=(const DTensor& a, const ops::Scalar& b) {
  return ops::greater_equal(a, b);
}
inline DTensor operator>=(const ops::Scalar& a, const DTensor& b) {
  return ops::greater_equal(a, b);
}

inline DTensor& operator+=(DTensor& x, const DTensor& y) { return x = x + y; }
inline DTensor& operator+=(DTensor& x, const ops::Scalar& y) { return x = x + y; }
inline DTensor& operator-=(DTensor& x, const DTensor& y) { return x = x - y; }
inline DTensor& operator-=(DTensor& x, const ops::Scalar& y) { return x = x - y; }
inline DTensor& operator*=(DTensor& x, const DTensor& y) { return x = x * y; }
inline DTensor& operator*=(DTensor& x, const ops::Scalar& y) { return x = x * y; }
inline DTensor& operator/=(DTensor& x, const DTensor& y) { return x = x / y; }
inline DTensor& operator/=(DTensor& x, const ops::Scalar& y) { return x = x / y; }

}  // namespace tessera

#endif  // TESSERA_OPS_POINTWISE_H_
