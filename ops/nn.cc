// SPDX-License-Identifier: Apache-2.0
//
// Operations of nn.h that are made of others.
//
// softmax, log_softmax and layer_norm also have a kernel of rows (Engine::rows), for devices that
// have whole rows in memory of the host.
#include "ops/nn.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/cpu/nn.h"
#include "dtensor/device_op.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "ops/all_operations.h"
#include "ops/apply.h"
#include "ops/broadcast.h"
#include "ops/composite.h"
#include "ops/contract.h"
#include "ops/moving.h"
#include "ops/operand_type.h"
#include "ops/operation.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/tape.h"

namespace tessera::ops {
namespace {

using kernels::RowKind;

constexpr AttributeSpec kRowDim[] = {{"dim", AttributeKind::kInt, "1"}};
constexpr AttributeSpec kEpsilon[] = {{"epsilon", AttributeKind::kReal, "1e-5"}};
constexpr AttributeSpec kAttentionAttributes[] = {{"causal", AttributeKind::kFlag, "", ""},
                                                  {"scale", AttributeKind::kReal, "0.5", ""}};

Status check_float(const char* name, const OperandType& x) {
  if (is_floating_point(x.dtype())) return absl::OkStatus();
  return refusal(name, "takes floating-point numbers, not ", dtype_name(x.dtype()),
                 "; cast() first");
}

Status check_softmax(const char* name, const OperandType& x, int64_t dim) {
  TESSERA_RETURN_IF_ERROR(check_float(name, x));
  return checked_dim(name, dim, rank_of(x)).status();
}

Status check_layer_norm(Operands operands, double epsilon) {
  const OperandType& x = operands[0];
  TESSERA_RETURN_IF_ERROR(check_float("layer_norm", x));
  TESSERA_RETURN_IF_ERROR(check_same_dtype("layer_norm", operands));
  if (rank_of(x) == 0) return refusal("layer_norm", "of rank 0; the last dim is features");
  const Shape features = {x.shape().back()};
  const Shape& scale = operands[1].shape();
  const Shape& bias = operands[2].shape();
  if (scale != features || bias != features) {
    return refusal("layer_norm", "scale ", shape_to_string(scale), " and bias ",
                   shape_to_string(bias), " for features ", shape_to_string(features));
  }
  if (epsilon < 0) return refusal("layer_norm", "epsilon ", epsilon, " is negative");
  return absl::OkStatus();
}

Status check_cross_entropy(const OperandType& logits, const OperandType& labels) {
  constexpr const char* kName = "softmax_cross_entropy";
  TESSERA_RETURN_IF_ERROR(check_float(kName, logits));
  if (logits.shape().empty())
    return refusal(kName, "logits have rank 0; their last dim is classes");
  Shape expected = logits.shape();
  if (labels.dtype() == DType::kInt32 || labels.dtype() == DType::kInt64) {
    expected.pop_back();
  } else if (labels.dtype() != logits.dtype()) {
    return refusal(kName, "labels are ", dtype_name(labels.dtype()),
                   "; class indices are i32 or "
                   "i64, probabilities are ",
                   dtype_name(logits.dtype()), " as the logits are");
  }
  if (labels.shape() == expected) return absl::OkStatus();
  return refusal(kName, "labels for logits ", shape_to_string(logits.shape()), " have shape ",
                 shape_to_string(expected), ", not ", shape_to_string(labels.shape()));
}

// Requires queries, keys and values.
Status check_attention(Operands operands) {
  TESSERA_RETURN_IF_ERROR(check_float("attention", operands[0]));
  TESSERA_RETURN_IF_ERROR(check_same_dtype("attention", operands));
  for (const OperandType& operand : operands) {
    if (rank_of(operand) == 4) continue;
    return refusal("attention", "operands are [batch, heads, sequence, depth], and one has rank ",
                   rank_of(operand));
  }
  const Shape& queries = operands[0].shape();
  const Shape& keys = operands[1].shape();
  const Shape& values = operands[2].shape();
  if (queries[3] != keys[3]) {
    return refusal("attention", "queries have depth ", queries[3], ", keys ", keys[3]);
  }
  if (queries[0] != keys[0] || queries[1] != keys[1] || keys[0] != values[0] ||
      keys[1] != values[1] || keys[2] != values[2]) {
    return refusal("attention", "shapes ", shape_to_string(queries), ", ", shape_to_string(keys),
                   " and ", shape_to_string(values),
                   " do not fit: batch and heads are those of "
                   "all, the sequence that of keys and values");
  }
  return absl::OkStatus();
}

bool is_last(int64_t dim, const OperandType& x) { return dim == -1 || dim == rank_of(x) - 1; }

// ---- Plans

// Functions of the last dim of all operands, which each device has whole.
template <RowKind kKind>
StatusOr<OpPlan> plan_rows(Operands operands, const Attributes& attributes) {
  OpPlan plan = plan_same(operands[0]);
  Rule& rule = plan.rule;
  rule.linearity = Linearity::kNone;
  rule.factors[rule.result.back()[0]].kind = FactorKind::kWhole;
  for (const OperandType& operand : operands.subspan(1)) {
    // A row for all has the last dim alone.
    rule.operands.push_back(
        rank_of(operand) == rank_of(operands[0]) ? rule.result : RuleDims{rule.result.back()});
  }
  double epsilon = 0;
  if constexpr (kKind == RowKind::kNormalize || kKind == RowKind::kNormalizeGradient) {
    epsilon = attributes.real("epsilon");
  }
  plan.kernel = [dtype = plan.dtype, epsilon](const LocalCall& call) -> Status {
    const int64_t size = call.out_box.sizes.back();
    const int64_t count = size == 0 ? 0 : call.out_box.num_elements() / size;
    return call.engine.rows({kKind, count, size, epsilon}, dtype, call.in, call.out);
  };
  return plan;
}

template <RowKind kKind>
StatusOr<OpPlan> plan_softmax(Operands x, const Attributes& attributes) {
  constexpr const char* kName = kKind == RowKind::kSoftmax ? "softmax" : "log_softmax";
  const int64_t dim = attributes.integer("dim");
  TESSERA_RETURN_IF_ERROR(check_softmax(kName, x[0], dim));
  if (is_last(dim, x[0])) return plan_rows<kKind>(x, attributes);
  return refusal(kName, "dim ", dim, " is not the last; along it ", kName,
                 " is made of other operations, each with a rule of its own; ask for one of them");
}

StatusOr<OpPlan> plan_layer_norm(Operands operands, const Attributes& attributes) {
  TESSERA_RETURN_IF_ERROR(check_layer_norm(operands, attributes.real("epsilon")));
  return plan_rows<RowKind::kNormalize>(operands, attributes);
}

// Scores with -infinity where a key comes after its query.
StatusOr<OpPlan> plan_mask(Operands scores, const Attributes&) {
  OpPlan plan = plan_same(scores[0]);
  plan.rule.linearity = Linearity::kNone;
  const int64_t shift = plan.shape[3] - plan.shape[2];
  plan.kernel = [dtype = plan.dtype, shift](const LocalCall& call) -> Status {
    return call.engine.mask_later(dtype, call.in[0], call.out_box, shift, call.out);
  };
  return plan;
}

// Element labels[i] of row i; of a device that holds a part of the rows, 0 where it does not hold
// the element.
StatusOr<OpPlan> plan_pick(Operands operands, const Attributes&) {
  OpPlan plan = plan_same(operands[0]);
  plan.rule.linearity = Linearity::kNone;
  const int64_t classes = plan.shape.back();
  plan.rule.factors[plan.rule.result.back()[0]].kind = FactorKind::kContracted;
  plan.rule.result.pop_back();
  plan.rule.operands.push_back(plan.rule.result);
  plan.shape.pop_back();
  plan.kernel = [dtype = plan.dtype, label_dtype = operands[1].dtype(),
                 classes](const LocalCall& call) -> Status {
    return call.engine.pick(dtype, call.in[0], call.in_boxes[0],
                            {call.in_boxes[0].offsets.back(), classes},
                            {label_dtype, call.in[1], call.in_boxes[1].num_elements()}, call.out);
  };
  return plan;
}

// ---- Parts

// Whether devices have all of each row, and compute functions of rows at once (Engine::rows).
bool has_whole_rows(const DTensor& x) {
  return internal::facts_of(x).uses_host_memory &&
         x.layout().num_shards(x.layout().rank() - 1) == 1;
}

// Whether Engine::rows gives the result that is wanted. It rounds f16 and bf16 once, but their
// gradients would begin at the rounded result.
bool suits_rows(const OpCall& call) {
  if (!has_whole_rows(call.operands[0])) return false;
  return !is_half(call.operands[0].dtype()) ||
         std::all_of(call.operands.begin(), call.operands.end(),
                     [](const DTensor& each) { return internal::trace_of(each) == nullptr; });
}

// The parts of an operation whose plan is for rows; `by_operations` computes f32 and f64.
using ByOperations = DTensor (*)(const OpCall& call);
Results row_parts(const OpCall& call, bool is_along_rows, ByOperations by_operations) {
  const DTensor& x = call.operands[0];
  if (x.layout().is_partial()) {
    std::vector<DTensor> operands(call.operands.begin(), call.operands.end());
    operands[0] = without_partial(x);
    return apply(call.operation, operands, call.attributes.values(), call.out);
  }
  if (is_along_rows && suits_rows(call)) return {};
  if (!is_half(x.dtype())) return {by_operations(call)};
  return {in_f32(call.operands, call.out, [&](absl::Span<const DTensor> wide, const Out& to) {
    return only(apply(call.operation, wide, call.attributes.values(), to));
  })};
}

template <ByOperations kByOperations>
Results softmax_parts(const OpCall& call) {
  const int64_t dim = call.attributes.integer("dim");
  Status status = check_softmax(call.operation.name, call.operands[0], dim);
  if (!status.ok()) return refuse(call, std::move(status));
  return row_parts(call, is_last(dim, call.operands[0]), kByOperations);
}

DTensor softmax_by_operations(const OpCall& call) {
  const DTensor& x = call.operands[0];
  const int64_t dim = call.attributes.integer("dim");
  const DTensor powers = exp(sub(x, finite_max(x, {dim})));
  return div(powers, sum(powers, {dim}, KeepDims::kYes), call.out);
}

DTensor log_softmax_by_operations(const OpCall& call) {
  const DTensor& x = call.operands[0];
  const int64_t dim = call.attributes.integer("dim");
  const DTensor below = sub(x, finite_max(x, {dim}));
  return sub(below, log(sum(exp(below), {dim}, KeepDims::kYes)), call.out);
}

// x less its mean along the last dim, over the root of its variance and epsilon.
DTensor normalize_by_operations(const DTensor& x, double epsilon) {
  const DTensor away = sub(x, mean(x, {-1}, KeepDims::kYes));
  // In two passes: a sum of squares cancels.
  const DTensor spread = mean(square(away), {-1}, KeepDims::kYes);
  return mul(away, rsqrt(add(spread, epsilon)));
}

Results layer_norm_parts(const OpCall& call) {
  Status status = check_layer_norm(types_of(call.operands), call.attributes.real("epsilon"));
  if (!status.ok()) return refuse(call, std::move(status));
  return row_parts(call, true, [](const OpCall& wide) {
    const DTensor unit = normalize_by_operations(wide.operands[0], wide.attributes.real("epsilon"));
    return add(mul(unit, wide.operands[1]), wide.operands[2], wide.out);
  });
}

Results cross_entropy_parts(const OpCall& call) {
  const DTensor& labels = call.operands[1];
  Status status = check_cross_entropy(call.operands[0], labels);
  if (!status.ok()) return refuse(call, std::move(status));
  const DTensor whole[] = {without_partial(call.operands[0]), labels};
  return {in_f32(whole, call.out, [](absl::Span<const DTensor> wide, const Out& to) {
    const DTensor& scores = wide[0];
    const auto pick = [&](const DTensor& rows) { return only(apply(kPick, {rows, wide[1]})); };
    if (is_floating_point(wide[1].dtype())) {
      return finish(neg(sum(mul(wide[1], log_softmax(scores, -1)), {-1})), to);
    }
    if (has_whole_rows(scores)) return finish(neg(pick(log_softmax(scores, -1))), to);
    return finish(sub(logsumexp(scores, {-1}), pick(scores)), to);
  })};
}

// Whether each query, [queries, 1], sees a key: all but the first `num_blind`.
DTensor sees_a_key(const DTensor& scores, int64_t num_blind) {
  const StatusOr<Layout> layout = Layout::replicated(scores.layout().mesh(), 2);
  return greater_equal(iota<int64_t>({scores.shape()[2], 1}, layout), num_blind);
}

Results attention_parts(const OpCall& call) {
  const Attributes& attributes = call.attributes;
  Status status = check_attention(types_of(call.operands));
  if (!status.ok()) return refuse(call, std::move(status));
  const Shape& queries = call.operands[0].shape();
  const double scale = attributes.has("scale") ? attributes.real("scale")
                                               : 1 / std::sqrt(static_cast<double>(queries[3]));
  const bool is_causal = attributes.flag("causal");
  // The first queries see no key where there are fewer keys than queries.
  const int64_t num_keys = call.operands[1].shape()[2];
  const int64_t num_blind = is_causal ? queries[2] - num_keys : 0;
  return {in_f32(call.operands, call.out, [&](absl::Span<const DTensor> wide, const Out& to) {
    DTensor scores = mul(einsum("bhqd,bhkd->bhqk", wide.first(2)), scale);
    if (is_causal) scores = only(apply(kMaskLaterKeys, {scores}));
    std::optional<DTensor> sees;
    if (num_blind > 0 && num_keys > 0) {
      sees = sees_a_key(scores, num_blind);
      scores = select(*sees, scores, mul_or_zero(stop_gradient(scores), 0));
    }
    DTensor weights = softmax(scores, -1);
    if (sees.has_value()) weights = select(*sees, weights, mul_or_zero(stop_gradient(weights), 0));
    const DTensor weighted[] = {weights, wide[2]};
    return finish(einsum("bhqk,bhkd->bhqd", weighted), to);
  })};
}

// ---- Gradients

// The gradient of a function of rows made of operations: of the result, or of what the function was
// taken of, and of the cotangent.
using RowGradient = DTensor (*)(const DTensor& a, const DTensor& c, const Attributes& attributes);

// The gradient of the sum of y c, where y is a softmax, by what the softmax was taken of.
DTensor softmax_gradient_by_operations(const DTensor& y, const DTensor& c, const Attributes&) {
  return mul_or_zero(y, sub(c, sum(mul_or_zero(y, c), {-1}, KeepDims::kYes)));
}
DTensor log_softmax_gradient_by_operations(const DTensor& y, const DTensor& c, const Attributes&) {
  return sub(c, mul_or_zero(exp(y), sum(c, {-1}, KeepDims::kYes)));
}
// The gradient of the sum of c times x normalized, by x.
DTensor normalize_gradient_by_operations(const DTensor& x, const DTensor& c,
                                         const Attributes& attributes) {
  const double epsilon = attributes.real("epsilon");
  const DTensor y = normalize_by_operations(x, epsilon);
  const DTensor away = sub(x, mean(x, {-1}, KeepDims::kYes));
  const DTensor scale = rsqrt(add(mean(square(away), {-1}, KeepDims::kYes), epsilon));
  const DTensor along = mean(mul(c, y), {-1}, KeepDims::kYes);
  return mul(scale, sub(sub(c, mean(c, {-1}, KeepDims::kYes)), mul(y, along)));
}

template <RowGradient kByOperations>
Results row_gradient_parts(const OpCall& call) {
  if (has_whole_rows(call.operands[0]) && has_whole_rows(call.operands[1])) return {};
  return {kByOperations(call.operands[0], call.operands[1], call.attributes)};
}

// The derivatives of a gradient, from the same gradient made of operations.
template <RowGradient kByOperations>
Gradients derivatives_of(const GradientCall& call) {
  Tape tape;
  std::vector<DTensor> watched;
  for (const DTensor& operand : call.operands) watched.push_back(tape.watch(operand));
  GradientOptions options;
  options.seed = call.cotangent;
  options.reduce = Reduce::kLater;
  Gradients found;
  const DTensor target = kByOperations(watched[0], watched[1], call.attributes);
  for (DTensor& each : tape.gradient(target, watched, options)) {
    found.push_back(std::move(each));
  }
  return found;
}

template <const Operation& kGradient>
Gradients gradient_of_result(const GradientCall& call) {
  return {only(apply(kGradient, {call.result, call.cotangent}))};
}

Gradients normalize_gradient(const GradientCall& call) {
  return {only(
      apply(kNormalizeGradient, {call.operands[0], call.cotangent}, call.attributes.values()))};
}

Gradients layer_norm_gradient(const GradientCall& call) {
  const DTensor& x = call.operands[0];
  const DTensor& scale = call.operands[1];
  const DTensor& c = call.cotangent;
  const Attributes::Values& epsilon = call.attributes.values();
  Gradients found(3);
  if (call.needed[0]) found[0] = only(apply(kNormalizeGradient, {x, mul(c, scale)}, epsilon));
  if (call.needed[1]) {
    found[1] = sum_to(mul(c, only(apply(kNormalize, {x}, epsilon))), scale.shape());
  }
  if (call.needed[2]) found[2] = sum_to(c, call.operands[2].shape());
  return found;
}

Gradients pick_gradient(const GradientCall& call) {
  const DTensor& from = call.operands[0];
  const DTensor hits = cast(one_hot(call.operands[1], from.shape().back()), from.dtype());
  return {mul_or_zero(expand_dims(call.cotangent, -1), hits), std::nullopt};
}

// The cotangent of an element that is masked is 0 already: its weight is.
Gradients mask_gradient(const GradientCall& call) { return {call.cotangent}; }

}  // namespace

constinit const Operation kSoftmax = {.name = "softmax",
                                      .arity = {1, 1},
                                      .attributes = kRowDim,
                                      .plan = plan_softmax<RowKind::kSoftmax>,
                                      .gradient = gradient_of_result<kSoftmaxGradient>,
                                      .parts = softmax_parts<softmax_by_operations>,
                                      .made_of = "max, clip, sub, exp, sum and div",
                                      .sample = "f32 [8, 6]"};
constinit const Operation kLogSoftmax = {.name = "log_softmax",
                                         .arity = {1, 1},
                                         .attributes = kRowDim,
                                         .plan = plan_softmax<RowKind::kLogSoftmax>,
                                         .gradient = gradient_of_result<kLogSoftmaxGradient>,
                                         .parts = softmax_parts<log_softmax_by_operations>,
                                         .made_of = "max, clip, sub, exp, sum, log and sub",
                                         .sample = "f32 [8, 6]"};
constinit const Operation kSoftmaxGradient = {
    .name = "softmax gradient",
    .arity = {2, 2},
    .plan = plan_rows<RowKind::kSoftmaxGradient>,
    .gradient = derivatives_of<softmax_gradient_by_operations>,
    .parts = row_gradient_parts<softmax_gradient_by_operations>};
constinit const Operation kLogSoftmaxGradient = {
    .name = "log_softmax gradient",
    .arity = {2, 2},
    .plan = plan_rows<RowKind::kLogSoftmaxGradient>,
    .gradient = derivatives_of<log_softmax_gradient_by_operations>,
    .parts = row_gradient_parts<log_softmax_gradient_by_operations>};

constinit const Operation kLayerNorm = {
    .name = "layer_norm",
    .arity = {3, 3},
    .attributes = kEpsilon,
    .plan = plan_layer_norm,
    .gradient = layer_norm_gradient,
    .parts = layer_norm_parts,
    .made_of = "mean, sub, square, mean, add, rsqrt, mul and add",
    .sample = "f32 [8, 6]; f32 [6]; f32 [6]"};
constinit const Operation kNormalize = {.name = "layer_norm without scale and bias",
                                        .arity = {1, 1},
                                        .attributes = kEpsilon,
                                        .plan = plan_rows<RowKind::kNormalize>,
                                        .gradient = normalize_gradient};
constinit const Operation kNormalizeGradient = {
    .name = "layer_norm gradient",
    .arity = {2, 2},
    .attributes = kEpsilon,
    .plan = plan_rows<RowKind::kNormalizeGradient>,
    .gradient = derivatives_of<normalize_gradient_by_operations>};

constinit const Operation kSoftmaxCrossEntropy = {
    .name = "softmax_cross_entropy",
    .arity = {2, 2},
    .gradient = Gradient::of_parts(),
    .parts = cross_entropy_parts,
    .made_of = "logsumexp, and take of the labels, or log_softmax, mul and sum",
    .sample = "f32 [8, 6]; i32 [8]"};
constinit const Operation kPick = {.name = "pick of softmax_cross_entropy",
                                   .arity = {2, 2},
                                   .plan = plan_pick,
                                   .gradient = pick_gradient};

constinit const Operation kAttention = {
    .name = "attention",
    .arity = {3, 3},
    .attributes = kAttentionAttributes,
    .gradient = Gradient::of_parts(),
    .parts = attention_parts,
    .made_of = "einsum, mul, softmax and einsum",
    .sample = "f32 [2, 2, 4, 3]; f32 [2, 2, 6, 3]; f32 [2, 2, 6, 3]"};
constinit const Operation kMaskLaterKeys = {
    .name = "mask of attention", .arity = {1, 1}, .plan = plan_mask, .gradient = mask_gradient};

DTensor softmax(const DTensor& x, int64_t dim, const Out& out) {
  return only(apply(kSoftmax, {x}, {dim}, out));
}

DTensor log_softmax(const DTensor& x, int64_t dim, const Out& out) {
  return only(apply(kLogSoftmax, {x}, {dim}, out));
}

DTensor layer_norm(const DTensor& x, const DTensor& scale, const DTensor& bias, double epsilon,
                   const Out& out) {
  return only(apply(kLayerNorm, {x, scale, bias}, {epsilon}, out));
}

DTensor softmax_cross_entropy(const DTensor& logits, const DTensor& labels, const Out& out) {
  return only(apply(kSoftmaxCrossEntropy, {logits, labels}, {}, out));
}

DTensor attention(const DTensor& q, const DTensor& k, const DTensor& v,
                  const AttentionOptions& options, const Out& out) {
  return only(apply(kAttention, {q, k, v}, {options.causal, options.scale}, out));
}

}  // namespace tessera::ops
