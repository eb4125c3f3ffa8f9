// SPDX-License-Identifier: Apache-2.0
#include "ops/reductions.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/device_op.h"
#include "ops/catalog_entries.h"
#include "ops/composite.h"
#include "ops/gradient.h"
#include "ops/kernels/reduce.h"
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
    if (marked[dim]) count *= shape[dim];
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

// The product of all other elements along the dims, right where some of them are zero.
DTensor products_of_others(const DTensor& x, const Dims& dims) {
  const DTensor is_zero = cast(equal(x, 0), x.dtype());
  const DTensor filled = add(x, is_zero);  // 1 for 0
  const DTensor of_filled = prod(filled, dims, KeepDims::kYes);
  const DTensor num_zeros = sum(is_zero, dims, KeepDims::kYes);
  // Without a zero all others count; where there is one, it alone has a product of others.
  const DTensor no_zero = cast(equal(num_zeros, 0), x.dtype());
  const DTensor one_zero = mul(cast(equal(num_zeros, 1), x.dtype()), is_zero);
  return mul(div(of_filled, filled), add(no_zero, one_zero));
}

DTensor reduction_gradient(const Reduction& reduction, const Dims& dims, const GradientCall& call) {
  const DTensor& x = call.operands[0];
  const DTensor spread = broadcast_to(with_dims(call.cotangent, dims, x.shape()), x.shape());
  switch (reduction.op) {
    case ReduceOp::kMin:
    case ReduceOp::kMax: {
      // Equal elements share.
      const DTensor is_chosen = cast(equal(x, with_dims(call.result, dims, x.shape())), x.dtype());
      return div(mul(spread, is_chosen), sum(is_chosen, dims, KeepDims::kYes));
    }
    case ReduceOp::kProd:
      return mul(spread, products_of_others(x, dims));
    default:
      break;
  }
  if (!reduction.is_mean) return spread;
  const int64_t results = std::max<int64_t>(1, num_elements(call.result.shape()));
  return div(spread, static_cast<double>(num_elements(x.shape()) / results));
}

DTensor reduce(const Reduction& reduction, const DTensor& x, const Dims& dims, KeepDims keep,
               const Out& out) {
  return differentiable(run({reduction.name, {&x, 1}, attributes_of(dims, keep), out},
                            [&] { return plan_reduction(reduction, x, dims, keep); }),
                        {&x, 1}, [reduction, dims](const GradientCall& call) -> Gradients {
                          return {reduction_gradient(reduction, dims, call)};
                        });
}

// Of floats: an error of the name, else x without partial axes, which are reduced once.
DTensor whole_floats(const char* name, const DTensor& x, const Dims& dims) {
  if (!internal::facts_of(x).error.ok()) return x;
  Status status = check_dtype(name, Takes::kFloats, x.dtype());
  status.Update(marked_dims(name, dims, static_cast<int64_t>(x.shape().size())).status());
  if (!status.ok()) return refuse({name, {&x, 1}, {}, {}}, std::move(status));
  return without_partial(x);
}

// One line of each result is an index, or an element, of a line along the dim.
StatusOr<OpPlan> plan_search(const char* name, const OperandType& x, int64_t dim, bool is_max) {
  TESSERA_RETURN_IF_ERROR(check_dtype(name, Takes::kNumbers, x.dtype()));
  const Shape& shape = x.shape();
  TESSERA_ASSIGN_OR_RETURN(const int along,
                           checked_dim(name, dim, static_cast<int64_t>(shape.size())));
  if (shape[along] == 0) return refusal(name, "of no elements: ", shape_to_string(shape));
  OpPlan plan;
  plan.dtype = DType::kInt64;
  RuleDims& in = plan.rule.operands.emplace_back();
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    in.push_back(
        {plan.rule.add_factor(shape[d], d == along ? FactorKind::kWhole : FactorKind::kPassed)});
    if (d == along) continue;
    plan.rule.result.push_back(in.back());
    plan.shape.push_back(shape[d]);
  }
  plan.kernel = [is_max, dtype = x.dtype(), along](const LocalCall& call) -> Status {
    return call.engine.arg_extreme(is_max, dtype, call.in[0],
                                   kernels::lines_along(call.in_boxes[0].sizes, along), {},
                                   reinterpret_cast<int64_t*>(call.out));
  };
  return plan;
}

