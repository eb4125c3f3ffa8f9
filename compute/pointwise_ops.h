// SPDX-License-Identifier: Apache-2.0
//
// The elementwise operations, as a list and as an enumeration. The functions of operations and the
// kernels of engines follow from the list.
//
// nvcc reads this header: it includes nothing but the language's integers.
#ifndef TESSERA_COMPUTE_POINTWISE_OPS_H_
#define TESSERA_COMPUTE_POINTWISE_OPS_H_

#include <cstdint>

namespace tessera::kernels {

// The dtypes that an op takes.
enum class DTypes : uint8_t { kFloats, kNumbers, kBool, kAnything };

// The ops by what they need of a GPU. Each family has a kernel of its own: a kernel of all ops has
// the registers and the stack of the most expensive op, and fewer threads at a time.
enum class OpFamily : uint8_t {
  kArithmetic,    // a few instructions
  kFunction,      // divisions, roots, exponentials and the like
  kRareFunction,  // many registers or a stack
  kPredicate,     // gives bool; all other families give the dtype of the operands
};

// name, operands, dtypes, family.
#define TESSERA_POINTWISE_OPS_(X)            \
  X(neg, 1, kNumbers, kArithmetic)           \
  X(abs, 1, kNumbers, kArithmetic)           \
  X(sign, 1, kNumbers, kArithmetic)          \
  X(square, 1, kNumbers, kArithmetic)        \
  X(relu, 1, kNumbers, kArithmetic)          \
  X(exp, 1, kFloats, kFunction)              \
  X(expm1, 1, kFloats, kFunction)            \
  X(log, 1, kFloats, kFunction)              \
  X(log1p, 1, kFloats, kFunction)            \
  X(sqrt, 1, kFloats, kFunction)             \
  X(rsqrt, 1, kFloats, kFunction)            \
  X(reciprocal, 1, kFloats, kFunction)       \
  X(sin, 1, kFloats, kRareFunction)          \
  X(cos, 1, kFloats, kRareFunction)          \
  X(tanh, 1, kFloats, kFunction)             \
  X(sigmoid, 1, kFloats, kFunction)          \
  X(gelu, 1, kFloats, kFunction)             \
  X(silu, 1, kFloats, kFunction)             \
  X(erf, 1, kFloats, kFunction)              \
  X(softplus, 1, kFloats, kFunction)         \
  X(floor, 1, kFloats, kArithmetic)          \
  X(ceil, 1, kFloats, kArithmetic)           \
  X(round, 1, kFloats, kArithmetic)          \
  X(is_nan, 1, kFloats, kPredicate)          \
  X(logical_not, 1, kBool, kPredicate)       \
  X(add, 2, kNumbers, kArithmetic)           \
  X(sub, 2, kNumbers, kArithmetic)           \
  X(mul, 2, kNumbers, kArithmetic)           \
  X(mul_or_zero, 2, kFloats, kArithmetic)    \
  X(div, 2, kFloats, kFunction)              \
  X(div_or_zero, 2, kFloats, kFunction)      \
  X(floor_div, 2, kNumbers, kRareFunction)   \
  X(mod, 2, kNumbers, kRareFunction)         \
  X(pow, 2, kNumbers, kRareFunction)         \
  X(maximum, 2, kAnything, kArithmetic)      \
  X(minimum, 2, kAnything, kArithmetic)      \
  X(equal, 2, kAnything, kPredicate)         \
  X(not_equal, 2, kAnything, kPredicate)     \
  X(less, 2, kAnything, kPredicate)          \
  X(less_equal, 2, kAnything, kPredicate)    \
  X(greater, 2, kAnything, kPredicate)       \
  X(greater_equal, 2, kAnything, kPredicate) \
  X(logical_and, 2, kBool, kPredicate)       \
  X(logical_or, 2, kBool, kPredicate)

enum class PointwiseOp : uint8_t {
#define TESSERA_ENUMERATOR_(name, operands, dtypes, family) name,
  TESSERA_POINTWISE_OPS_(TESSERA_ENUMERATOR_)
#undef TESSERA_ENUMERATOR_
};

constexpr OpFamily family_of(PointwiseOp op) {
  constexpr OpFamily kFamilies[] = {
#define TESSERA_FAMILY_(name, operands, dtypes, family) OpFamily::family,
      TESSERA_POINTWISE_OPS_(TESSERA_FAMILY_)
#undef TESSERA_FAMILY_
  };
  return kFamilies[static_cast<int>(op)];
}
constexpr bool gives_bool(PointwiseOp op) { return family_of(op) == OpFamily::kPredicate; }

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_POINTWISE_OPS_H_
