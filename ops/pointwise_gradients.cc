// SPDX-License-Identifier: Apache-2.0
//
// A cotangent of 0 passes nothing on, and neither does a derivative of 0, whatever the other factor
// is: mul_or_zero. So a branch that was not taken adds no NaN to a gradient. Neither does an
// infinite derivative where the function inside it is flat.
#include "ops/pointwise_gradients.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "base/check.h"
#include "ops/composite.h"
#include "ops/pointwise.h"

namespace tessera::ops {
namespace {

using kernels::PointwiseOp;

// Labels of a switch: all operations with so many operands. An operation in no list, as a new one,
// does not compile.
#define TESSERA_NONE_(name)
#define TESSERA_LABEL_(name) case PointwiseOp::name:
#define TESSERA_UNARY_1_(name) TESSERA_LABEL_(name)
#define TESSERA_UNARY_2_(name) TESSERA_NONE_(name)
#define TESSERA_BINARY_1_(name) TESSERA_NONE_(name)
#define TESSERA_BINARY_2_(name) TESSERA_LABEL_(name)
#define TESSERA_IF_UNARY_(name, operands, dtypes, family) TESSERA_UNARY_##operands##_(name)
#define TESSERA_IF_BINARY_(name, operands, dtypes, family) TESSERA_BINARY_##operands##_(name)
#define TESSERA_UNARY_OPS_ TESSERA_POINTWISE_OPS_(TESSERA_IF_UNARY_)
#define TESSERA_BINARY_OPS_ TESSERA_POINTWISE_OPS_(TESSERA_IF_BINARY_)
// Operations of two operands that are flat: is_flat().
#define TESSERA_BINARY_OPS_WITHOUT_GRADIENT_ \
  case PointwiseOp::floor_div:               \
  case PointwiseOp::equal:                   \
  case PointwiseOp::not_equal:               \
  case PointwiseOp::less:                    \
  case PointwiseOp::less_equal:              \
  case PointwiseOp::greater:                 \
  case PointwiseOp::greater_equal:           \
  case PointwiseOp::logical_and:             \
  case PointwiseOp::logical_or:

// 1 where the condition holds, else 0.
DTensor mask(const DTensor& condition, const DTensor& like) {
  return cast(condition, like.dtype());
}

// The derivative of an operation with one operand.
DTensor unary_derivative(PointwiseOp op, const DTensor& x, const DTensor& y) {
  switch (op) {
    case PointwiseOp::abs:
      return sign(x);
    case PointwiseOp::square:
      return mul(x, 2);
    case PointwiseOp::relu:
      return mask(greater(x, 0), x);
    case PointwiseOp::exp:
      return y;
    case PointwiseOp::expm1:
      return add(y, 1);
    case PointwiseOp::log:
      return reciprocal(x);
    case PointwiseOp::log1p:
      return reciprocal(add(x, 1));
    case PointwiseOp::sqrt:
      return div(0.5, y);
    case PointwiseOp::rsqrt:
      return mul(mul(square(y), y), -0.5);
    case PointwiseOp::reciprocal:
      return neg(square(y));
    case PointwiseOp::sin:
      return cos(x);
    case PointwiseOp::cos:
      return neg(sin(x));
    case PointwiseOp::tanh:
      return sub(1, square(y));
    case PointwiseOp::sigmoid:
      return mul(y, sub(1, y));
    case PointwiseOp::gelu: {
      const DTensor density = mul(exp(mul(square(x), -0.5)), M_2_SQRTPI * M_SQRT1_2 / 2);
      const DTensor share = mul(add(erf(mul(x, M_SQRT1_2)), 1), 0.5);
      return add(share, mul_or_zero(x, density));
    }
    case PointwiseOp::silu: {
      const DTensor share = sigmoid(x);
      return mul_or_zero(share, add(mul_or_zero(x, sub(1, share)), 1));
    }
    case PointwiseOp::erf:
      return mul(exp(neg(square(x))), M_2_SQRTPI);
    case PointwiseOp::softplus:
      return sigmoid(x);
    case PointwiseOp::neg:
    case PointwiseOp::sign:
    case PointwiseOp::floor:
    case PointwiseOp::ceil:
    case PointwiseOp::round:
    case PointwiseOp::is_nan:
    case PointwiseOp::logical_not:
      TESSERA_BINARY_OPS_
      break;
  }
  TESSERA_CHECK(false, kernels::pointwise_info(op).name);
}

// The share of `own` in a maximum or minimum: 1, 0, or half where both operands are equal.
DTensor chosen_share(const DTensor& own, const DTensor& other, const DTensor& result) {
  return mul(mask(equal(own, result), own), sub(1, mul(mask(equal(other, result), own), 0.5)));
}

// The logarithm of positive numbers, 0 of others.
DTensor log_of_positive(const DTensor& x) {
  return select(greater(x, 0), log(x), mul_or_zero(x, 0));
}

double real(const Scalar& scalar) {
  return std::visit([](auto value) { return static_cast<double>(value); }, scalar.value());
}

// The gradient by operand 0 or 1 of an operation with two.
DTensor gradient_of_first(PointwiseOp op, const GradientCall& call) {
  const DTensor& c = call.cotangent;
  const DTensor& a = call.operands[0];
  const DTensor& b = call.operands[1];
  switch (op) {
    case PointwiseOp::add:
    case PointwiseOp::sub:
    case PointwiseOp::mod:
      return c;
    case PointwiseOp::mul:
    case PointwiseOp::mul_or_zero:
      return mul_or_zero(c, b);
    case PointwiseOp::div:
    case PointwiseOp::div_or_zero:
      return div_or_zero(c, b);
    case PointwiseOp::pow:
      return mul_or_zero(c, mul_or_zero(b, pow(a, sub(b, 1))));
    case PointwiseOp::maximum:
    case PointwiseOp::minimum:
      return mul_or_zero(c, chosen_share(a, b, call.result));
      TESSERA_BINARY_OPS_WITHOUT_GRADIENT_
      TESSERA_UNARY_OPS_
      break;
  }
  TESSERA_CHECK(false, kernels::pointwise_info(op).name);
}

DTensor gradient_of_second(PointwiseOp op, const GradientCall& call) {
  const DTensor& c = call.cotangent;
  const DTensor& a = call.operands[0];
  const DTensor& b = call.operands[1];
  switch (op) {
    case PointwiseOp::add:
      return c;
    case PointwiseOp::sub:
      return neg(c);
    case PointwiseOp::mul:
    case PointwiseOp::mul_or_zero:
      return mul_or_zero(c, a);
    case PointwiseOp::div:
    case PointwiseOp::div_or_zero:
      return neg(mul_or_zero(c, div_or_zero(call.result, b)));
    case PointwiseOp::mod:
      return neg(mul_or_zero(c, floor_div(a, b)));
    case PointwiseOp::pow:
      return mul_or_zero(c, mul_or_zero(call.result, log_of_positive(a)));
    case PointwiseOp::maximum:
    case PointwiseOp::minimum:
      return mul_or_zero(c, chosen_share(b, a, call.result));
      TESSERA_BINARY_OPS_WITHOUT_GRADIENT_
      TESSERA_UNARY_OPS_
      break;
  }
  TESSERA_CHECK(false, kernels::pointwise_info(op).name);
}

}  // namespace

bool rounds_once(PointwiseOp op, const GradientCall& call) {
  switch (op) {
    case PointwiseOp::neg:
    case PointwiseOp::abs:
    case PointwiseOp::relu:
    case PointwiseOp::add:
    case PointwiseOp::sub:
    case PointwiseOp::maximum:
    case PointwiseOp::minimum:
      return true;
    case PointwiseOp::mul:
      // The products of an operand that was broadcast are added up.
      return std::all_of(call.operands.begin(), call.operands.end(), [&](const DTensor& operand) {
        return operand.shape() == call.result.shape();
      });
    default:
      return false;
  }
}

Gradients pointwise_gradient(PointwiseOp op, const GradientCall& call) {
  const DTensor& c = call.cotangent;
  const DTensor& a = call.operands[0];
  if (op == PointwiseOp::neg) return {neg(c)};
  if (call.operands.size() == 1) return {mul_or_zero(c, unary_derivative(op, a, call.result))};
  Gradients gradients(2);
  if (call.needed[0]) gradients[0] = sum_to(gradient_of_first(op, call), a.shape());
  if (call.needed[1]) {
    gradients[1] = sum_to(gradient_of_second(op, call), call.operands[1].shape());
  }
  return gradients;
}

Gradients scalar_gradient(PointwiseOp op, const Scalar& scalar, size_t place,
                          const GradientCall& call) {
  const DTensor& c = call.cotangent;
  const DTensor& x = call.operands[0];
  const bool is_left = place == 0;  // the scalar
  switch (op) {
    case PointwiseOp::add:
      return {c};
    case PointwiseOp::sub:
      return {is_left ? neg(c) : c};
    case PointwiseOp::mul:
    case PointwiseOp::mul_or_zero:
      return {mul_or_zero(c, scalar)};
    case PointwiseOp::div:
    case PointwiseOp::div_or_zero:
      return {is_left ? neg(mul_or_zero(c, div_or_zero(call.result, x))) : div_or_zero(c, scalar)};
    case PointwiseOp::mod:
      return {is_left ? neg(mul_or_zero(c, floor_div(scalar, x))) : c};
    case PointwiseOp::pow: {
      if (!is_left) return {mul_or_zero(c, mul_or_zero(pow(x, real(scalar) - 1), scalar))};
      const double base = real(scalar);
      return {mul_or_zero(c, mul_or_zero(call.result, base > 0 ? std::log(base) : 0))};
    }
    case PointwiseOp::maximum:
    case PointwiseOp::minimum: {
      const DTensor share = sub(1, mul(mask(equal(call.result, scalar), x), 0.5));
      return {mul_or_zero(c, mul(mask(equal(x, call.result), x), share))};
    }
      TESSERA_BINARY_OPS_WITHOUT_GRADIENT_
      TESSERA_UNARY_OPS_
      break;
  }
  TESSERA_CHECK(false, kernels::pointwise_info(op).name);
}

}  // namespace tessera::ops
