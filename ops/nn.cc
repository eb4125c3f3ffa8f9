// SPDX-License-Identifier: Apache-2.0
//
// Operations of nn.h that are made of others.
#include "ops/nn.h"

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/device_op.h"
#include "ops/broadcast.h"
#include "ops/catalog_entries.h"
#include "ops/composite.h"
#include "ops/contract.h"
#include "ops/gradient.h"
#include "ops/kernels/nn.h"
#include "ops/moving.h"
#include "ops/op.h"
#include "ops/operand_type.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"

namespace tessera::ops {
namespace {

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
    return {mul(expand_dims(call.cotangent, -1), hits), std::nullopt};
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

}  // namespace

DTensor softmax(const DTensor& x, int64_t dim, const Out& out) {
  const Status status = check_softmax("softmax", x, dim);
  if (!status.ok()) return refuse({"softmax", {&x, 1}, {}, out}, status);
  const DTensor whole = without_partial(x);
  const DTensor powers = exp(sub(whole, finite_max(whole, {dim})));
  return div(powers, sum(powers, {dim}, KeepDims::kYes), out);
}

DTensor log_softmax(const DTensor& x, int64_t dim, const Out& out) {
  const Status status = check_softmax("log_softmax", x, dim);
  if (!status.ok()) return refuse({"log_softmax", {&x, 1}, {}, out}, status);
  const DTensor whole = without_partial(x);
  const DTensor below = sub(whole, finite_max(whole, {dim}));
  return sub(below, log(sum(exp(below), {dim}, KeepDims::kYes)), out);
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
  const DTensor whole = without_partial(x);
  const DTensor away = sub(whole, mean(whole, {-1}, KeepDims::kYes));
  // In two passes: a sum of squares cancels.
  const DTensor spread = mean(square(away), {-1}, KeepDims::kYes);
  const DTensor unit = mul(away, rsqrt(add(spread, epsilon)));
  return add(mul(unit, scale), bias, out);
}

DTensor softmax_cross_entropy(const DTensor& logits, const DTensor& labels, const Out& out) {
  const DTensor operands[] = {logits, labels};
  const Status status = first_error(operands, [&] { return check_cross_entropy(logits, labels); });
  if (!status.ok()) return refuse({"softmax_cross_entropy", operands, {}, out}, status);
  const DTensor whole = without_partial(logits);
  if (is_floating_point(labels.dtype())) {
    return finish(neg(sum(mul(labels, log_softmax(whole, -1)), {-1})), out);
  }
  return finish(sub(logsumexp(whole, {-1}), pick(whole, labels)), out);
}

DTensor attention(const DTensor& q, const DTensor& k, const DTensor& v,
                  const AttentionOptions& options, const Out& out) {
  const DTensor operands[] = {q, k, v};
  const Status status = first_error(operands, [&] { return check_attention(q, k, v); });
  if (!status.ok()) return refuse({"attention", operands, {}, out}, status);
  const double depth = static_cast<double>(q.shape()[3]);
  const DTensor pair[] = {q, k};
  DTensor scores =
      mul(einsum("bhqd,bhkd->bhqk", pair), options.scale.value_or(1 / std::sqrt(depth)));
  if (options.causal) scores = mask_later_keys(scores);
  const DTensor weighted[] = {softmax(scores, -1), v};
  return finish(einsum("bhqk,bhkd->bhqd", weighted), out);
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
