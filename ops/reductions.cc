// SPDX-License-Identifier: Apache-2.0
#include "ops/reductions.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/math.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/cpu/products.h"
#include "compute/cpu/reduce.h"
#include "dtensor/device_op.h"
#include "ops/catalog_entries.h"
#include "ops/composite.h"
#include "ops/gradient.h"
#include "ops/op.h"
#include "ops/operand_type.h"
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
constexpr Reduction kSum = {"sum", ReduceOp::kSum, Takes::kNumbers};
constexpr Reduction kMean = {"mean", ReduceOp::kSum, Takes::kFloats, true};
constexpr Reduction kProd = {"prod", ReduceOp::kProd, Takes::kNumbers};
constexpr Reduction kMax = {"max", ReduceOp::kMax, Takes::kAnything};
constexpr Reduction kMin = {"min", ReduceOp::kMin, Takes::kAnything};
constexpr Reduction kAll = {"all", ReduceOp::kMin, Takes::kBool};
constexpr Reduction kAny = {"any", ReduceOp::kMax, Takes::kBool};

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
  std::vector<bool> marked(rank, !dims.dims.has_value());
  if (!dims.dims.has_value()) return marked;
  for (const int64_t each : *dims.dims) {
    TESSERA_ASSIGN_OR_RETURN(const int dim, checked_dim(name, each, rank));
    if (marked[dim]) return refusal(name, "dim ", dim, " is given twice");
    marked[dim] = true;
  }
  return marked;
}

std::vector<int64_t> attributes_of(const Dims& dims, KeepDims keep) {
  std::vector<int64_t> attributes = {keep == KeepDims::kYes, dims.dims.has_value()};
  if (dims.dims.has_value()) {
    attributes.insert(attributes.end(), dims.dims->begin(), dims.dims->end());
  }
  return attributes;
}

StatusOr<OpPlan> plan_reduction(const Reduction& reduction, const OperandType& x, const Dims& dims,
                                KeepDims keep) {
  const DType dtype = x.dtype();
  TESSERA_RETURN_IF_ERROR(check_dtype(reduction.name, reduction.takes, dtype));
  const Shape& shape = x.shape();
  TESSERA_ASSIGN_OR_RETURN(const std::vector<bool> marked,
                           marked_dims(reduction.name, dims, static_cast<int64_t>(shape.size())));
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
DTensor products_of_others(const std::vector<DTensor>& operands, const Dims& dims) {
  constexpr const char* kName = "prod gradient";
  const std::vector<int64_t> attributes = attributes_of(dims, KeepDims::kYes);
  OpCall call = {kName, operands, attributes, {}};
  call.needs_host = true;
  DTensor result = run(call, [&]() -> StatusOr<OpPlan> {
    const OperandType x = operands[0];
    const Shape& shape = x.shape();
    TESSERA_ASSIGN_OR_RETURN(const std::vector<bool> joined,
                             marked_dims(kName, dims, static_cast<int64_t>(shape.size())));
    OpPlan plan;
    plan.dtype = x.dtype();
    plan.shape = shape;
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      plan.rule.result.push_back({plan.rule.add_factor(
          shape[dim], joined[dim] ? FactorKind::kWhole : FactorKind::kPassed)});
    }
    plan.rule.operands.assign(operands.size(), plan.rule.result);
    plan.kernel = [dtype = x.dtype(), joined](const LocalCall& local) -> Status {
      kernels::products_of_others(dtype, local.in, local.out_box.sizes, joined, local.out);
      return absl::OkStatus();
    };
    return plan;
  });
  // In the gradient by x the cotangent is one more direction; in the gradient by a direction it
  // replaces that direction.
  return differentiable(
      std::move(result), operands, [dims](const GradientCall& gradient) -> Gradients {
        Gradients found(gradient.operands.size());
        for (size_t i = 0; i < found.size(); ++i) {
          if (!gradient.needed[i]) continue;
          std::vector<DTensor> of(gradient.operands.begin(), gradient.operands.end());
          if (i == 0) {
            of.push_back(gradient.cotangent);
          } else {
            of[i] = gradient.cotangent;
          }
          found[i] = products_of_others(of, dims);
        }
        return found;
      });
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
                                     ? products_of_others({x}, dims)
                                     : products_by_quotients(x, dims));
    default:
      return spread;
  }
}

