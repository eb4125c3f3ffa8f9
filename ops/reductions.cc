// SPDX-License-Identifier: Apache-2.0
#include "ops/reductions.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dims.h"
#include "base/dtype.h"
#include "base/math.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/cpu/products.h"
#include "compute/cpu/reduce.h"
#include "dtensor/device_op.h"
#include "ops/all_operations.h"
#include "ops/apply.h"
#include "ops/composite.h"
#include "ops/operand_type.h"
#include "ops/operation.h"
#include "ops/pointwise.h"
#include "ops/shapes.h"

namespace tessera::ops {
namespace {

enum class Takes : uint8_t { kNumbers, kFloats, kBool, kAnything };

struct Reduction {
  const char* name;
  ReduceOp op;
  Takes takes;
  bool is_mean = false;
};
constexpr Reduction kSumRow = {"sum", ReduceOp::kSum, Takes::kNumbers};
constexpr Reduction kMeanRow = {"mean", ReduceOp::kSum, Takes::kFloats, true};
constexpr Reduction kProdRow = {"prod", ReduceOp::kProd, Takes::kNumbers};
constexpr Reduction kMaxRow = {"max", ReduceOp::kMax, Takes::kAnything};
constexpr Reduction kMinRow = {"min", ReduceOp::kMin, Takes::kAnything};
constexpr Reduction kAllRow = {"all", ReduceOp::kMin, Takes::kBool};
constexpr Reduction kAnyRow = {"any", ReduceOp::kMax, Takes::kBool};

constexpr AttributeSpec kReductionAttributes[] = {{"dims", AttributeKind::kInts, "[1]", ""},
                                                  {"keep_dims", AttributeKind::kFlag, "", ""}};
Attributes::Values values_of(const Dims& dims, KeepDims keep) {
  return {dims.list(), keep == KeepDims::kYes};
}
Dims dims_of(const Attributes& attributes) {
  return attributes.has("dims") ? Dims(attributes.integers("dims")) : Dims(kAllDims);
}
KeepDims keep_of(const Attributes& attributes) {
  return attributes.flag("keep_dims") ? KeepDims::kYes : KeepDims::kNo;
}

Status check_dtype(const char* name, Takes takes, DType dtype) {
  switch (takes) {
    case Takes::kNumbers:
      if (dtype != DType::kBool) break;
      return refusal(name, "takes numbers, not bool; use any or all, or cast() first");
    case Takes::kFloats:
      if (is_floating_point(dtype)) break;
      return refusal(name, "takes floating-point numbers, not ", dtype_name(dtype),
                     "; cast() first");
    case Takes::kBool:
      if (dtype == DType::kBool) break;
      return refusal(name, "takes bool, not ", dtype_name(dtype));
    case Takes::kAnything:
      break;
  }
  return absl::OkStatus();
}

StatusOr<std::vector<bool>> marked_dims(const char* name, const Dims& dims, int64_t rank) {
  std::vector<bool> marked(rank, false);
  for (const int64_t each : dims.of_rank(rank)) {
    TESSERA_ASSIGN_OR_RETURN(const int dim, checked_dim(name, each, rank));
    if (marked[dim]) return refusal(name, "dim ", dim, " is given twice");
    marked[dim] = true;
  }
  return marked;
}

StatusOr<OpPlan> plan_reduction(const Reduction& reduction, const OperandType& x,
                                const Attributes& attributes) {
  const KeepDims keep = keep_of(attributes);
  const DType dtype = x.dtype();
  TESSERA_RETURN_IF_ERROR(check_dtype(reduction.name, reduction.takes, dtype));
  const Shape& shape = x.shape();
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<bool> marked,
      marked_dims(reduction.name, dims_of(attributes), static_cast<int64_t>(shape.size())));
  OpPlan plan;
  plan.dtype = dtype;
  RuleDims& in = plan.rule.operands.emplace_back();
  int64_t count = 1;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    in.push_back({plan.rule.add_factor(
        shape[dim], marked[dim] ? FactorKind::kContracted : FactorKind::kPassed)});
    if (marked[dim]) count = saturating_mul(count, shape[dim]);
    if (marked[dim] && keep == KeepDims::kNo) continue;
    plan.rule.result.push_back(marked[dim] ? RuleDim() : in.back());
    plan.shape.push_back(marked[dim] ? 1 : shape[dim]);
  }
  const bool is_extreme = reduction.op == ReduceOp::kMax || reduction.op == ReduceOp::kMin;
  if (is_extreme && reduction.takes == Takes::kAnything && count == 0) {
    return refusal(reduction.name, "of no elements: ", shape_to_string(shape));
  }
  plan.rule.contraction = reduction.op;
  plan.rule.linearity = Linearity::kJoint;
  plan.rule.reductions = reduction_bit(reduction.op);
  const double divisor = reduction.is_mean ? static_cast<double>(count) : 1;
  plan.kernel = [op = reduction.op, dtype, marked, divisor](const LocalCall& call) -> Status {
    return call.engine.reduce_dims(op, dtype, call.in[0], call.in_boxes[0].sizes, marked, divisor,
                                   call.out);
  };
  return plan;
}

