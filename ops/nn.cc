// SPDX-License-Identifier: Apache-2.0
//
// Operations of nn.h that are made of others.
#include "ops/nn.h"

#include <cmath>
#include <cstddef>
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
#include "ops/broadcast.h"
#include "ops/catalog_entries.h"
#include "ops/composite.h"
#include "ops/contract.h"
#include "ops/gradient.h"
#include "ops/moving.h"
#include "ops/op.h"
#include "ops/operand_type.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/tape.h"

namespace tessera::ops {
namespace {

using kernels::RowKind;

Status check_float(const char* name, const OperandType& x) {
  if (is_floating_point(x.dtype())) return absl::OkStatus();
  return refusal(name, "takes floating-point numbers, not ", dtype_name(x.dtype()),
                 "; cast() first");
}

// The first error of the operands, else what is wrong with the call.
template <class Check>
Status first_error(absl::Span<const DTensor> operands, Check check) {
  for (const DTensor& operand : operands) {
    TESSERA_RETURN_IF_ERROR(internal::facts_of(operand).error);
  }
  return check();
}

Status check_softmax(const char* name, const DTensor& x, int64_t dim) {
  return first_error({&x, 1}, [&]() -> Status {
    TESSERA_RETURN_IF_ERROR(check_float(name, x));
    return checked_dim(name, dim, rank_of(x)).status();
  });
}

// x with -infinity where a key comes after its query.
DTensor mask_later_keys(const DTensor& scores) {
  DTensor result = run({"attention", {&scores, 1}, {}, {}}, [&]() -> StatusOr<OpPlan> {
    OpPlan plan = plan_same(scores);
    plan.rule.linearity = Linearity::kNone;
    const int64_t queries = scores.shape()[2];
    const int64_t keys = scores.shape()[3];
    plan.kernel = [dtype = scores.dtype(),
                   shift = keys - queries](const LocalCall& call) -> Status {
      return call.engine.mask_later(dtype, call.in[0], call.out_box, shift, call.out);
    };
    return plan;
  });
  // The cotangent of an element that is masked is 0 already: its weight is.
  return differentiable(std::move(result), {&scores, 1},
                        [](const GradientCall& call) -> Gradients { return {call.cotangent}; });
}

// Whether each query, [queries, 1], sees a key: all but the first `num_blind`.
DTensor sees_a_key(const DTensor& scores, int64_t num_blind) {
  const StatusOr<Layout> layout = Layout::replicated(scores.layout().mesh(), 2);
  return greater_equal(iota<int64_t>({scores.shape()[2], 1}, layout), num_blind);
}

// Element labels[i] of row i; of a device that holds a part of the rows, 0 where it does not hold
// the element.
DTensor pick(const DTensor& rows, const DTensor& labels) {
  const DTensor operands[] = {rows, labels};
  DTensor result = run({"softmax_cross_entropy", operands, {}, {}}, [&]() -> StatusOr<OpPlan> {
    OpPlan plan = plan_same(rows);
    plan.rule.linearity = Linearity::kNone;
    const int64_t classes = plan.shape.back();
    plan.rule.factors[plan.rule.result.back()[0]].kind = FactorKind::kContracted;
    plan.rule.result.pop_back();
    plan.rule.operands.push_back(plan.rule.result);
    plan.shape.pop_back();
    plan.kernel = [dtype = rows.dtype(), label_dtype = labels.dtype(),
                   classes](const LocalCall& call) -> Status {
      return call.engine.pick(dtype, call.in[0], call.in_boxes[0],
                              {call.in_boxes[0].offsets.back(), classes},
                              {label_dtype, call.in[1], call.in_boxes[1].num_elements()}, call.out);
    };
    return plan;
  });
  return differentiable(std::move(result), operands, [](const GradientCall& call) -> Gradients {
    const DTensor& from = call.operands[0];
    const DTensor hits = cast(one_hot(call.operands[1], from.shape().back()), from.dtype());
    return {mul_or_zero(expand_dims(call.cotangent, -1), hits), std::nullopt};
  });
}

Status check_cross_entropy(const DTensor& logits, const DTensor& labels) {
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

Status check_attention(const OperandType& q, const OperandType& k, const OperandType& v) {
  TESSERA_RETURN_IF_ERROR(check_float("attention", q));
  TESSERA_RETURN_IF_ERROR(check_same_dtype("attention", {q, k, v}));
  for (const OperandType& operand : {q, k, v}) {
    if (rank_of(operand) == 4) continue;
    return refusal("attention", "operands are [batch, heads, sequence, depth], and one has rank ",
                   rank_of(operand));
  }
  const Shape& queries = q.shape();
  const Shape& keys = k.shape();
  if (queries[3] != keys[3]) {
    return refusal("attention", "queries have depth ", queries[3], ", keys ", keys[3]);
  }
  if (queries[0] != keys[0] || queries[1] != keys[1] || keys[0] != v.shape()[0] ||
      keys[1] != v.shape()[1] || keys[2] != v.shape()[2]) {
    return refusal("attention", "shapes ", shape_to_string(queries), ", ", shape_to_string(keys),
                   " and ", shape_to_string(v.shape()),
                   " do not fit: batch and heads are those of "
                   "all, the sequence that of keys and values");
  }
  return absl::OkStatus();
}

// Functions of the last dim of all operands, which each device has whole.
DTensor run_rows(const char* name, RowKind kind, absl::Span<const DTensor> operands,
                 double epsilon = 0, const Out& out = {}) {
  const int64_t attributes[] = {static_cast<int64_t>(kind), attribute_of(epsilon)};
  return run({name, operands, attributes, out}, [&]() -> StatusOr<OpPlan> {
    OpPlan plan = plan_same(operands[0]);
    Rule& rule = plan.rule;
    rule.linearity = Linearity::kNone;
    rule.factors[rule.result.back()[0]].kind = FactorKind::kWhole;
    for (const DTensor& operand : operands.subspan(1)) {
      // A row for all has the last dim alone.
      rule.operands.push_back(
          rank_of(operand) == rank_of(operands[0]) ? rule.result : RuleDims{rule.result.back()});
    }
    plan.kernel = [kind, dtype = plan.dtype, epsilon](const LocalCall& call) -> Status {
      const int64_t size = call.out_box.sizes.back();
      const int64_t count = size == 0 ? 0 : call.out_box.num_elements() / size;
      return call.engine.rows({kind, count, size, epsilon}, dtype, call.in, call.out);
    };
    return plan;
  });
}

bool is_last(int64_t dim, const DTensor& x) { return dim == -1 || dim == rank_of(x) - 1; }
// Whether devices have all of each row, and compute functions of rows at once (Engine::rows).
bool has_whole_rows(const DTensor& x) {
  return internal::facts_of(x).uses_host_memory &&
         x.layout().num_shards(x.layout().rank() - 1) == 1;
}

// The derivatives of a gradient, from the same gradient made of operations.
template <class Gradient>
Gradients derivatives_of(const GradientCall& call, Gradient gradient) {
  Tape tape;
  std::vector<DTensor> watched;
  for (const DTensor& operand : call.operands) watched.push_back(tape.watch(operand));
  GradientOptions options;
  options.seed = call.cotangent;
  options.reduce = Reduce::kLater;
  Gradients found;
  for (DTensor& each : tape.gradient(gradient(watched[0], watched[1]), watched, options)) {
    found.push_back(std::move(each));
  }
  return found;
}

// The gradient of the sum of y c, where y is a softmax, by what the softmax was taken of.
DTensor softmax_gradient(const DTensor& y, const DTensor& c) {
  const auto by_operations = [](const DTensor& a, const DTensor& b) {
    return mul_or_zero(a, sub(b, sum(mul_or_zero(a, b), {-1}, KeepDims::kYes)));
  };
  if (!has_whole_rows(y) || !has_whole_rows(c)) return by_operations(y, c);
  const DTensor operands[] = {y, c};
  return differentiable(
      run_rows("softmax gradient", RowKind::kSoftmaxGradient, operands), operands,
      [by_operations](const GradientCall& call) { return derivatives_of(call, by_operations); });
}
DTensor log_softmax_gradient(const DTensor& y, const DTensor& c) {
  const auto by_operations = [](const DTensor& a, const DTensor& b) {
    return sub(b, mul_or_zero(exp(a), sum(b, {-1}, KeepDims::kYes)));
  };
  if (!has_whole_rows(y) || !has_whole_rows(c)) return by_operations(y, c);
  const DTensor operands[] = {y, c};
  return differentiable(
      run_rows("log_softmax gradient", RowKind::kLogSoftmaxGradient, operands), operands,
      [by_operations](const GradientCall& call) { return derivatives_of(call, by_operations); });
}

// x less its mean along the last dim, over the root of its variance and epsilon.
DTensor normalize_by_operations(const DTensor& x, double epsilon) {
  const DTensor away = sub(x, mean(x, {-1}, KeepDims::kYes));
  // In two passes: a sum of squares cancels.
  const DTensor spread = mean(square(away), {-1}, KeepDims::kYes);
  return mul(away, rsqrt(add(spread, epsilon)));
}
DTensor normalize_gradient(const DTensor& x, const DTensor& c, double epsilon) {
  const DTensor operands[] = {x, c};
  return differentiable(
      run_rows("layer_norm gradient", RowKind::kNormalizeGradient, operands, epsilon), operands,
      [epsilon](const GradientCall& call) {
        return derivatives_of(call, [epsilon](const DTensor& a, const DTensor& b) {
          const DTensor y = normalize_by_operations(a, epsilon);
          const DTensor away = sub(a, mean(a, {-1}, KeepDims::kYes));
          const DTensor scale = rsqrt(add(mean(square(away), {-1}, KeepDims::kYes), epsilon));
          const DTensor along = mean(mul(b, y), {-1}, KeepDims::kYes);
          return mul(scale, sub(sub(b, mean(b, {-1}, KeepDims::kYes)), mul(y, along)));
        });
      });
}

DTensor normalize_by_rows(const DTensor& x, double epsilon) {
  return differentiable(run_rows("layer_norm", RowKind::kNormalize, {&x, 1}, epsilon), {&x, 1},
                        [epsilon](const GradientCall& call) -> Gradients {
                          return {normalize_gradient(call.operands[0], call.cotangent, epsilon)};
                        });
}

// layer_norm() of rows that devices have whole.
DTensor normalize_rows(const DTensor& x, const DTensor& scale, const DTensor& bias, double epsilon,
                       const Out& out) {
  const DTensor operands[] = {x, scale, bias};
  return differentiable(run_rows("layer_norm", RowKind::kNormalize, operands, epsilon, out),
                        operands, [epsilon](const GradientCall& call) -> Gradients {
                          const DTensor& c = call.cotangent;
                          Gradients found(3);
                          if (call.needed[0]) {
                            found[0] = normalize_gradient(call.operands[0],
                                                          mul(c, call.operands[1]), epsilon);
                          }
                          if (call.needed[1]) {
                            const DTensor unit = normalize_by_rows(call.operands[0], epsilon);
                            found[1] = sum_to(mul(c, unit), call.operands[1].shape());
                          }
                          if (call.needed[2]) found[2] = sum_to(c, call.operands[2].shape());
                          return found;
                        });
}

// Whether Engine::rows gives the result of f16 and bf16 rounded once: it computes them in f32. Its
// gradients would begin at the rounded result.
bool is_recorded(const DTensor& x) { return internal::trace_of(x) != nullptr; }
bool rows_round_once(const DTensor& x) {
  return is_half(x.dtype()) && has_whole_rows(x) && !is_recorded(x);
}

DTensor softmax_of(const DTensor& x, int64_t dim, const Out& out) {
  if (is_last(dim, x) && has_whole_rows(x)) {
    return differentiable(run_rows("softmax", RowKind::kSoftmax, {&x, 1}, 0, out), {&x, 1},
                          [](const GradientCall& call) -> Gradients {
                            return {softmax_gradient(call.result, call.cotangent)};
                          });
  }
  const DTensor powers = exp(sub(x, finite_max(x, {dim})));
  return div(powers, sum(powers, {dim}, KeepDims::kYes), out);
}

DTensor log_softmax_of(const DTensor& x, int64_t dim, const Out& out) {
  if (is_last(dim, x) && has_whole_rows(x)) {
    return differentiable(run_rows("log_softmax", RowKind::kLogSoftmax, {&x, 1}, 0, out), {&x, 1},
                          [](const GradientCall& call) -> Gradients {
                            return {log_softmax_gradient(call.result, call.cotangent)};
                          });
  }
  const DTensor below = sub(x, finite_max(x, {dim}));
  return sub(below, log(sum(exp(below), {dim}, KeepDims::kYes)), out);
}

}  // namespace

DTensor softmax(const DTensor& x, int64_t dim, const Out& out) {
  const Status status = check_softmax("softmax", x, dim);
  if (!status.ok()) return refuse({"softmax", {&x, 1}, {}, out}, status);
  const DTensor whole = without_partial(x);
  if (is_last(dim, x) && rows_round_once(whole)) {
    return run_rows("softmax", RowKind::kSoftmax, {&whole, 1}, 0, out);
  }
  return in_f32({&whole, 1}, out, [dim](absl::Span<const DTensor> wide, const Out& to) {
    return softmax_of(wide[0], dim, to);
  });
}

DTensor log_softmax(const DTensor& x, int64_t dim, const Out& out) {
  const Status status = check_softmax("log_softmax", x, dim);
  if (!status.ok()) return refuse({"log_softmax", {&x, 1}, {}, out}, status);
  const DTensor whole = without_partial(x);
  if (is_last(dim, x) && rows_round_once(whole)) {
    return run_rows("log_softmax", RowKind::kLogSoftmax, {&whole, 1}, 0, out);
  }
  return in_f32({&whole, 1}, out, [dim](absl::Span<const DTensor> wide, const Out& to) {
    return log_softmax_of(wide[0], dim, to);
  });
}

DTensor layer_norm(const DTensor& x, const DTensor& scale, const DTensor& bias, double epsilon,
                   const Out& out) {
  const DTensor operands[] = {x, scale, bias};
  const Status status = first_error(operands, [&]() -> Status {
    TESSERA_RETURN_IF_ERROR(check_float("layer_norm", x));
    TESSERA_RETURN_IF_ERROR(check_same_dtype("layer_norm", {x, scale, bias}));
    if (rank_of(x) == 0) return refusal("layer_norm", "of rank 0; the last dim is features");
    const Shape features = {x.shape().back()};
    if (scale.shape() != features || bias.shape() != features) {
      return refusal("layer_norm", "scale ", shape_to_string(scale.shape()), " and bias ",
                     shape_to_string(bias.shape()), " for features ", shape_to_string(features));
    }
    if (epsilon < 0) return refusal("layer_norm", "epsilon ", epsilon, " is negative");
    return absl::OkStatus();
  });
  if (!status.ok()) return refuse({"layer_norm", operands, {}, out}, status);
  const DTensor whole[] = {without_partial(x), scale, bias};
  if (rows_round_once(whole[0]) && !is_recorded(scale) && !is_recorded(bias)) {
    return run_rows("layer_norm", RowKind::kNormalize, whole, epsilon, out);
  }
  return in_f32(whole, out, [epsilon](absl::Span<const DTensor> wide, const Out& to) {
    if (has_whole_rows(wide[0])) return normalize_rows(wide[0], wide[1], wide[2], epsilon, to);
    return add(mul(normalize_by_operations(wide[0], epsilon), wide[1]), wide[2], to);
  });
}

DTensor softmax_cross_entropy(const DTensor& logits, const DTensor& labels, const Out& out) {
  const DTensor operands[] = {logits, labels};
  const Status status = first_error(operands, [&] { return check_cross_entropy(logits, labels); });
  if (!status.ok()) return refuse({"softmax_cross_entropy", operands, {}, out}, status);
  const DTensor whole[] = {without_partial(logits), labels};
  return in_f32(whole, out, [](absl::Span<const DTensor> wide, const Out& to) {
    const DTensor& scores = wide[0];
    if (is_floating_point(wide[1].dtype())) {
      return finish(neg(sum(mul(wide[1], log_softmax(scores, -1)), {-1})), to);
    }
    if (has_whole_rows(scores)) return finish(neg(pick(log_softmax(scores, -1), wide[1])), to);
    return finish(sub(logsumexp(scores, {-1}), pick(scores, wide[1])), to);
  });
}

DTensor attention(const DTensor& q, const DTensor& k, const DTensor& v,
                  const AttentionOptions& options, const Out& out) {
  const DTensor operands[] = {q, k, v};
  const Status status = first_error(operands, [&] { return check_attention(q, k, v); });
  if (!status.ok()) return refuse({"attention", operands, {}, out}, status);
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.shape()[3])));
  // The first queries see no key where there are fewer keys than queries.
  const int64_t num_keys = k.shape()[2];
  const int64_t num_blind = options.causal ? q.shape()[2] - num_keys : 0;
  return in_f32(operands, out, [&](absl::Span<const DTensor> wide, const Out& to) {
    DTensor scores = mul(einsum("bhqd,bhkd->bhqk", wide.first(2)), scale);
    if (options.causal) scores = mask_later_keys(scores);
    std::optional<DTensor> sees;
    if (num_blind > 0 && num_keys > 0) {
      sees = sees_a_key(scores, num_blind);
      scores = select(*sees, scores, mul_or_zero(stop_gradient(scores), 0));
    }
    DTensor weights = softmax(scores, -1);
    if (sees.has_value()) weights = select(*sees, weights, mul_or_zero(stop_gradient(weights), 0));
    const DTensor weighted[] = {weights, wide[2]};
    return finish(einsum("bhqk,bhkd->bhqd", weighted), to);
  });
}

std::vector<CatalogEntry> network_entries() {
  return {
      composition("softmax", "max, clip, sub, exp, sum and div"),
      composition("log_softmax", "max, clip, sub, exp, sum, log and sub"),
      composition("layer_norm", "mean, sub, square, mean, add, rsqrt, mul and add"),
      composition("softmax_cross_entropy",
                  "logsumexp, and take of the labels, or log_softmax, mul and sum"),
      composition("attention", "einsum, mul, softmax and einsum"),
  };
}

}  // namespace tessera::ops
