// SPDX-License-Identifier: Apache-2.0
//
// The formulas of the elementwise operations, which threads of the host and kernels of GPUs have in
// common: one function for each op of pointwise_ops.h, by its name.
//
//   formulas::softplus<Math>(x)    `Math` has the functions of the two lists below
//
// Elements are bool, integers, float or double; a GPU has uint8_t for bool. Integers wrap. Callers
// compute f16 and bf16 in float and round once.
//
// Pure functions. Conditions of floats are joined by `|`, which is no branch, so that compilers may
// use vectors. nvcc reads this header: it includes nothing but the language's headers.
#ifndef TESSERA_COMPUTE_POINTWISE_MATH_H_
#define TESSERA_COMPUTE_POINTWISE_MATH_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "compute/pointwise_ops.h"
#include "device/kernel_body.h"
#include "device/number_math.h"

namespace tessera::kernels {

// Functions of float and double that a library computes, by their names in C. The host takes them
// from libmvec. A formula that needs another function adds it here.
#define TESSERA_LIBRARY_MATH_(UNARY, BINARY) \
  UNARY(exp)                                 \
  UNARY(expm1)                               \
  UNARY(log)                                 \
  UNARY(log1p)                               \
  UNARY(sin)                                 \
  UNARY(cos)                                 \
  UNARY(tanh)                                \
  UNARY(erf)                                 \
  UNARY(erfc)                                \
  BINARY(pow)
// Functions whose results are exact or rounded once. Compilers know them.
#define TESSERA_EXACT_MATH_(UNARY, BINARY) \
  UNARY(sqrt)                              \
  UNARY(fabs)                              \
  UNARY(floor)                             \
  UNARY(ceil)                              \
  UNARY(rint)                              \
  BINARY(fmod)

// Whether an op of these dtypes takes elements that are computed as T.
template <class T>
TESSERA_KERNEL_BODY constexpr bool takes(DTypes dtypes) {
  switch (dtypes) {
    case DTypes::kFloats:
      return std::is_floating_point_v<T>;
    case DTypes::kNumbers:
      return !std::is_same_v<T, bool>;
    case DTypes::kBool:
      return std::is_same_v<T, bool> || std::is_same_v<T, uint8_t>;
    case DTypes::kAnything:
      return true;
  }
  return false;
}

namespace formulas {

// nvcc warns of a comparison of an unsigned integer with 0.
template <class T>
TESSERA_KERNEL_BODY bool is_negative(T x) {
  if constexpr (std::is_unsigned_v<T>) {
    return false;
  } else {
    return x < 0;
  }
}
template <class Math, class T>
TESSERA_KERNEL_BODY T add(T x, T y) {
  return wrapped_sum(x, y);
}
template <class Math, class T>
TESSERA_KERNEL_BODY T sub(T x, T y) {
  return static_cast<T>(as_unsigned(x) - as_unsigned(y));
}
template <class Math, class T>
TESSERA_KERNEL_BODY T mul(T x, T y) {
  return wrapped_product(x, y);
}
// 0 where either factor is 0, whatever the other is.
template <class Math, class T>
TESSERA_KERNEL_BODY T mul_or_zero(T x, T y) {
  return ((x == 0) | (y == 0)) ? T(0) : x * y;
}
template <class Math, class T>
TESSERA_KERNEL_BODY T div(T x, T y) {
  return x / y;
}
// 0 where x is 0 or y is infinite.
template <class Math, class T>
TESSERA_KERNEL_BODY T div_or_zero(T x, T y) {
  return ((x == 0) | (Math::fabs(y) == static_cast<T>(HUGE_VAL))) ? T(0) : x / y;
}
// Integers: 0 where y is 0.
template <class Math, class T>
TESSERA_KERNEL_BODY T floor_div(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) {
    return floor_quotient(x, y);
  } else {
    if (y == 0) return 0;
    if constexpr (std::is_signed_v<T>) {
      if (y == -1) return sub<Math>(T(0), x);
      return static_cast<T>(x / y - (x % y != 0 && (x < 0) != (y < 0) ? 1 : 0));
    } else {
      return static_cast<T>(x / y);
    }
  }
}
// The sign is the divisor's. Integers: 0 where y is 0.
template <class Math, class T>
TESSERA_KERNEL_BODY T mod(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) {
    const T r = Math::fmod(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
  } else {
    return y == 0 ? T(0) : sub<Math>(x, mul<Math>(floor_div<Math>(x, y), y));
  }
}
// Integers: 0 where the power is a fraction.
template <class Math, class T>
TESSERA_KERNEL_BODY T pow(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) {
    return Math::pow(x, y);
  } else {
    if constexpr (std::is_signed_v<T>) {
      if (y < 0) return x == 1 ? T(1) : x == T(-1) ? (y % 2 == 0 ? T(1) : T(-1)) : T(0);
    }
    T result = 1;
    for (; y > 0; y = static_cast<T>(y >> 1), x = mul<Math>(x, x)) {
      if ((y & 1) != 0) result = mul<Math>(result, x);
    }
    return result;
  }
}
// NaN only where both are.
template <class Math, class T>
TESSERA_KERNEL_BODY T maximum(T x, T y) {
  return ((x > y) | (y != y)) ? x : y;
}
template <class Math, class T>
TESSERA_KERNEL_BODY T minimum(T x, T y) {
  return ((x < y) | (y != y)) ? x : y;
}