// With the dims that were reduced, of size 1.
DTensor with_dims(const DTensor& reduced, const Dims& dims, const Shape& shape) {
  Shape kept = shape;
  const std::vector<bool> marked =
      *marked_dims("reshape", dims, static_cast<int64_t>(shape.size()));
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (marked[dim]) kept[dim] = 1;
  }
  return reshape(reduced, kept);
}

// The product of all other elements along the dims, by operations alone. Right where some of them
// are 0, and where the product of all is no more out of range than the product of the others.
DTensor products_by_quotients(const DTensor& x, const Dims& dims) {
  const DTensor is_zero = cast(equal(x, 0), x.dtype());
  const DTensor filled = add(x, is_zero);  // 1 for 0
  const DTensor of_filled = prod(filled, dims, KeepDims::kYes);
  const DTensor num_zeros = sum(is_zero, dims, KeepDims::kYes);
  // Without a zero all others count; where there is one, it alone has a product of others.
  const DTensor no_zero = cast(equal(num_zeros, 0), x.dtype());
  const DTensor one_zero = mul(cast(equal(num_zeros, 1), x.dtype()), is_zero);
  return mul(div(of_filled, filled), add(no_zero, one_zero));
}

// kernels::products_of_others() along dims that each device has whole.
constexpr AttributeSpec kDimsAttribute[] = {{"dims", AttributeKind::kInts, "[1]", ""}};

StatusOr<OpPlan> plan_products_of_others(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  const Shape& shape = x.shape();
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<bool> joined,
      marked_dims("prod gradient", dims_of(attributes), static_cast<int64_t>(shape.size())));
  OpPlan plan;
  plan.dtype = x.dtype();
  plan.shape = shape;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    plan.rule.result.push_back(
        {plan.rule.add_factor(shape[dim], joined[dim] ? FactorKind::kWhole : FactorKind::kPassed)});
  }
  plan.rule.operands.assign(operands.size(), plan.rule.result);
  plan.kernel = [dtype = x.dtype(), joined](const LocalCall& local) -> Status {
    kernels::products_of_others(dtype, local.in, local.out_box.sizes, joined, local.out);
    return absl::OkStatus();
  };
  return plan;
}

// In the gradient by x the cotangent is one more direction; in the gradient by a direction it
// replaces that direction.
Gradients products_of_others_gradient(const GradientCall& call) {
  Gradients found(call.operands.size());
  for (size_t i = 0; i < found.size(); ++i) {
    if (!call.needed[i]) continue;
    std::vector<DTensor> of(call.operands.begin(), call.operands.end());
    if (i == 0) {
      of.push_back(call.cotangent);
    } else {
      of[i] = call.cotangent;
    }
    found[i] = only(apply(kProductsOfOthers, of, call.attributes.values()));
  }
  return found;
}

DTensor sum_gradient(const Reduction& reduction, const Dims& dims, const GradientCall& call) {
  const Shape& shape = call.operands[0].shape();
  DTensor share = call.cotangent;
  if (reduction.is_mean) {
    const int64_t results = std::max<int64_t>(1, num_elements(call.result.shape()));
    const auto count = static_cast<double>(num_elements(shape) / results);
    // A count above 256 may be none of bf16.
    share = in_f32({&share, 1}, {}, [count](absl::Span<const DTensor> c, const Out& out) {
      return div(c[0], count, out);
    });
  }
  return broadcast_to(with_dims(share, dims, shape), shape);
}

DTensor reduction_gradient(const Reduction& reduction, const Dims& dims, const GradientCall& call) {
  const DTensor& x = call.operands[0];
  const DTensor spread = broadcast_to(with_dims(call.cotangent, dims, x.shape()), x.shape());
  switch (reduction.op) {
    case ReduceOp::kMin:
    case ReduceOp::kMax: {
      // Equal elements share.
      const DTensor is_chosen = cast(equal(x, with_dims(call.result, dims, x.shape())), x.dtype());
      return div_or_zero(mul_or_zero(spread, is_chosen), sum(is_chosen, dims, KeepDims::kYes));
    }
    case ReduceOp::kProd:
      return mul_or_zero(spread, internal::facts_of(x).uses_host_memory
                                     ? only(apply(kProductsOfOthers, {x}, {dims.list()}))
                                     : products_by_quotients(x, dims));
    default:
      return spread;
  }
}

template <const Reduction& kReduction>
StatusOr<OpPlan> plan_of(Operands x, const Attributes& attributes) {
  return plan_reduction(kReduction, x[0], attributes);
}

