// SPDX-License-Identifier: Apache-2.0
//
// Operations whose result is the operand's array with other strides.
#include "ops/shapes.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "base/dtype.h"
#include "base/math.h"
#include "base/status.h"
#include "compute/cpu/pointwise.h"
#include "ops/all_operations.h"
#include "ops/apply.h"
#include "ops/broadcast.h"
#include "ops/composite.h"
#include "ops/moving.h"
#include "ops/operand_type.h"
#include "ops/operation.h"

namespace tessera::ops {
namespace {

using Strides = absl::InlinedVector<int64_t, 8>;

// A kernel that copies each element of the result from where `strides` and `begin`, of the first
// operand's array, say. Both may depend on the device's boxes.
struct Source {
  int64_t begin = 0;
  Strides strides;
};
template <class Find>
LocalKernel copying(DType dtype, Find find) {
  return [dtype, find = std::move(find)](const LocalCall& call) -> Status {
    if (call.out_box.is_empty()) return absl::OkStatus();
    const Source source = find(call);
    return call.engine.copy_strided(dtype,
                                    {call.in[0] + source.begin * dtype_size(dtype), source.strides},
                                    call.out_box.sizes, call.out);
  };
}

constexpr AttributeSpec kPermutation[] = {{"permutation", AttributeKind::kInts, "[1, 0]"}};

StatusOr<OpPlan> plan_transpose(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  const std::vector<int64_t>& permutation = attributes.integers("permutation");
  std::vector<int64_t> dims;
  std::vector<bool> seen(rank_of(x), false);
  for (const int64_t each : permutation) {
    const int64_t dim = each < 0 ? each + rank_of(x) : each;
    if (dim < 0 || dim >= rank_of(x) || seen[dim]) break;
    seen[dim] = true;
    dims.push_back(dim);
  }
  if (dims.size() != permutation.size() || rank_of(x) != static_cast<int64_t>(dims.size())) {
    return refusal("transpose", list_text(permutation), " is not a permutation of ", rank_of(x),
                   " dims");
  }
  OpPlan plan = plan_same(x);
  for (size_t k = 0; k < dims.size(); ++k) {
    plan.rule.result[k] = plan.rule.operands[0][dims[k]];
    plan.shape[k] = x.shape()[dims[k]];
  }
  plan.kernel = copying(x.dtype(), [dims](const LocalCall& call) {
    const Strides dense = dense_strides(call.in_boxes[0].sizes);
    Source source;
    for (const int64_t dim : dims) source.strides.push_back(dense[dim]);
    return source;
  });
  return plan;
}

// The factors of dims that hold as many elements: the greatest common ones from the left. Where
// there are none, all of the dims are gathered.
void add_group(absl::Span<const int64_t> from, absl::Span<const int64_t> to, RuleDim* in,
               RuleDim* out, Rule& rule) {
  const size_t known = rule.factors.size();
  size_t i = 0;
  size_t k = 0;
  int64_t left_in = from[0];
  int64_t left_out = to[0];
  for (;;) {
    const int64_t common = std::gcd(left_in, left_out);
    if (common == 1) break;
    in[i].push_back(rule.add_factor(common));
    out[k].push_back(in[i].back());
    left_in /= common;
    left_out /= common;
    while (left_in == 1 && i + 1 < from.size()) left_in = from[++i];
    while (left_out == 1 && k + 1 < to.size()) left_out = to[++k];
  }
  if (left_in == 1 && left_out == 1) return;
  rule.factors.resize(known);
  for (i = 0; i < from.size(); ++i) in[i] = {rule.add_factor(from[i], FactorKind::kWhole)};
  for (k = 0; k < to.size(); ++k) out[k] = {rule.add_factor(to[k], FactorKind::kWhole)};
}

// Dims from one place where both shapes hold as many elements to the next are a group.
Rule reshape_rule(const Shape& from, const Shape& to) {
  Rule rule;
  RuleDims& in = rule.operands.emplace_back(from.size());
  rule.result.resize(to.size());
  if (num_elements(from) == 0) {
    for (size_t i = 0; i < from.size(); ++i) in[i] = {rule.add_factor(from[i], FactorKind::kWhole)};
    return rule;
  }
  size_t i = 0;
  size_t k = 0;
  for (;;) {
    while (i < from.size() && from[i] == 1) ++i;
    while (k < to.size() && to[k] == 1) ++k;
    if (i == from.size()) break;
    const size_t first_in = i;
    const size_t first_out = k;
    int64_t size_in = from[i++];
    int64_t size_out = to[k++];
    while (size_in != size_out) {
      if (size_in < size_out) {
        size_in *= from[i++];
      } else {
        size_out *= to[k++];
      }
    }
    add_group(absl::MakeConstSpan(from).subspan(first_in, i - first_in),
              absl::MakeConstSpan(to).subspan(first_out, k - first_out), &in[first_in],
              &rule.result[first_out], rule);
  }
  return rule;
}

constexpr AttributeSpec kReshapedShape[] = {{"shape", AttributeKind::kInts, "[2, 4, 6]"}};

StatusOr<OpPlan> plan_reshape(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  Shape shape = attributes.integers("shape");
  const int64_t count = num_elements(x.shape());
  const auto unknown = std::find(shape.begin(), shape.end(), -1);
  if (unknown != shape.end()) {
    *unknown = 1;
    const int64_t known = num_elements(shape);
    *unknown = known == 0 ? 0 : count / known;
  }
  TESSERA_RETURN_IF_ERROR(with_context(validate_shape(shape, x.dtype()), "reshape"));
  if (num_elements(shape) != count) {
    return refusal("reshape", shape_to_string(x.shape()), " has ", count, " elements, ",
                   shape_to_string(shape), " has ", num_elements(shape));
  }
  OpPlan plan = plan_same(x);
  Rule rule = reshape_rule(x.shape(), shape);
  rule.linearity = Linearity::kJoint;
  rule.reductions = kAllReductions;
  plan.rule = std::move(rule);
  plan.shape = std::move(shape);
  plan.kernel = copying(x.dtype(), [](const LocalCall& call) {
    return Source{0, dense_strides(call.out_box.sizes)};
  });
  return plan;
}

// Drops or adds dims of size 1: `dims` lists the dims of x that the result has, -1 for a new dim.
OpPlan plan_ones(const OperandType& x, const std::vector<int>& dims) {
  OpPlan plan = plan_same(x);
  const RuleDims in = plan.rule.operands[0];
  plan.rule.result.clear();
  plan.shape.clear();
  for (const int dim : dims) {
    plan.rule.result.push_back(dim < 0 ? RuleDim() : in[dim]);
    plan.shape.push_back(dim < 0 ? 1 : x.shape()[dim]);
  }
  for (size_t dim = 0; dim < in.size(); ++dim) {
    const bool stays = std::find(dims.begin(), dims.end(), static_cast<int>(dim)) != dims.end();
    if (!stays) plan.rule.factors[in[dim][0]].kind = FactorKind::kWhole;
  }
  plan.kernel = copying(x.dtype(), [](const LocalCall& call) {
    return Source{0, dense_strides(call.out_box.sizes)};
  });
  return plan;
}

constexpr AttributeSpec kOneDim[] = {{"dim", AttributeKind::kInt, "1"}};

StatusOr<OpPlan> plan_expand_dims(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  TESSERA_ASSIGN_OR_RETURN(const int at,
                           checked_dim("expand_dims", attributes.integer("dim"), rank_of(x) + 1));
  std::vector<int> dims(rank_of(x));
  std::iota(dims.begin(), dims.end(), 0);
  dims.insert(dims.begin() + at, -1);
  return plan_ones(x, dims);
}

StatusOr<OpPlan> plan_squeeze(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  TESSERA_ASSIGN_OR_RETURN(const int at,
                           checked_dim("squeeze", attributes.integer("dim"), rank_of(x)));
  if (x.shape()[at] != 1) {
    return refusal("squeeze", "dim ", at, " has ", x.shape()[at], " elements, not 1");
  }
  std::vector<int> dims(rank_of(x));
  std::iota(dims.begin(), dims.end(), 0);
  dims.erase(dims.begin() + at);
  return plan_ones(x, dims);
}

constexpr AttributeSpec kBroadcastShape[] = {{"shape", AttributeKind::kInts, "[4, 8, 6]"}};

StatusOr<OpPlan> plan_broadcast(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  const Shape& shape = attributes.integers("shape");
  TESSERA_RETURN_IF_ERROR(with_context(validate_shape(shape, x.dtype()), "broadcast_to"));
  const int64_t before = static_cast<int64_t>(shape.size()) - rank_of(x);
  bool fits = before >= 0;
  for (int64_t dim = 0; fits && dim < rank_of(x); ++dim) {
    fits = x.shape()[dim] == shape[before + dim] || x.shape()[dim] == 1;
  }
  if (!fits) {
    return refusal("broadcast_to", shape_to_string(x.shape()), " does not broadcast to ",
                   shape_to_string(shape));
  }
  OpPlan plan = plan_same(x);
  plan.shape = shape;
  plan.rule.result.assign(shape.size(), RuleDim());
  for (int64_t dim = 0; dim < rank_of(x); ++dim) {
    RuleDim& in = plan.rule.operands[0][dim];
    if (x.shape()[dim] == shape[before + dim]) {
      plan.rule.result[before + dim] = in;
    } else {
      plan.rule.factors[in[0]].kind = FactorKind::kWhole;
    }
  }
  plan.kernel = copying(x.dtype(), [](const LocalCall& call) {
    return Source{0, broadcast_strides(call.in_boxes[0].sizes, call.out_box.sizes)};
  });
  return plan;
}

constexpr AttributeSpec kSliceAttributes[] = {{"starts", AttributeKind::kInts, "[0, 1]"},
                                              {"limits", AttributeKind::kInts, "[8, 5]"},
                                              {"strides", AttributeKind::kInts, "[1, 2]", "[]"}};

StatusOr<OpPlan> plan_slice(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  const std::vector<int64_t>& starts = attributes.integers("starts");
  const std::vector<int64_t>& limits = attributes.integers("limits");
  const std::vector<int64_t>& strides = attributes.integers("strides");
  for (const std::vector<int64_t>* list : {&starts, &limits, &strides}) {
    if (list == &strides && strides.empty()) continue;
    if (static_cast<int64_t>(list->size()) == rank_of(x)) continue;
    return refusal("slice", list_text(*list), " has ", list->size(),
                   " entries for a tensor of rank ", rank_of(x));
  }
  OpPlan plan = plan_same(x);
  for (int dim = 0; dim < rank_of(x); ++dim) {
    const int64_t stride = strides.empty() ? 1 : strides[dim];
    const int64_t size = x.shape()[dim];
    if (stride < 1) return refusal("slice", "stride ", stride, " of dim ", dim, " is below 1");
    if (starts[dim] < 0 || starts[dim] > limits[dim] || limits[dim] > size) {
      return refusal("slice", "dim ", dim, " from ", starts[dim], " to ", limits[dim],
                     " is not in a dim of ", size, " elements");
    }
    const int64_t reach = limits[dim] - starts[dim];
    const int64_t count = reach == 0 ? 0 : (reach - 1) / stride + 1;
    set_moved(plan, dim, count, {stride, starts[dim], starts[dim]});
  }
  plan.kernel = copying(x.dtype(), [starts, strides](const LocalCall& call) {
    Source source = {0, dense_strides(call.in_boxes[0].sizes)};
    for (size_t dim = 0; dim < starts.size(); ++dim) {
      const int64_t stride = strides.empty() ? 1 : strides[dim];
      const int64_t first = starts[dim] + call.out_box.offsets[dim] * stride;
      source.begin += (first - call.in_boxes[0].offsets[dim]) * source.strides[dim];
      source.strides[dim] *= stride;
    }
    return source;
  });
  return plan;
}

constexpr AttributeSpec kFlipDims[] = {{"dims", AttributeKind::kInts, "[1]"}};

StatusOr<OpPlan> plan_flip(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  OpPlan plan = plan_same(x);
  std::vector<bool> turned(rank_of(x), false);
  for (const int64_t each : attributes.integers("dims")) {
    TESSERA_ASSIGN_OR_RETURN(const int dim, checked_dim("flip", each, rank_of(x)));
    if (turned[dim]) return refusal("flip", "dim ", dim, " is given twice");
    turned[dim] = true;
    const int64_t size = x.shape()[dim];
    set_moved(plan, dim, size, {-1, size - 1, size - 1});
  }
  plan.kernel = copying(x.dtype(), [turned, shape = x.shape()](const LocalCall& call) {
    Source source = {0, dense_strides(call.in_boxes[0].sizes)};
    for (size_t dim = 0; dim < turned.size(); ++dim) {
      if (!turned[dim]) continue;
      const int64_t last = shape[dim] - 1 - call.out_box.offsets[dim];
      source.begin += (last - call.in_boxes[0].offsets[dim]) * source.strides[dim];
      source.strides[dim] = -source.strides[dim];
    }
    return source;
  });
  return plan;
}

constexpr AttributeSpec kNarrowAttributes[] = {{"dim", AttributeKind::kInt, "1"},
                                               {"start", AttributeKind::kInt, "1"},
                                               {"length", AttributeKind::kInt, "3"}};

Results narrow_parts(const OpCall& call) {
  const DTensor& x = call.operands[0];
  const int64_t start = call.attributes.integer("start");
  const int64_t length = call.attributes.integer("length");
  const StatusOr<int> dim = checked_dim("narrow", call.attributes.integer("dim"), rank_of(x));
  if (!dim.ok()) return refuse(call, dim.status());
  const int64_t size = x.shape()[*dim];
  if (start < 0 || length < 0 || start > size || length > size - start) {
    return refuse(call, refusal("narrow", "dim ", *dim, " from ", start, ", ", length,
                                " elements: not in a dim of ", size, " elements"));
  }
  std::vector<int64_t> starts(x.shape().size(), 0);
  std::vector<int64_t> limits = x.shape();
  starts[*dim] = start;
  limits[*dim] = start + length;
  return {slice(x, starts, limits, {}, call.out)};
}

Gradients shape_back(const GradientCall& call) {
  return {reshape(call.cotangent, call.operands[0].shape())};
}

// Elements at their places in a tensor of the shape, zeros between and around them.
DTensor place_back(const DTensor& elements, const std::vector<int64_t>& starts,
                   const std::vector<int64_t>& strides, const Shape& shape) {
  DTensor spread = elements;
  std::vector<int64_t> none(shape.size(), 0);
  for (size_t dim = 0; dim < strides.size(); ++dim) {
    if (strides[dim] == 1) continue;
    // Zeros behind each element in a dim of their own, which then joins the dim of the elements.
    const auto after = static_cast<int64_t>(dim) + 1;
    std::vector<int64_t> low(shape.size() + 1, 0);
    std::vector<int64_t> high(shape.size() + 1, 0);
    high[after] = strides[dim] - 1;
    Shape joined = spread.shape();
    joined[dim] *= strides[dim];
    spread = reshape(pad(expand_dims(spread, after), low, high), joined);
    // The last element may have fewer places behind it than a stride has.
    std::vector<int64_t> limits = spread.shape();
    limits[dim] = std::min(limits[dim], shape[dim] - starts[dim]);
    spread = slice(spread, none, limits);
  }
  std::vector<int64_t> high;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    high.push_back(shape[dim] - starts[dim] - spread.shape()[dim]);
  }
  return pad(spread, starts, high);
}

Gradients transpose_gradient(const GradientCall& call) {
  const std::vector<int64_t>& permutation = call.attributes.integers("permutation");
  const auto rank = static_cast<int64_t>(permutation.size());
  std::vector<int64_t> inverse(rank);
  for (int64_t k = 0; k < rank; ++k) inverse[(permutation[k] + rank) % rank] = k;
  return {transpose(call.cotangent, inverse)};
}

Gradients broadcast_gradient(const GradientCall& call) {
  return {sum_to(call.cotangent, call.operands[0].shape())};
}

Gradients slice_gradient(const GradientCall& call) {
  return {place_back(call.cotangent, call.attributes.integers("starts"),
                     call.attributes.integers("strides"), call.operands[0].shape())};
}

Gradients flip_gradient(const GradientCall& call) {
  return {flip(call.cotangent, call.attributes.integers("dims"))};
}

}  // namespace

