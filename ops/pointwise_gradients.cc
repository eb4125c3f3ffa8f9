// SPDX-License-Identifier: Apache-2.0
#include "ops/pointwise_gradients.h"

#include <cmath>
#include <variant>

#include "ops/pointwise.h"

namespace tessera::ops {
namespace {

using kernels::PointwiseOp;

// 1 where the condition holds, else 0.
DTensor mask(const DTensor& condition, const DTensor& like) {
  return cast(condition, like.dtype());
}

// The derivative by the operand, of operations with one.
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
      return add(share, mul(x, density));
    }
    case PointwiseOp::silu: {
      const DTensor share = sigmoid(x);
      return add(share, mul(y, sub(1, share)));
    }
    case PointwiseOp::erf:
      return mul(exp(neg(square(x))), M_2_SQRTPI);
    case PointwiseOp::softplus:
      return sigmoid(x);
    default:
      return sigmoid(x);
  }
}

// Which of two operands maximum or minimum gives, half of equal ones.
DTensor chosen_share(bool is_larger, const DTensor& a, const DTensor& b) {
  const DTensor wins = is_larger ? greater(a, b) : less(a, b);
  return add(mask(wins, a), mul(mask(equal(a, b), a), 0.5));
}

// The logarithm of positive numbers, 0 of others.
DTensor log_of_positive(const DTensor& x) {
  const DTensor is_positive = greater(x, 0);
  return select(is_positive, log(x), mul(mask(is_positive, x), 0));
}

double real(const Scalar& scalar) {
  return std::visit([](auto value) { return static_cast<double>(value); }, scalar.value());
}

}  // namespace

bool has_gradient(PointwiseOp op) {
  switch (op) {
    case PointwiseOp::sign:
    case PointwiseOp::floor:
    case PointwiseOp::ceil:
    case PointwiseOp::round:
    case PointwiseOp::floor_div:
      return false;
    default:
      return !kernels::pointwise_info(op).gives_bool;
  }
}

Gradients pointwise_gradient(PointwiseOp op, const GradientCall& call) {
  const DTensor& c = call.cotangent;
  const DTensor& a = call.operands[0];
  if (op == PointwiseOp::neg) return {neg(c)};
  if (call.operands.size() == 1) return {mul(c, unary_derivative(op, a, call.result))};
  const DTensor& b = call.operands[1];
  const bool is_larger = op == PointwiseOp::maximum;
  const auto of_a = [&]() -> DTensor {
    switch (op) {
      case PointwiseOp::mul:
        return mul(c, b);
      case PointwiseOp::div:
        return div(c, b);
      case PointwiseOp::pow:
        return mul(c, mul(b, pow(a, sub(b, 1))));
      case PointwiseOp::maximum:
      case PointwiseOp::minimum:
        return mul(c, chosen_share(is_larger, a, b));
      default:
        return c;
    }
  };
  const auto of_b = [&]() -> DTensor {
    switch (op) {
      case PointwiseOp::sub:
        return neg(c);
      case PointwiseOp::mul:
        return mul(c, a);
      case PointwiseOp::div:
        return neg(mul(c, div(call.result, b)));
      case PointwiseOp::mod:
        return neg(mul(c, floor_div(a, b)));
      case PointwiseOp::pow:
        return mul(c, mul(call.result, log_of_positive(a)));
      case PointwiseOp::maximum:
      case PointwiseOp::minimum:
        return mul(c, chosen_share(is_larger, b, a));
      default:
        return c;
    }
  };
  Gradients gradients(2);
  if (call.needed[0]) gradients[0] = sum_to(of_a(), a.shape());
  if (call.needed[1]) gradients[1] = sum_to(of_b(), b.shape());
  return gradients;
}

Gradients scalar_gradient(PointwiseOp op, const Scalar& scalar, size_t place,
                          const GradientCall& call) {
  const DTensor& c = call.cotangent;
  const DTensor& x = call.operands[0];
  const bool is_left = place == 0;  // the scalar
  switch (op) {
    case PointwiseOp::sub:
      return {is_left ? neg(c) : c};
    case PointwiseOp::mul:
      return {mul(c, scalar)};
    case PointwiseOp::div:
      return {is_left ? neg(mul(c, div(call.result, x))) : div(c, scalar)};
    case PointwiseOp::mod:
      return {is_left ? neg(mul(c, floor_div(scalar, x))) : c};
    case PointwiseOp::pow:
      if (is_left) return {mul(c, mul(call.result, std::log(real(scalar))))};
      return {mul(c, mul(pow(x, real(scalar) - 1), scalar))};
    case PointwiseOp::maximum:
    case PointwiseOp::minimum: {
      const bool is_larger = op == PointwiseOp::maximum;
      const DTensor wins = is_larger ? greater(x, scalar) : less(x, scalar);
      return {mul(c, add(mask(wins, x), mul(mask(equal(x, scalar), x), 0.5)))};
    }
    default:
      return {c};
  }
}

}  // namespace tessera::ops
