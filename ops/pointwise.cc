// SPDX-License-Identifier: Apache-2.0
#include "ops/pointwise.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "base/status.h"
#include "base/text.h"
#include "compute/cpu/pointwise.h"
#include "compute/pointwise_ops.h"
#include "ops/all_operations.h"
#include "ops/apply.h"
#include "ops/broadcast.h"
#include "ops/composite.h"
#include "ops/operand_type.h"
#include "ops/operation.h"
#include "ops/pointwise_gradients.h"
#include "ops/scalar.h"

namespace tessera::ops {
namespace {

using kernels::PointwiseInfo;
using kernels::PointwiseOp;
using kernels::Strided;

Status check_dtype(const PointwiseInfo& info, DType dtype) {
  if (kernels::accepts(info.dtypes, dtype)) return absl::OkStatus();
  switch (info.dtypes) {
    case kernels::DTypes::kFloats:
      return refusal(info.name, "takes floating-point numbers, not ", dtype_name(dtype),
                     dtype == DType::kBool                   ? ""
                     : absl::string_view(info.name) == "div" ? "; use floor_div, or cast() first"
                                                             : "; cast() first");
    case kernels::DTypes::kBool:
      return refusal(info.name, "takes bool, not ", dtype_name(dtype));
    default:
      return refusal(info.name, "takes numbers, not ", dtype_name(dtype), "; cast() first");
  }
}

// Which partial operands pass, by the operation.
void set_linearity(PointwiseOp op, bool has_scalar, Rule& rule) {
  switch (op) {
    case PointwiseOp::neg:
    case PointwiseOp::add:
    case PointwiseOp::sub:
      rule.linearity = Linearity::kJoint;
      break;
    case PointwiseOp::mul:
    case PointwiseOp::mul_or_zero:
      rule.linearity = has_scalar ? Linearity::kJoint : Linearity::kEach;
      break;
    case PointwiseOp::div:
    case PointwiseOp::div_or_zero:
      rule.linearity = Linearity::kEach;
      if (!has_scalar) rule.carriers = {true, false};
      break;
    default:
      return;
  }
  rule.reductions = kSums;
}

// A rule, kernel and result for operands that are all tensors.
StatusOr<OpPlan> plan_tensors(PointwiseOp op, absl::Span<const OperandType> operands) {
  const PointwiseInfo& info = kernels::pointwise_info(op);
  const DType dtype = operands[0].dtype();
  TESSERA_RETURN_IF_ERROR(check_same_dtype(info.name, operands));
  TESSERA_RETURN_IF_ERROR(check_dtype(info, dtype));
  TESSERA_ASSIGN_OR_RETURN(Shape shape, broadcast_shapes(info.name, operands));
  Rule rule = broadcast_rule(operands, shape);
  set_linearity(op, false, rule);
  const auto kernel = [op, dtype](const LocalCall& call) -> Status {
    absl::InlinedVector<int64_t, 8> strides[2];
    Strided in[2];
    for (size_t k = 0; k < call.in.size(); ++k) {
      strides[k] = broadcast_strides(call.in_boxes[k].sizes, call.out_box.sizes);
      in[k] = {call.in[k], strides[k]};
    }
    return call.engine.pointwise(op, dtype, absl::MakeConstSpan(in, call.in.size()),
                                 call.out_box.sizes, call.out);
  };
  return OpPlan{std::move(rule), kernels::gives_bool(op) ? DType::kBool : dtype, std::move(shape),
                kernel};
}

// With a scalar as operand number `place`.
StatusOr<OpPlan> plan_scalar(PointwiseOp op, const OperandType& x, const Scalar& scalar,
                             size_t place) {
  const PointwiseInfo& info = kernels::pointwise_info(op);
  const DType dtype = x.dtype();
  TESSERA_RETURN_IF_ERROR(check_dtype(info, dtype));
  TESSERA_ASSIGN_OR_RETURN(const ElementBytes element, element_of(info.name, scalar, dtype));
  Rule rule = broadcast_rule({&x, 1}, x.shape());
  const bool is_quotient = op == PointwiseOp::div || op == PointwiseOp::div_or_zero;
  if (!is_quotient || place == 1) set_linearity(op, true, rule);
  const bool is_added = op == PointwiseOp::add || op == PointwiseOp::sub;
  const auto kernel = [op, dtype, element, place, is_added](const LocalCall& call) -> Status {
    static constexpr ElementBytes kZero = {};
    // A scalar is added to only one term of a partial sum.
    const ElementBytes& used = is_added && !call.is_first_term ? kZero : element;
    const absl::InlinedVector<int64_t, 8> dense = dense_strides(call.out_box.sizes);
    const absl::InlinedVector<int64_t, 8> same(dense.size(), 0);
    Strided in[2];
    in[place] = {used.data(), same, /*is_element=*/true};
    in[1 - place] = {call.in[0], dense};
    return call.engine.pointwise(op, dtype, in, call.out_box.sizes, call.out);
  };
  return OpPlan{std::move(rule), kernels::gives_bool(op) ? DType::kBool : dtype, x.shape(), kernel};
}

// ---- Operations of the list

// The scalar takes the place of an operand.
constexpr AttributeSpec kScalarAttributes[] = {
    {"scalar", AttributeKind::kScalar, "2", ""},
    {"scalar_side", AttributeKind::kText, "left", ""}};  // unset: right
Attributes::Values with_scalar(const Scalar& scalar, size_t place) {
  Attributes::Values values(2);
  values[0] = scalar;
  if (place == 0) values[1] = std::string("left");
  return values;
}
// Which operand the scalar is.
size_t scalar_place(const Attributes& attributes) {
  return attributes.has("scalar_side") && attributes.text("scalar_side") == "left" ? 0 : 1;
}

StatusOr<OpPlan> plan_binary(PointwiseOp op, Operands x, const Attributes& attributes) {
  const char* const name = kernels::pointwise_info(op).name;
  if (x.size() == 2) {
    if (!attributes.has("scalar") && !attributes.has("scalar_side")) return plan_tensors(op, x);
    return refusal(name, "takes one operand beside a scalar, not 2");
  }
  if (!attributes.has("scalar")) {
    return refusal(name, "takes 2 operands, or one and the attribute scalar, as in scalar=2");
  }
  const std::string side = attributes.has("scalar_side") ? attributes.text("scalar_side") : "right";
  if (side != "left" && side != "right") {
    return refusal(name, "attribute scalar_side=", side, " is neither left nor right");
  }
  return plan_scalar(op, x[0], attributes.scalar("scalar"), scalar_place(attributes));
}

template <PointwiseOp kOp, int kNumOperands>
StatusOr<OpPlan> plan_pointwise(Operands x, const Attributes& attributes) {
  return kNumOperands == 1 ? plan_tensors(kOp, x) : plan_binary(kOp, x, attributes);
}

// The gradient in f32 of f16 and bf16, where more than one rounding would be seen.
template <PointwiseOp kOp, int kNumOperands>
Gradients gradient_of(const GradientCall& call) {
  if (call.operands.size() == kNumOperands) {
    if (rounds_once(kOp, call)) return pointwise_gradient(kOp, call);
    return gradients_in_f32(
        call,
        [&](absl::Span<const DTensor> wide) {
          return only(apply(pointwise_operation(kOp), wide, call.attributes.values()));
        },
        [](const GradientCall& wide) { return pointwise_gradient(kOp, wide); });
  }
  const Scalar& scalar = call.attributes.scalar("scalar");
  const size_t place = scalar_place(call.attributes);
  if (rounds_once(kOp, call) || (kOp == PointwiseOp::div && place == 1)) {
    return scalar_gradient(kOp, scalar, place, call);
  }
  // The number that the result was computed of.
  const Scalar used = rounded_scalar(scalar, call.result.dtype());
  return gradients_in_f32(
      call,
      [&](absl::Span<const DTensor> wide) {
        return only(apply(pointwise_operation(kOp), wide, with_scalar(used, place)));
      },
      [&](const GradientCall& wide) { return scalar_gradient(kOp, used, place, wide); });
}

constexpr const char* sample_of(int num_operands, bool is_of_bool) {
  if (num_operands == 1) return is_of_bool ? "bool [8, 6]" : "f32 [8, 6]";
  return is_of_bool ? "bool [8, 6]; bool [6]" : "f32 [8, 6]; f32 [6]";
}

// A class of operations is a function of a row of the list.
template <PointwiseOp kOp, int kNumOperands>
constexpr Operation pointwise_row(const char* name, kernels::DTypes dtypes) {
  Operation operation = {
      .name = name,
      .arity = {1, kNumOperands},
      .plan = plan_pointwise<kOp, kNumOperands>,
      .gradient = is_flat(kOp) ? Gradient::zero() : Gradient(gradient_of<kOp, kNumOperands>),
      .sample = sample_of(kNumOperands, dtypes == kernels::DTypes::kBool)};
  if (kNumOperands == 2) operation.attributes = kScalarAttributes;
  return operation;
}

constinit const Operation kPointwise[] = {
#define TESSERA_ROW_(name, operands, dtypes, family) \
  pointwise_row<PointwiseOp::name, operands>(#name, kernels::DTypes::dtypes),
    TESSERA_POINTWISE_OPS_(TESSERA_ROW_)
#undef TESSERA_ROW_
};

// ---- Others

StatusOr<OpPlan> plan_select(Operands operands, const Attributes&) {
  const OperandType& condition = operands[0];
  const OperandType& a = operands[1];
  const OperandType& b = operands[2];
  if (condition.dtype() != DType::kBool) {
    return refusal("select", "the condition is ", dtype_name(condition.dtype()), ", not bool");
  }
  TESSERA_RETURN_IF_ERROR(check_same_dtype("select", {a, b}));
  TESSERA_ASSIGN_OR_RETURN(Shape shape, broadcast_shapes("select", {condition, a, b}));
  Rule rule = broadcast_rule({condition, a, b}, shape);
  rule.linearity = Linearity::kJoint;
  rule.carriers = {false, true, true};
  rule.reductions = kAllReductions;
  const auto kernel = [dtype = a.dtype()](const LocalCall& call) -> Status {
    const absl::Span<const int64_t> sizes = call.out_box.sizes;
    const auto c = broadcast_strides(call.in_boxes[0].sizes, sizes);
    const auto x = broadcast_strides(call.in_boxes[1].sizes, sizes);
    const auto y = broadcast_strides(call.in_boxes[2].sizes, sizes);
    return call.engine.select(dtype, {call.in[0], c}, {call.in[1], x}, {call.in[2], y}, sizes,
                              call.out);
  };
  return OpPlan{std::move(rule), a.dtype(), std::move(shape), kernel};
}

Gradients select_gradient(const GradientCall& call) {
  const DTensor none = mul_or_zero(call.cotangent, 0);
  const DTensor& chosen = call.operands[0];
  Gradients found(3);
  if (call.needed[1]) {
    found[1] = sum_to(select(chosen, call.cotangent, none), call.operands[1].shape());
  }
  if (call.needed[2]) {
    found[2] = sum_to(select(chosen, none, call.cotangent), call.operands[2].shape());
  }
  return found;
}

constexpr AttributeSpec kClipAttributes[] = {{"low", AttributeKind::kScalar, "0"},
                                             {"high", AttributeKind::kScalar, "1"}};

StatusOr<OpPlan> plan_clip(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  const Scalar& low = attributes.scalar("low");
  const Scalar& high = attributes.scalar("high");
  if (x.dtype() == DType::kBool) return refusal("clip", "takes numbers, not bool; cast() first");
  if (is_above(low, high)) {
    return refusal("clip", "from ", scalar_text(low), " to ", scalar_text(high),
                   "; the first should not be above the second");
  }
  TESSERA_ASSIGN_OR_RETURN(const ElementBytes from, element_of("clip", low, x.dtype()));
  TESSERA_ASSIGN_OR_RETURN(const ElementBytes to, element_of("clip", high, x.dtype()));
  const auto kernel = [dtype = x.dtype(), from, to](const LocalCall& call) -> Status {
    return call.engine.clip(dtype, call.in[0], from.data(), to.data(), call.out_box.num_elements(),
                            call.out);
  };
  return OpPlan{broadcast_rule({&x, 1}, x.shape()), x.dtype(), x.shape(), kernel};
}

Gradients clip_gradient(const GradientCall& call) {
  const DTensor& x = call.operands[0];
  const DTensor inside = logical_and(greater_equal(x, call.attributes.scalar("low")),
                                     less_equal(x, call.attributes.scalar("high")));
  return {mul_or_zero(call.cotangent, cast(inside, x.dtype()))};
}

constexpr AttributeSpec kCastAttributes[] = {{"dtype", AttributeKind::kDType, "bf16"}};

StatusOr<OpPlan> plan_cast(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  const DType dtype = attributes.dtype("dtype");
  TESSERA_RETURN_IF_ERROR(validate_dtype(dtype));
  const auto kernel = [from = x.dtype(), dtype](const LocalCall& local) -> Status {
    return local.engine.cast(from, dtype, local.in[0], local.out, local.out_box.num_elements());
  };
  return OpPlan{broadcast_rule({&x, 1}, x.shape()), dtype, x.shape(), kernel};
}

Gradients cast_gradient(const GradientCall& call) {
  return {cast(call.cotangent, call.operands[0].dtype())};
}

StatusOr<OpPlan> plan_cast_terms(Operands operands, const Attributes& attributes) {
  TESSERA_ASSIGN_OR_RETURN(OpPlan plan, plan_cast(operands, attributes));
  plan.rule.linearity = Linearity::kJoint;
  plan.rule.reductions = kSums;
  return plan;
}

Gradients cast_terms_gradient(const GradientCall& call) {
  return {cast_terms(call.cotangent, call.operands[0].dtype())};
}

}  // namespace

const Operation& pointwise_operation(PointwiseOp op) { return kPointwise[static_cast<size_t>(op)]; }

constinit const Operation kSelect = {.name = "select",
                                     .arity = {3, 3},
                                     .plan = plan_select,
                                     .gradient = select_gradient,
                                     .sample = "bool [8, 6]; f32 [8, 6]; f32 [8, 6]"};
constinit const Operation kClip = {.name = "clip",
                                   .arity = {1, 1},
                                   .attributes = kClipAttributes,
                                   .plan = plan_clip,
                                   .gradient = clip_gradient,
                                   .sample = "f32 [8, 6]"};
constinit const Operation kCast = {.name = "cast",
                                   .arity = {1, 1},
                                   .attributes = kCastAttributes,
                                   .plan = plan_cast,
                                   .gradient = cast_gradient,
                                   .sample = "f32 [8, 6]"};
constinit const Operation kCastTerms = {.name = "cast of terms",
                                        .arity = {1, 1},
                                        .attributes = kCastAttributes,
                                        .plan = plan_cast_terms,
                                        .gradient = cast_terms_gradient};

#define TESSERA_UNARY_(name)                                                  \
  DTensor name(const DTensor& x, const Out& out) {                            \
    return only(apply(pointwise_operation(PointwiseOp::name), {x}, {}, out)); \
  }
#define TESSERA_BINARY_(name)                                                                \
  DTensor name(const DTensor& a, const DTensor& b, const Out& out) {                         \
    return only(apply(pointwise_operation(PointwiseOp::name), {a, b}, {}, out));             \
  }                                                                                          \
  DTensor name(const DTensor& a, const Scalar& b, const Out& out) {                          \
    return only(apply(pointwise_operation(PointwiseOp::name), {a}, with_scalar(b, 1), out)); \
  }                                                                                          \
  DTensor name(const Scalar& a, const DTensor& b, const Out& out) {                          \
    return only(apply(pointwise_operation(PointwiseOp::name), {b}, with_scalar(a, 0), out)); \
  }
#define TESSERA_FUNCTION_1_(name) TESSERA_UNARY_(name)
#define TESSERA_FUNCTION_2_(name) TESSERA_BINARY_(name)
#define TESSERA_FUNCTION_(name, operands, dtypes, family) TESSERA_FUNCTION_##operands##_(name)
TESSERA_POINTWISE_OPS_(TESSERA_FUNCTION_)

DTensor select(const DTensor& condition, const DTensor& a, const DTensor& b, const Out& out) {
  return only(apply(kSelect, {condition, a, b}, {}, out));
}

DTensor clip(const DTensor& x, const Scalar& low, const Scalar& high, const Out& out) {
  return only(apply(kClip, {x}, {low, high}, out));
}

DTensor cast(const DTensor& x, DType dtype, const Out& out) {
  return only(apply(kCast, {x}, {dtype}, out));
}

DTensor cast_terms(const DTensor& x, DType dtype) { return only(apply(kCastTerms, {x}, {dtype})); }

}  // namespace tessera::ops