constinit const Operation kTranspose = {.name = "transpose",
                                        .arity = {1, 1},
                                        .attributes = kPermutation,
                                        .plan = plan_transpose,
                                        .gradient = transpose_gradient,
                                        .sample = "f32 [8, 6]"};
constinit const Operation kReshape = {.name = "reshape",
                                      .arity = {1, 1},
                                      .attributes = kReshapedShape,
                                      .plan = plan_reshape,
                                      .gradient = shape_back,
                                      .sample = "f32 [8, 6]"};
constinit const Operation kExpandDims = {.name = "expand_dims",
                                         .arity = {1, 1},
                                         .attributes = kOneDim,
                                         .plan = plan_expand_dims,
                                         .gradient = shape_back,
                                         .sample = "f32 [8, 6]"};
constinit const Operation kSqueeze = {.name = "squeeze",
                                      .arity = {1, 1},
                                      .attributes = kOneDim,
                                      .plan = plan_squeeze,
                                      .gradient = shape_back,
                                      .sample = "f32 [8, 1, 6]"};
constinit const Operation kBroadcastTo = {.name = "broadcast_to",
                                          .arity = {1, 1},
                                          .attributes = kBroadcastShape,
                                          .plan = plan_broadcast,
                                          .gradient = broadcast_gradient,
                                          .sample = "f32 [8, 1]"};
