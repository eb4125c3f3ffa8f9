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
#include "ops/broadcast.h"
#include "ops/catalog_entries.h"
#include "ops/composite.h"
#include "ops/gradient.h"
#include "ops/op.h"
#include "ops/operand_type.h"
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
  return OpPlan{std::move(rule), info.gives_bool ? DType::kBool : dtype, std::move(shape), kernel};
}

DTensor pointwise(PointwiseOp op, absl::Span<const DTensor> operands, const Out& out) {
  DTensor result = run({kernels::pointwise_info(op).name, operands, {}, out},
                       [&] { return plan_tensors(op, types_of(operands)); });
  if (!has_gradient(op)) return result;
  return differentiable(std::move(result), operands, [op](const GradientCall& call) {
    if (rounds_once(op, call)) return pointwise_gradient(op, call);
    return gradients_in_f32(
        call, [op](absl::Span<const DTensor> wide) { return pointwise(op, wide, {}); },
        [op](const GradientCall& wide) { return pointwise_gradient(op, wide); });
  });
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
  return OpPlan{std::move(rule), info.gives_bool ? DType::kBool : dtype, x.shape(), kernel};
}

DTensor pointwise(PointwiseOp op, const DTensor& x, const Scalar& scalar, size_t place,
                  const Out& out) {
  const std::array<int64_t, 2> value = scalar_attributes(scalar);
  const int64_t attributes[] = {static_cast<int64_t>(place), value[0], value[1]};
  DTensor result = run({kernels::pointwise_info(op).name, {&x, 1}, attributes, out},
                       [&] { return plan_scalar(op, x, scalar, place); });
  if (!has_gradient(op)) return result;
  return differentiable(std::move(result), {&x, 1}, [op, scalar, place](const GradientCall& call) {
    if (rounds_once(op, call) || (op == PointwiseOp::div && place == 1)) {
      return scalar_gradient(op, scalar, place, call);
    }
    // The number that the result was computed of.
    const Scalar used = rounded_scalar(scalar, call.result.dtype());
    return gradients_in_f32(
        call,
        [&](absl::Span<const DTensor> wide) { return pointwise(op, wide[0], used, place, {}); },
        [&](const GradientCall& wide) { return scalar_gradient(op, used, place, wide); });
  });
}