DTensor reduce(const Reduction& reduction, const DTensor& x, const Dims& dims, KeepDims keep,
               const Out& out) {
  return differentiable(run({reduction.name, {&x, 1}, attributes_of(dims, keep), out},
                            [&] { return plan_reduction(reduction, x, dims, keep); }),
                        {&x, 1}, [reduction, dims](const GradientCall& call) -> Gradients {
                          if (reduction.op == ReduceOp::kSum) {
                            return {sum_gradient(reduction, dims, call)};
                          }
                          return gradients_in_f32(call, [&](const GradientCall& wide) -> Gradients {
                            return {reduction_gradient(reduction, dims, wide)};
                          });
                        });
}

// Checks that x has floats and that the dims fit. Gives the error, else x without partial axes,
// which are reduced once.
DTensor whole_floats(const char* name, const DTensor& x, const Dims& dims) {
  if (!internal::facts_of(x).error.ok()) return x;
  Status status = check_dtype(name, Takes::kFloats, x.dtype());
  status.Update(marked_dims(name, dims, static_cast<int64_t>(x.shape().size())).status());
  if (!status.ok()) return refuse({name, {&x, 1}, {}, {}}, std::move(status));
  return without_partial(x);
}

}  // namespace

DTensor sum(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return reduce(kSum, x, dims, keep, out);
}
DTensor mean(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return reduce(kMean, x, dims, keep, out);
}
DTensor prod(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return reduce(kProd, x, dims, keep, out);
}
DTensor max(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return reduce(kMax, x, dims, keep, out);
}
DTensor min(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return reduce(kMin, x, dims, keep, out);
}
DTensor all(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return reduce(kAll, x, dims, keep, out);
}
DTensor any(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return reduce(kAny, x, dims, keep, out);
}

DTensor var(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  const DTensor whole = whole_floats("var", x, dims);
  return in_f32({&whole, 1}, out, [&](absl::Span<const DTensor> wide, const Out& to) {
    // In two passes: a sum of squares cancels.
    const DTensor away = sub(wide[0], mean(wide[0], dims, KeepDims::kYes));
    return finish(mean(square(away), dims, keep), to);
  });
}
DTensor norm(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  const DTensor whole = whole_floats("norm", x, dims);
  return in_f32({&whole, 1}, out, [&](absl::Span<const DTensor> wide, const Out& to) {
    return sqrt(sum(square(wide[0]), dims, keep), to);
  });
}
DTensor logsumexp(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  const DTensor whole = whole_floats("logsumexp", x, dims);
  return in_f32({&whole, 1}, out, [&](absl::Span<const DTensor> wide, const Out& to) {
    const DTensor top = finite_max(wide[0], dims);
    const DTensor logs = log(sum(exp(sub(wide[0], top)), dims, KeepDims::kYes));
    const DTensor kept = add(logs, top);
    return finish(keep == KeepDims::kYes ? kept : max(kept, dims), to);
  });
}

namespace {

CatalogEntry reduction_entry(const Reduction& reduction) {
  const DType dtype = reduction.takes == Takes::kBool ? DType::kBool : DType::kFloat32;
  const auto plan = [reduction](Operands x, const Attributes& attributes) -> StatusOr<OpPlan> {
    Dims dims;
    if (attributes.has("dims")) {
      TESSERA_ASSIGN_OR_RETURN(dims.dims, attributes.integers("dims"));
    }
    const KeepDims keep = attributes.has("keep_dims") ? KeepDims::kYes : KeepDims::kNo;
    return plan_reduction(reduction, x[0], dims, keep);
  };
  return {.name = reduction.name,
          .least_operands = 1,
          .most_operands = 1,
          .needed = {},
          .optional = {"dims=[1]", "keep_dims"},
          .sample = {{dtype, {8, 6}}},
          .plan = plan,
          .sample_attributes = "dims=[1]"};
}

}  // namespace

std::vector<CatalogEntry> reduction_entries() {
  std::vector<CatalogEntry> entries;
  for (const Reduction& each : {kSum, kMean, kProd, kMax, kMin, kAll, kAny}) {
    entries.push_back(reduction_entry(each));
  }
  entries.push_back(composition("var", "mean, sub, square and mean"));
  entries.push_back(composition("norm", "square, sum and sqrt"));
  entries.push_back(composition("logsumexp", "max, clip, sub, exp, sum, log and add"));
  return entries;
}

}  // namespace tessera::ops