constinit const Operation kSlice = {.name = "slice",
                                    .arity = {1, 1},
                                    .attributes = kSliceAttributes,
                                    .plan = plan_slice,
                                    .gradient = slice_gradient,
                                    .sample = "f32 [8, 6]"};
constinit const Operation kNarrow = {.name = "narrow",
                                     .arity = {1, 1},
                                     .attributes = kNarrowAttributes,
                                     .gradient = Gradient::of_parts(),
                                     .parts = narrow_parts,
                                     .made_of = "slice",
                                     .sample = "f32 [8, 6]"};
constinit const Operation kFlip = {.name = "flip",
                                   .arity = {1, 1},
                                   .attributes = kFlipDims,
                                   .plan = plan_flip,
                                   .gradient = flip_gradient,
                                   .sample = "f32 [8, 6]"};

DTensor transpose(const DTensor& x, const Dims& permutation, const Out& out) {
  return only(apply(kTranspose, {x}, {permutation.of_rank(rank_of(x))}, out));
}

DTensor reshape(const DTensor& x, const Shape& shape, const Out& out) {
  return only(apply(kReshape, {x}, {shape}, out));
}

DTensor expand_dims(const DTensor& x, int64_t dim, const Out& out) {
  return only(apply(kExpandDims, {x}, {dim}, out));
}