StatusOr<OpPlan> plan_select(const OperandType& condition, const OperandType& a,
                             const OperandType& b) {
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

StatusOr<OpPlan> plan_clip(const OperandType& x, const Scalar& low, const Scalar& high) {
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

StatusOr<OpPlan> plan_cast(const OperandType& x, DType dtype) {
  TESSERA_RETURN_IF_ERROR(validate_dtype(dtype));
  const auto kernel = [from = x.dtype(), dtype](const LocalCall& local) -> Status {
    return local.engine.cast(from, dtype, local.in[0], local.out, local.out_box.num_elements());
  };
  return OpPlan{broadcast_rule({&x, 1}, x.shape()), dtype, x.shape(), kernel};
}

}  // namespace

#define TESSERA_UNARY_(name)                           \
  DTensor name(const DTensor& x, const Out& out) {     \
    return pointwise(PointwiseOp::name, {&x, 1}, out); \
  }
#define TESSERA_BINARY_(name)                                        \
  DTensor name(const DTensor& a, const DTensor& b, const Out& out) { \
    const DTensor operands[] = {a, b};                               \
    return pointwise(PointwiseOp::name, operands, out);              \
  }                                                                  \
  DTensor name(const DTensor& a, const Scalar& b, const Out& out) {  \
    return pointwise(PointwiseOp::name, a, b, 1, out);               \
  }                                                                  \
  DTensor name(const Scalar& a, const DTensor& b, const Out& out) {  \
    return pointwise(PointwiseOp::name, b, a, 0, out);               \
  }
#define TESSERA_FUNCTION_1_(name) TESSERA_UNARY_(name)
#define TESSERA_FUNCTION_2_(name) TESSERA_BINARY_(name)
#define TESSERA_FUNCTION_(name, operands, dtypes, gives_bool) TESSERA_FUNCTION_##operands##_(name)
TESSERA_POINTWISE_OPS_(TESSERA_FUNCTION_)

DTensor select(const DTensor& condition, const DTensor& a, const DTensor& b, const Out& out) {
  const DTensor operands[] = {condition, a, b};
  DTensor result = run({"select", operands, {}, out}, [&] { return plan_select(condition, a, b); });
  return differentiable(std::move(result), operands, [](const GradientCall& call) -> Gradients {
    const DTensor none = mul_or_zero(call.cotangent, 0);
    const DTensor& chosen = call.operands[0];
    return {std::nullopt, sum_to(select(chosen, call.cotangent, none), call.operands[1].shape()),
            sum_to(select(chosen, none, call.cotangent), call.operands[2].shape())};
  });
}

DTensor clip(const DTensor& x, const Scalar& low, const Scalar& high, const Out& out) {
  const std::array<int64_t, 2> least = scalar_attributes(low);
  const std::array<int64_t, 2> most = scalar_attributes(high);
  const int64_t attributes[] = {least[0], least[1], most[0], most[1]};
  DTensor result = run({"clip", {&x, 1}, attributes, out}, [&] { return plan_clip(x, low, high); });
  return differentiable(
      std::move(result), {&x, 1}, [low, high](const GradientCall& call) -> Gradients {
        const DTensor& value = call.operands[0];
        const DTensor inside = logical_and(greater_equal(value, low), less_equal(value, high));
        return {mul_or_zero(call.cotangent, cast(inside, value.dtype()))};
      });
}

DTensor cast(const DTensor& x, DType dtype, const Out& out) {
  const int64_t attributes[] = {static_cast<int64_t>(dtype)};
  DTensor result = run({"cast", {&x, 1}, attributes, out}, [&] { return plan_cast(x, dtype); });
  if (!is_floating_point(dtype)) return result;
  return differentiable(std::move(result), {&x, 1}, [](const GradientCall& call) -> Gradients {
    return {cast(call.cotangent, call.operands[0].dtype())};
  });
}

DTensor cast_terms(const DTensor& x, DType dtype) {
  const int64_t attributes[] = {static_cast<int64_t>(dtype), /*of terms*/ 1};
  DTensor result = run({"cast", {&x, 1}, attributes, {}}, [&]() -> StatusOr<OpPlan> {
    TESSERA_ASSIGN_OR_RETURN(OpPlan plan, plan_cast(x, dtype));
    plan.rule.linearity = Linearity::kJoint;
    plan.rule.reductions = kSums;
    return plan;
  });
  return differentiable(std::move(result), {&x, 1}, [](const GradientCall& call) -> Gradients {
    return {cast_terms(call.cotangent, call.operands[0].dtype())};
  });
}

namespace {

StatusOr<OpPlan> plan_binary(PointwiseOp op, Operands x, const Attributes& attributes) {
  const char* const name = kernels::pointwise_info(op).name;
  if (x.size() == 2) {
    if (!attributes.has("scalar") && !attributes.has("scalar_side")) return plan_tensors(op, x);
    return refusal(name, "takes one operand beside a scalar, not 2");
  }
  if (!attributes.has("scalar")) {
    return refusal(name, "takes 2 operands, or one and the attribute scalar, as in scalar=2");
  }
  const std::string side = attributes.text("scalar_side");
  if (attributes.has("scalar_side") && side != "left" && side != "right") {
    return refusal(name, "attribute scalar_side=", side, " is neither left nor right");
  }
  TESSERA_ASSIGN_OR_RETURN(const Scalar scalar, attributes.scalar("scalar"));
  return plan_scalar(op, x[0], scalar, side == "left" ? 0 : 1);
}

CatalogEntry pointwise_entry(PointwiseOp op) {
  const PointwiseInfo& info = kernels::pointwise_info(op);
  const DType dtype = info.dtypes == kernels::DTypes::kBool ? DType::kBool : DType::kFloat32;
  const SampleOperand matrix = {dtype, {8, 6}};
  if (info.num_operands == 1) {
    return {info.name, 1, 1, {}, {}, {matrix}, [op](Operands x, const Attributes&) {
              return plan_tensors(op, x);
            }};
  }
  return {
      info.name,
      1,
      2,
      {},
      {"scalar=2", "scalar_side=left"},
      {matrix, {dtype, {6}}},
      [op](Operands x, const Attributes& attributes) { return plan_binary(op, x, attributes); }};
}

StatusOr<DType> dtype_attribute(const Attributes& attributes) {
  std::vector<std::string> names;
  for (int i = 0; i < kNumDTypes; ++i) {
    names.emplace_back(dtype_name(static_cast<DType>(i)));
    if (names.back() == attributes.text("dtype")) return static_cast<DType>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("attribute dtype=", attributes.text("dtype"),
                                                 " is none of ", quoted_list(names)));
}

}  // namespace

std::vector<CatalogEntry> pointwise_entries() {
  std::vector<CatalogEntry> entries;
#define TESSERA_ENTRY_(name, operands, dtypes, gives_bool) \
  entries.push_back(pointwise_entry(PointwiseOp::name));
  TESSERA_POINTWISE_OPS_(TESSERA_ENTRY_)
#undef TESSERA_ENTRY_
  const SampleOperand matrix = {DType::kFloat32, {8, 6}};
  entries.push_back({"select",
                     3,
                     3,
                     {},
                     {},
                     {{DType::kBool, {8, 6}}, matrix, matrix},
                     [](Operands x, const Attributes&) { return plan_select(x[0], x[1], x[2]); }});
  entries.push_back({"clip",
                     1,
                     1,
                     {"low=0", "high=1"},
                     {},
                     {matrix},
                     [](Operands x, const Attributes& attributes) -> StatusOr<OpPlan> {
                       TESSERA_ASSIGN_OR_RETURN(const Scalar low, attributes.scalar("low"));
                       TESSERA_ASSIGN_OR_RETURN(const Scalar high, attributes.scalar("high"));
                       return plan_clip(x[0], low, high);
                     }});
  entries.push_back({"cast",
                     1,
                     1,
                     {"dtype=bf16"},
                     {},
                     {matrix},
                     [](Operands x, const Attributes& attributes) -> StatusOr<OpPlan> {
                       TESSERA_ASSIGN_OR_RETURN(const DType dtype, dtype_attribute(attributes));
                       return plan_cast(x[0], dtype);
                     }});
  return entries;
}

}  // namespace tessera::ops
