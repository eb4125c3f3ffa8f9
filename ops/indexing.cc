// SPDX-License-Identifier: Apache-2.0
//
// Operations of shapes.h that find elements by indices in a tensor.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "compute/cpu/index.h"
#include "compute/cpu/reduce.h"
#include "ops/all_operations.h"
#include "ops/apply.h"
#include "ops/broadcast.h"
#include "ops/moving.h"
#include "ops/operand_type.h"
#include "ops/operation.h"
#include "ops/pointwise.h"
#include "ops/shapes.h"

namespace tessera::ops {
namespace {

Status check_indices(const char* name, const OperandType& indices) {
  if (indices.dtype() == DType::kInt32 || indices.dtype() == DType::kInt64) return absl::OkStatus();
  return refusal(name, "indices are ", dtype_name(indices.dtype()), ", not i32 or i64");
}

constexpr AttributeSpec kTakenDim[] = {{"dim", AttributeKind::kInt, "0"}};

StatusOr<OpPlan> plan_take(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  const OperandType& indices = operands[1];
  TESSERA_RETURN_IF_ERROR(check_indices("take", indices));
  TESSERA_ASSIGN_OR_RETURN(const int along,
                           checked_dim("take", attributes.integer("dim"), rank_of(x)));
  OpPlan plan = plan_same(x);
  Rule& rule = plan.rule;
  const RuleDims x_dims = rule.operands[0];
  // Along a split dim each device takes the elements it has, and zeros elsewhere: the result is the
  // sum of these terms, and of bool their disjunction.
  rule.factors[x_dims[along][0]].kind = FactorKind::kContracted;
  rule.contraction = x.dtype() == DType::kBool ? ReduceOp::kMax : ReduceOp::kSum;
  RuleDims& index_dims = rule.operands.emplace_back();
  for (const int64_t size : indices.shape()) index_dims.push_back({rule.add_factor(size)});
  plan.shape.assign(x.shape().begin(), x.shape().begin() + along);
  plan.shape.insert(plan.shape.end(), indices.shape().begin(), indices.shape().end());
  plan.shape.insert(plan.shape.end(), x.shape().begin() + along + 1, x.shape().end());
  rule.result.assign(x_dims.begin(), x_dims.begin() + along);
  rule.result.insert(rule.result.end(), index_dims.begin(), index_dims.end());
  rule.result.insert(rule.result.end(), x_dims.begin() + along + 1, x_dims.end());
  rule.linearity = Linearity::kEach;
  rule.carriers = {true, false};
  rule.reductions = reduction_bit(rule.contraction);
  plan.kernel = [dtype = x.dtype(), index_dtype = indices.dtype(), along,
                 size = x.shape()[along]](const LocalCall& call) -> Status {
    return call.engine.take(dtype_size(dtype), call.in[0],
                            kernels::lines_along(call.in_boxes[0].sizes, along),
                            {call.in_boxes[0].offsets[along], size},
                            {index_dtype, call.in[1], call.in_boxes[1].num_elements()}, call.out);
  };
  return plan;
}

Gradients take_gradient(const GradientCall& call) {
  const int64_t dim = call.attributes.integer("dim");
  const DTensor& table = call.operands[0];
  const int64_t along = dim < 0 ? dim + rank_of(table) : dim;
  const int64_t count = num_elements(call.operands[1].shape());
  // The dims of the indices become one.
  Shape slices = table.shape();
  slices[along] = count;
  return {scatter_add(mul_or_zero(table, 0), reshape(call.operands[1], {count}),
                      reshape(call.cotangent, slices), along),
          std::nullopt};
}

StatusOr<OpPlan> plan_scatter_add(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  const OperandType& indices = operands[1];
  const OperandType& updates = operands[2];
  TESSERA_RETURN_IF_ERROR(check_indices("scatter_add", indices));
  const OperandType summands[] = {x, updates};
  TESSERA_RETURN_IF_ERROR(check_same_dtype("scatter_add", summands));
  if (x.dtype() == DType::kBool) return refusal("scatter_add", "takes numbers, not bool");
  TESSERA_ASSIGN_OR_RETURN(const int along,
                           checked_dim("scatter_add", attributes.integer("dim"), rank_of(x)));
  if (rank_of(indices) != 1) {
    return refusal("scatter_add", "indices have rank ", rank_of(indices), ", not 1");
  }
  Shape expected = x.shape();
  expected[along] = indices.shape()[0];
  if (updates.shape() != expected) {
    return refusal("scatter_add", "updates for ", shape_to_string(indices.shape()),
                   " indices in dim ", along, " of ", shape_to_string(x.shape()), " have shape ",
                   shape_to_string(expected), ", not ", shape_to_string(updates.shape()));
  }
  OpPlan plan = plan_same(x);
  Rule& rule = plan.rule;
  rule.linearity = Linearity::kNone;
  const int count = rule.add_factor(indices.shape()[0], FactorKind::kContracted);
  rule.operands.push_back({{count}});
  rule.operands.push_back(rule.result);
  rule.operands.back()[along] = {count};
  plan.kernel = [dtype = x.dtype(), index_dtype = indices.dtype(), along,
                 size = x.shape()[along]](const LocalCall& call) -> Status {
    return call.engine.scatter_add(
        dtype, call.is_first_term ? call.in[0] : nullptr,
        kernels::lines_along(call.out_box.sizes, along), {call.out_box.offsets[along], size},
        {index_dtype, call.in[1], call.in_boxes[1].num_elements()}, call.in[2], call.out);
  };
  return plan;
}

Gradients scatter_add_gradient(const GradientCall& call) {
  Gradients found = {call.cotangent, std::nullopt, std::nullopt};
  if (call.needed[2]) {
    found[2] = take(call.cotangent, call.operands[1], call.attributes.integer("dim"));
  }
  return found;
}

constexpr AttributeSpec kDepth[] = {{"depth", AttributeKind::kInt, "8"}};

StatusOr<OpPlan> plan_one_hot(Operands operands, const Attributes& attributes) {
  const OperandType& indices = operands[0];
  const int64_t depth = attributes.integer("depth");
  TESSERA_RETURN_IF_ERROR(check_indices("one_hot", indices));
  if (depth < 0) return refusal("one_hot", "depth ", depth, " is negative");
  OpPlan plan = plan_same(indices);
  plan.rule.linearity = Linearity::kNone;
  plan.dtype = DType::kFloat32;
  plan.shape.push_back(depth);
  plan.rule.result.emplace_back();
  plan.kernel = [dtype = indices.dtype(), depth](const LocalCall& call) -> Status {
    return call.engine.one_hot({dtype, call.in[0], call.in_boxes[0].num_elements()}, depth,
                               reinterpret_cast<float*>(call.out));
  };
  return plan;
}

}  // namespace

constinit const Operation kTake = {.name = "take",
                                   .arity = {2, 2},
                                   .attributes = kTakenDim,
                                   .plan = plan_take,
                                   .gradient = take_gradient,
                                   .sample = "f32 [8, 6]; i32 [4]"};
constinit const Operation kScatterAdd = {.name = "scatter_add",
                                         .arity = {3, 3},
                                         .attributes = kTakenDim,
                                         .plan = plan_scatter_add,
                                         .gradient = scatter_add_gradient,
                                         .sample = "f32 [8, 6]; i32 [4]; f32 [4, 6]"};
constinit const Operation kOneHot = {.name = "one_hot",
                                     .arity = {1, 1},
                                     .attributes = kDepth,
                                     .plan = plan_one_hot,
                                     .gradient = Gradient::zero(),
                                     .sample = "i32 [4]"};

DTensor one_hot(const DTensor& indices, int64_t depth, const Out& out) {
  return only(apply(kOneHot, {indices}, {depth}, out));
}

DTensor take(const DTensor& x, const DTensor& indices, int64_t dim, const Out& out) {
  return only(apply(kTake, {x, indices}, {dim}, out));
}

DTensor scatter_add(const DTensor& x, const DTensor& indices, const DTensor& updates, int64_t dim,
                    const Out& out) {
  return only(apply(kScatterAdd, {x, indices, updates}, {dim}, out));
}

}  // namespace tessera::ops