DTensor search(const char* name, const DTensor& x, int64_t dim, bool is_max, const Out& out) {
  const int64_t attributes[] = {dim};
  return run({name, {&x, 1}, attributes, out}, [&] { return plan_search(name, x, dim, is_max); });
}

// The first k of each line in order: their values, or their indices.
StatusOr<OpPlan> plan_sort(const char* name, const OperandType& x, int64_t dim,
                           std::optional<int64_t> k, bool gives_indices) {
  TESSERA_RETURN_IF_ERROR(check_dtype(name, Takes::kNumbers, x.dtype()));
  const Shape& shape = x.shape();
  TESSERA_ASSIGN_OR_RETURN(const int along,
                           checked_dim(name, dim, static_cast<int64_t>(shape.size())));
  const int64_t count = k.value_or(shape[along]);
  if (count < 0 || count > shape[along]) {
    return refusal(name, "k is ", count, ", and dim ", along, " has ", shape[along], " elements");
  }
  OpPlan plan;
  plan.dtype = gives_indices ? DType::kInt64 : x.dtype();
  plan.shape = shape;
  plan.shape[along] = count;
  RuleDims& in = plan.rule.operands.emplace_back();
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    in.push_back(
        {plan.rule.add_factor(shape[d], d == along ? FactorKind::kWhole : FactorKind::kPassed)});
    plan.rule.result.push_back(in.back());
    if (d == along) plan.rule.result.back().clear();
  }
  plan.kernel = [is_top = k.has_value(), gives_indices, dtype = x.dtype(), along,
                 count](const LocalCall& call) -> Status {
    return call.engine.sort_lines(is_top, dtype, call.in[0],
                                  kernels::lines_along(call.in_boxes[0].sizes, along), {}, count,
                                  gives_indices ? nullptr : call.out,
                                  gives_indices ? reinterpret_cast<int64_t*>(call.out) : nullptr);
  };
  return plan;
}

StatusOr<OpPlan> plan_cumsum(const OperandType& x, int64_t dim) {
  TESSERA_RETURN_IF_ERROR(check_dtype("cumsum", Takes::kNumbers, x.dtype()));
  TESSERA_ASSIGN_OR_RETURN(const int along,
                           checked_dim("cumsum", dim, static_cast<int64_t>(x.shape().size())));
  OpPlan plan;
  plan.dtype = x.dtype();
  plan.shape = x.shape();
  RuleDims& in = plan.rule.operands.emplace_back();
  for (int d = 0; d < static_cast<int>(plan.shape.size()); ++d) {
    in.push_back({plan.rule.add_factor(plan.shape[d])});
  }
  plan.rule.result = in;
  plan.rule.moved.push_back({0, along, Reach::all(plan.shape[along])});
  plan.rule.linearity = Linearity::kJoint;
  plan.rule.reductions = kSums;
  plan.kernel = [dtype = x.dtype(), along](const LocalCall& call) -> Status {
    return call.engine.cumsum(dtype, call.in[0],
                              kernels::lines_along(call.in_boxes[0].sizes, along),
                              call.out_box.offsets[along], call.out_box.sizes[along], call.out);
  };
  return plan;
}

// Cotangents of elements that were taken from these places along the dim, added up there.
DTensor send_back(const DTensor& cotangent, const DTensor& places, int64_t dim,
                  const Shape& shape) {
  const auto rank = static_cast<int64_t>(shape.size());
  const int64_t along = dim < 0 ? dim + rank : dim;
  std::vector<int64_t> to_last;
  for (int64_t d = 0; d < rank; ++d) {
    if (d != along) to_last.push_back(d);
  }
  to_last.push_back(along);
  std::vector<int64_t> back(rank);
  for (int64_t d = 0; d < rank; ++d) back[to_last[d]] = d;
  const DTensor hits = cast(one_hot(transpose(places, to_last), shape[along]), cotangent.dtype());
  const DTensor sent = mul(expand_dims(transpose(cotangent, to_last), -1), hits);
  return transpose(sum(sent, {-2}), back);
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
  // In two passes: a sum of squares cancels.
  const DTensor away = sub(whole, mean(whole, dims, KeepDims::kYes));
  return finish(mean(square(away), dims, keep), out);
}
DTensor norm(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  return sqrt(sum(square(whole_floats("norm", x, dims)), dims, keep), out);
}
DTensor logsumexp(const DTensor& x, const Dims& dims, KeepDims keep, const Out& out) {
  const DTensor whole = whole_floats("logsumexp", x, dims);
  const DTensor top = finite_max(whole, dims);
  const DTensor logs = log(sum(exp(sub(whole, top)), dims, KeepDims::kYes));
  const DTensor kept = add(logs, top);
  return finish(keep == KeepDims::kYes ? kept : max(kept, dims), out);
}