DTensor squeeze(const DTensor& x, int64_t dim, const Out& out) {
  return only(apply(kSqueeze, {x}, {dim}, out));
}

DTensor broadcast_to(const DTensor& x, const Shape& shape, const Out& out) {
  return only(apply(kBroadcastTo, {x}, {shape}, out));
}

DTensor slice(const DTensor& x, const std::vector<int64_t>& starts,
              const std::vector<int64_t>& limits, const std::vector<int64_t>& given_strides,
              const Out& out) {
  // A stride that passes the end takes the first element alone, as any longer stride does.
  std::vector<int64_t> strides = given_strides;
  for (size_t dim = 0; dim < std::min({strides.size(), starts.size(), limits.size()}); ++dim) {
    const int64_t reach = saturating_add(limits[dim], -std::max<int64_t>(starts[dim], 0));
    strides[dim] = std::min(strides[dim], std::max<int64_t>(reach, 1));
  }
  return only(apply(kSlice, {x}, {starts, limits, std::move(strides)}, out));
}

DTensor narrow(const DTensor& x, int64_t dim, int64_t start, int64_t length, const Out& out) {
  return only(apply(kNarrow, {x}, {dim, start, length}, out));
}

DTensor flip(const DTensor& x, const Dims& dims, const Out& out) {
  return only(apply(kFlip, {x}, {dims.of_rank(rank_of(x))}, out));
}

}  // namespace tessera::ops
