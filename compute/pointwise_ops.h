// SPDX-License-Identifier: Apache-2.0
//
// The elementwise operations of engines, as a list and as an enumeration.
//
// nvcc reads this header: it includes nothing but the language's integers.
#ifndef TESSERA_COMPUTE_POINTWISE_OPS_H_
#define TESSERA_COMPUTE_POINTWISE_OPS_H_

#include <cstdint>

namespace tessera::kernels {

// name, operands, the dtypes that it takes, whether it gives bool.
#define TESSERA_POINTWISE_OPS_(X)      \
  X(neg, 1, kNumbers, false)           \
  X(abs, 1, kNumbers, false)           \
  X(sign, 1, kNumbers, false)          \
  X(square, 1, kNumbers, false)        \
  X(relu, 1, kNumbers, false)          \
  X(exp, 1, kFloats, false)            \
  X(expm1, 1, kFloats, false)          \
  X(log, 1, kFloats, false)            \
  X(log1p, 1, kFloats, false)          \
  X(sqrt, 1, kFloats, false)           \
  X(rsqrt, 1, kFloats, false)          \
  X(reciprocal, 1, kFloats, false)     \
  X(sin, 1, kFloats, false)            \
  X(cos, 1, kFloats, false)            \
  X(tanh, 1, kFloats, false)           \
  X(sigmoid, 1, kFloats, false)        \
  X(gelu, 1, kFloats, false)           \
  X(silu, 1, kFloats, false)           \
  X(erf, 1, kFloats, false)            \
  X(softplus, 1, kFloats, false)       \
  X(floor, 1, kFloats, false)          \
  X(ceil, 1, kFloats, false)           \
  X(round, 1, kFloats, false)          \
  X(is_nan, 1, kFloats, true)          \
  X(logical_not, 1, kBool, true)       \
  X(add, 2, kNumbers, false)           \
  X(sub, 2, kNumbers, false)           \
  X(mul, 2, kNumbers, false)           \
  X(mul_or_zero, 2, kFloats, false)    \
  X(div, 2, kFloats, false)            \
  X(div_or_zero, 2, kFloats, false)    \
  X(floor_div, 2, kNumbers, false)     \
  X(mod, 2, kNumbers, false)           \
  X(pow, 2, kNumbers, false)           \
  X(maximum, 2, kAnything, false)      \
  X(minimum, 2, kAnything, false)      \
  X(equal, 2, kAnything, true)         \
  X(not_equal, 2, kAnything, true)     \
  X(less, 2, kAnything, true)          \
  X(less_equal, 2, kAnything, true)    \
  X(greater, 2, kAnything, true)       \
  X(greater_equal, 2, kAnything, true) \
  X(logical_and, 2, kBool, true)       \
  X(logical_or, 2, kBool, true)

enum class PointwiseOp : uint8_t {
#define TESSERA_ENUMERATOR_(name, operands, dtypes, gives_bool) name,
  TESSERA_POINTWISE_OPS_(TESSERA_ENUMERATOR_)
#undef TESSERA_ENUMERATOR_
};

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_POINTWISE_OPS_H_