DTensor argmax(const DTensor& x, int64_t dim, const Out& out) {
  return search("argmax", x, dim, true, out);
}
DTensor argmin(const DTensor& x, int64_t dim, const Out& out) {
  return search("argmin", x, dim, false, out);
}

DTensor cumsum(const DTensor& x, int64_t dim, const Out& out) {
  const int64_t attributes[] = {dim};
  DTensor result = run({"cumsum", {&x, 1}, attributes, out}, [&] { return plan_cumsum(x, dim); });
  return differentiable(std::move(result), {&x, 1}, [dim](const GradientCall& call) -> Gradients {
    return {flip(cumsum(flip(call.cotangent, {dim}), dim), {dim})};
  });
}

DTensor sort(const DTensor& x, int64_t dim, const Out& out) {
  const int64_t values[] = {dim, 0};
  DTensor result = run({"sort", {&x, 1}, values, out},
                       [&] { return plan_sort("sort", x, dim, std::nullopt, false); });
  return differentiable(std::move(result), {&x, 1}, [dim](const GradientCall& call) -> Gradients {
    const int64_t indices[] = {dim, 1};
    const DTensor& sorted = call.operands[0];
    const DTensor places = run({"sort", {&sorted, 1}, indices, {}},
                               [&] { return plan_sort("sort", sorted, dim, std::nullopt, true); });
    return {send_back(call.cotangent, places, dim, sorted.shape())};
  });
}

TopK top_k(const DTensor& x, int64_t k, int64_t dim, const Out& out) {
  const int64_t values[] = {dim, k, 0};
  const int64_t indices[] = {dim, k, 1};
  DTensor places =
      run({"top_k", {&x, 1}, indices, out}, [&] { return plan_sort("top_k", x, dim, k, true); });
  DTensor top = differentiable(
      run({"top_k", {&x, 1}, values, out}, [&] { return plan_sort("top_k", x, dim, k, false); }),
      {&x, 1}, [places, dim](const GradientCall& call) -> Gradients {
        return {send_back(call.cotangent, places, dim, call.operands[0].shape())};
      });
  return {std::move(top), std::move(places)};
}

namespace {

const SampleOperand kSampleMatrix = {DType::kFloat32, {8, 6}};

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

// Of an operation along the attribute dim.
template <class Plan>
CatalogEntry line_entry(const char* name, Plan plan) {
  return {name,
          1,
          1,
          {"dim=1"},
          {},
          {kSampleMatrix},
          [plan](Operands x, const Attributes& attributes) -> StatusOr<OpPlan> {
            TESSERA_ASSIGN_OR_RETURN(const int64_t dim, attributes.integer("dim"));
            return plan(x[0], dim);
          }};
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
  entries.push_back(line_entry("argmax", [](const OperandType& x, int64_t dim) {
    return plan_search("argmax", x, dim, true);
  }));
  entries.push_back(line_entry("argmin", [](const OperandType& x, int64_t dim) {
    return plan_search("argmin", x, dim, false);
  }));
  entries.push_back(line_entry("cumsum", plan_cumsum));
  entries.push_back(line_entry("sort", [](const OperandType& x, int64_t dim) {
    return plan_sort("sort", x, dim, std::nullopt, false);
  }));
  entries.push_back({"top_k",
                     1,
                     1,
                     {"k=2", "dim=1"},
                     {},
                     {kSampleMatrix},
                     [](Operands x, const Attributes& attributes) -> StatusOr<OpPlan> {
                       TESSERA_ASSIGN_OR_RETURN(const int64_t k, attributes.integer("k"));
                       TESSERA_ASSIGN_OR_RETURN(const int64_t dim, attributes.integer("dim"));
                       return plan_sort("top_k", x[0], dim, k, false);
                     }});
  return entries;
}

}  // namespace tessera::ops