template <class Math, class T>
TESSERA_KERNEL_BODY T neg(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return -x;
  } else {
    return sub<Math>(T(0), x);
  }
}
template <class Math, class T>
TESSERA_KERNEL_BODY T abs(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return Math::fabs(x);
  } else {
    return is_negative(x) ? sub<Math>(T(0), x) : x;
  }
}
// NaN of NaN.
template <class Math, class T>
TESSERA_KERNEL_BODY T sign(T x) {
  const T sign = static_cast<T>((x > T(0) ? T(1) : T(0)) - (is_negative(x) ? T(1) : T(0)));
  return x != x ? x : sign;
}
template <class Math, class T>
TESSERA_KERNEL_BODY T square(T x) {
  return mul<Math>(x, x);
}
template <class Math, class T>
TESSERA_KERNEL_BODY T relu(T x) {
  return is_negative(x) ? T(0) : x;
}
template <class Math, class T>
TESSERA_KERNEL_BODY T reciprocal(T x) {
  return 1 / x;
}
template <class Math, class T>
TESSERA_KERNEL_BODY T floor(T x) {
  return Math::floor(x);
}
template <class Math, class T>
TESSERA_KERNEL_BODY T ceil(T x) {
  return Math::ceil(x);
}
// Half to even.
template <class Math, class T>
TESSERA_KERNEL_BODY T round(T x) {
  return Math::rint(x);
}

template <class Math, class T>
TESSERA_KERNEL_BODY T exp(T x) {
  return Math::exp(x);
}
template <class Math, class T>
TESSERA_KERNEL_BODY T expm1(T x) {
  return Math::expm1(x);
}
template <class Math, class T>
TESSERA_KERNEL_BODY T log(T x) {
  return Math::log(x);
}
template <class Math, class T>
TESSERA_KERNEL_BODY T log1p(T x) {
  return Math::log1p(x);
}
template <class Math, class T>
TESSERA_KERNEL_BODY T sqrt(T x) {
  return Math::sqrt(x);
}
template <class Math, class T>
TESSERA_KERNEL_BODY T rsqrt(T x) {
  return 1 / Math::sqrt(x);
}
template <class Math, class T>
TESSERA_KERNEL_BODY T sin(T x) {
  return Math::sin(x);
}
template <class Math, class T>
TESSERA_KERNEL_BODY T cos(T x) {
  return Math::cos(x);
}
template <class Math, class T>
TESSERA_KERNEL_BODY T tanh(T x) {
  return Math::tanh(x);
}
template <class Math, class T>
TESSERA_KERNEL_BODY T erf(T x) {
  return Math::erf(x);
}
// The exponential is at most 1 on both sides of 0, so it does not overflow.
template <class Math, class T>
TESSERA_KERNEL_BODY T sigmoid(T x) {
  const T e = Math::exp(-Math::fabs(x));
  return (x >= 0 ? T(1) : e) / (1 + e);
}
template <class Math, class T>
TESSERA_KERNEL_BODY T silu(T x) {
  return x * sigmoid<Math>(x);
}
// By erfc, which is exact where 1 + erf cancels.
template <class Math, class T>
TESSERA_KERNEL_BODY T gelu(T x) {
  return x / 2 * Math::erfc(-x * static_cast<T>(0.70710678118654752440));
}
template <class Math, class T>
TESSERA_KERNEL_BODY T softplus(T x) {
  return (x > 0 ? x : T(0)) + Math::log1p(Math::exp(-Math::fabs(x)));
}

template <class Math, class T>
TESSERA_KERNEL_BODY bool is_nan(T x) {
  return x != x;
}
template <class Math, class T>
TESSERA_KERNEL_BODY bool logical_not(T x) {
  return !x;
}
template <class Math, class T>
TESSERA_KERNEL_BODY bool logical_and(T x, T y) {
  return x && y;
}
template <class Math, class T>
TESSERA_KERNEL_BODY bool logical_or(T x, T y) {
  return x || y;
}
template <class Math, class T>
TESSERA_KERNEL_BODY bool equal(T x, T y) {
  return x == y;
}
template <class Math, class T>
TESSERA_KERNEL_BODY bool not_equal(T x, T y) {
  return x != y;
}
template <class Math, class T>
TESSERA_KERNEL_BODY bool less(T x, T y) {
  return x < y;
}
template <class Math, class T>
TESSERA_KERNEL_BODY bool less_equal(T x, T y) {
  return x <= y;
}
template <class Math, class T>
TESSERA_KERNEL_BODY bool greater(T x, T y) {
  return x > y;
}
template <class Math, class T>
TESSERA_KERNEL_BODY bool greater_equal(T x, T y) {
  return x >= y;
}

}  // namespace formulas
}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_POINTWISE_MATH_H_