template <const Reduction& kReduction>
Gradients gradient_of(const GradientCall& call) {
  const Dims dims = dims_of(call.attributes);
  if (kReduction.op == ReduceOp::kSum) return {sum_gradient(kReduction, dims, call)};
  return gradients_in_f32(call, [&](const GradientCall& wide) -> Gradients {
    return {reduction_gradient(kReduction, dims, wide)};
  });
}

template <const Reduction& kReduction>
constexpr Operation reduction_row() {
  return {.name = kReduction.name,
          .arity = {1, 1},
          .attributes = kReductionAttributes,
          .plan = plan_of<kReduction>,
          .gradient = gradient_of<kReduction>,
          .sample = kReduction.takes == Takes::kBool ? "bool [8, 6]" : "f32 [8, 6]",
          .sample_attributes = "dims=[1]"};
}

// A composition of floats, in f32 for f16 and bf16, of x whose partial axes are reduced once.
using FloatComposition = DTensor (*)(const DTensor& x, const Dims& dims, KeepDims keep,
                                     const Out& out);
Results compose(const OpCall& call, FloatComposition function) {
  const DTensor& x = call.operands[0];
  const char* const name = call.operation.name;
  const Dims dims = dims_of(call.attributes);
  Status status = check_dtype(name, Takes::kFloats, x.dtype());
  status.Update(marked_dims(name, dims, static_cast<int64_t>(x.shape().size())).status());
  if (!status.ok()) return refuse(call, std::move(status));
  const DTensor whole = without_partial(x);
  return {in_f32({&whole, 1}, call.out, [&](absl::Span<const DTensor> wide, const Out& to) {
    return function(wide[0], dims, keep_of(call.attributes), to);
  })};
}

Results var_parts(const OpCall& call) {
  return compose(call, [](const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
    // In two passes: a sum of squares cancels.
    const DTensor away = sub(x, mean(x, dims, KeepDims::kYes));
    return finish(mean(square(away), dims, keep), out);
  });
}

Results norm_parts(const OpCall& call) {
  return compose(call, [](const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
    return sqrt(sum(square(x), dims, keep), out);
  });
}

Results logsumexp_parts(const OpCall& call) {
  return compose(call, [](const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
    const DTensor top = finite_max(x, dims);
    const DTensor kept = add(log(sum(exp(sub(x, top)), dims, KeepDims::kYes)), top);
    return finish(keep == KeepDims::kYes ? kept : max(kept, dims), out);
  });
}

constexpr Operation composition(const char* name, Parts parts, const char* made_of) {
  return {.name = name,
          .arity = {1, 1},
          .attributes = kReductionAttributes,
          .gradient = Gradient::of_parts(),
          .parts = parts,
          .made_of = made_of,
          .sample = "f32 [8, 6]",
          .sample_attributes = "dims=[1]"};
}

}  // namespace

constinit const Operation kSum = reduction_row<kSumRow>();
constinit const Operation kMean = reduction_row<kMeanRow>();
constinit const Operation kProd = reduction_row<kProdRow>();
constinit const Operation kMax = reduction_row<kMaxRow>();
constinit const Operation kMin = reduction_row<kMinRow>();
constinit const Operation kAll = reduction_row<kAllRow>();
constinit const Operation kAny = reduction_row<kAnyRow>();
constinit const Operation kVar = composition("var", var_parts, "mean, sub, square and mean");
constinit const Operation kNorm = composition("norm", norm_parts, "square, sum and sqrt");
constinit const Operation kLogsumexp =
    composition("logsumexp", logsumexp_parts, "max, clip, sub, exp, sum, log and add");
constinit const Operation kProductsOfOthers = {.name = "prod gradient",
                                               .arity = {1, Arity::kMany},
                                               .attributes = kDimsAttribute,
                                               .plan = plan_products_of_others,
                                               .gradient = products_of_others_gradient,
                                               .needs_host = true};

DTensor sum(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return only(apply(kSum, {x}, values_of(dims, keep), out));
}
DTensor mean(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return only(apply(kMean, {x}, values_of(dims, keep), out));
}
DTensor prod(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return only(apply(kProd, {x}, values_of(dims, keep), out));
}
DTensor max(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return only(apply(kMax, {x}, values_of(dims, keep), out));
}
DTensor min(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return only(apply(kMin, {x}, values_of(dims, keep), out));
}
DTensor all(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return only(apply(kAll, {x}, values_of(dims, keep), out));
}
DTensor any(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return only(apply(kAny, {x}, values_of(dims, keep), out));
}
DTensor var(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return only(apply(kVar, {x}, values_of(dims, keep), out));
}
DTensor norm(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return only(apply(kNorm, {x}, values_of(dims, keep), out));
}
DTensor logsumexp(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return only(apply(kLogsumexp, {x}, values_of(dims, keep), out));
}

}  // namespace tessera::ops
