// SPDX-License-Identifier: Apache-2.0
//
// Operations of reductions.h along the lines of one dim: argmax, argmin, cumsum, sort, top_k.
//
// Where the dim is split, argmax, argmin, top_k and cumsum first make a few numbers of each shard,
// which alone are gathered (of cumsum in f16 and bf16, whose sums are rounded once, and of top_k of
// more elements than a shard has, the dim is gathered itself). sort gathers the dim.
//
// The last step is the operation again, with a second operand that users do not give: the indices
// of the elements, or the sums of the shards before each shard.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/cpu/reduce.h"
#include "dtensor/relayout.h"
#include "layout/layout.h"
#include "ops/all_operations.h"
#include "ops/apply.h"
#include "ops/composite.h"
#include "ops/moving.h"
#include "ops/operand_type.h"
#include "ops/operation.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/tape.h"
#include "ops/tape_graph.h"
#include "relayout/sub_axes.h"

namespace tessera::ops {
namespace {

constexpr AttributeSpec kDim = {"dim", AttributeKind::kInt, "1"};
constexpr AttributeSpec kK = {"k", AttributeKind::kInt, "2"};
constexpr AttributeSpec kLineAttributes[] = {kDim};
// `result` is the number of the only result that a call gives; unset: both.
constexpr AttributeSpec kTopKAttributes[] = {kK, kDim, {"result", AttributeKind::kInt, "1", ""}};

constexpr AttributeSpec kNumShards = {"num_shards", AttributeKind::kInt, "2"};
constexpr AttributeSpec kShardAttributes[] = {kDim, kNumShards};
constexpr AttributeSpec kExtremeAttributes[] = {
    kDim, kNumShards, {"is_max", AttributeKind::kFlag, ""}};
constexpr AttributeSpec kTopAttributes[] = {
    kDim, kNumShards, kK, {"gives_indices", AttributeKind::kFlag, ""}};

// The dim of the lines. Refuses bool.
StatusOr<int> line_dim(const char* name, const OperandType& x, const Attributes& attributes) {
  if (x.dtype() == DType::kBool) {
    return refusal(name, "takes numbers, not bool; use any or all, or cast() first");
  }
  return checked_dim(name, attributes.integer("dim"), rank_of(x));
}

// The plan of results that need whole lines of operands of one shape.
OpPlan plan_lines(Operands operands, int along) {
  OpPlan plan = plan_same(operands[0]);
  plan.rule.linearity = Linearity::kNone;
  plan.rule.factors[plan.rule.result[along][0]].kind = FactorKind::kWhole;
  plan.rule.operands.resize(operands.size(), plan.rule.result);
  return plan;
}

// The indices of the elements: those of the second operand where there is one.
kernels::LineIndices indices_of(const LocalCall& call) {
  if (call.in.size() == 1) return {};
  return {0, reinterpret_cast<const int64_t*>(call.in[1])};
}

// The index of the largest or smallest element of each line.
template <bool kIsMax>
StatusOr<OpPlan> plan_search(Operands operands, const Attributes& attributes) {
  constexpr const char* kName = kIsMax ? "argmax" : "argmin";
  const OperandType& x = operands[0];
  TESSERA_ASSIGN_OR_RETURN(const int along, line_dim(kName, x, attributes));
  if (x.shape()[along] == 0) {
    return refusal(kName, "of no elements: ", shape_to_string(x.shape()));
  }
  OpPlan plan = plan_lines(operands, along);
  plan.dtype = DType::kInt64;
  plan.rule.result.erase(plan.rule.result.begin() + along);
  plan.shape.erase(plan.shape.begin() + along);
  plan.kernel = [dtype = x.dtype(), along](const LocalCall& call) -> Status {
    return call.engine.arg_extreme(kIsMax, dtype, call.in[0],
                                   kernels::lines_along(call.in_boxes[0].sizes, along),
                                   indices_of(call), reinterpret_cast<int64_t*>(call.out));
  };
  return plan;
}

// The first `count` of each line in order: their values, or their indices.
OpPlan plan_in_order(Operands operands, int along, int64_t count, bool is_top, bool gives_indices) {
  OpPlan plan = plan_lines(operands, along);
  if (gives_indices) plan.dtype = DType::kInt64;
  plan.shape[along] = count;
  plan.rule.result[along].clear();
  plan.kernel = [is_top, gives_indices, dtype = operands[0].dtype(), along,
                 count](const LocalCall& call) -> Status {
    return call.engine.sort_lines(is_top, dtype, call.in[0],
                                  kernels::lines_along(call.in_boxes[0].sizes, along),
                                  indices_of(call), count, gives_indices ? nullptr : call.out,
                                  gives_indices ? reinterpret_cast<int64_t*>(call.out) : nullptr);
  };
  return plan;
}

template <bool kGivesIndices>
StatusOr<OpPlan> plan_sort(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  TESSERA_ASSIGN_OR_RETURN(const int along, line_dim("sort", x, attributes));
  return plan_in_order(operands, along, x.shape()[along], false, kGivesIndices);
}

StatusOr<OpPlan> plan_top_k(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  const int64_t k = attributes.integer("k");
  TESSERA_ASSIGN_OR_RETURN(const int along, line_dim("top_k", x, attributes));
  if (k < 0 || k > x.shape()[along]) {
    return refusal("top_k", "k is ", k, ", and dim ", along, " has ", x.shape()[along],
                   " elements");
  }
  const int64_t result = attributes.has("result") ? attributes.integer("result") : 0;
  if (result != 0 && result != 1) {
    return refusal("top_k", "result is ", result, "; 0 is the values, 1 the indices");
  }
  const bool gives_indices = result == 1;
  return plan_in_order(operands, along, k, true, gives_indices);
}

// Cumulative sums along a split dim: the sums of earlier shards are added to the sums of the
// device's shard.
OpPlan plan_cumsum_of_shards(const OperandType& x, int along, int64_t num_shards) {
  OpPlan plan = plan_same(x);
  plan.rule.reductions = kSums;
  plan.rule.operands.push_back(plan.rule.result);
  // Element i of n is in shard floor(i N / n).
  const int64_t size = x.shape()[along];
  plan.rule.moved.push_back({1, along, {num_shards, 0, 0, size}});
  plan.kernel = [dtype = x.dtype(), along, num_shards, size](const LocalCall& call) -> Status {
    const Box& box = call.out_box;
    if (box.is_empty()) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(call.engine.cumsum(
        dtype, call.in[0], kernels::lines_along(box.sizes, along), 0, box.sizes[along], call.out));
    const int64_t shard = box.offsets[along] * num_shards / size - call.in_boxes[1].offsets[along];
    absl::InlinedVector<int64_t, 8> strides = dense_strides(call.in_boxes[1].sizes);
    const std::byte* const before = call.in[1] + shard * strides[along] * dtype_size(dtype);
    strides[along] = 0;
    const absl::InlinedVector<int64_t, 8> own_strides = dense_strides(box.sizes);
    const kernels::Strided operands[] = {{call.out, own_strides}, {before, strides}};
    return call.engine.pointwise(kernels::PointwiseOp::add, dtype, operands, box.sizes, call.out);
  };
  return plan;
}

StatusOr<OpPlan> plan_cumsum(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  TESSERA_ASSIGN_OR_RETURN(const int along, line_dim("cumsum", x, attributes));
  if (operands.size() == 2) return plan_cumsum_of_shards(x, along, operands[1].shape()[along]);
  OpPlan plan = plan_same(x);
  plan.rule.moved.push_back({0, along, Reach::all(plan.shape[along])});
  plan.rule.reductions = kSums;
  plan.kernel = [dtype = x.dtype(), along](const LocalCall& call) -> Status {
    return call.engine.cumsum(dtype, call.in[0],
                              kernels::lines_along(call.in_boxes[0].sizes, along),
                              call.out_box.offsets[along], call.out_box.sizes[along], call.out);
  };
  return plan;
}

// ---- Shards

// `count` elements of the result for each shard of the dim, which the device makes of its shard
// alone: shard i of N needs elements floor((i n + N - 1) / N) to floor((i n + n - 1) / N) of n.
OpPlan plan_by_shard(const OperandType& x, const Attributes& attributes, int64_t count) {
  OpPlan plan = plan_same(x);
  const auto along = static_cast<int>(attributes.integer("dim"));
  const int64_t num_shards = attributes.integer("num_shards");
  const int64_t size = x.shape()[along];
  set_moved(plan, along, num_shards * count,
            {size, count * (num_shards - 1), size - count, count * num_shards});
  plan.rule.linearity = Linearity::kNone;
  return plan;
}

// The reduction of each shard; of no elements as reduce_dims().
OpPlan plan_reduced_shards(const OperandType& x, const Attributes& attributes, ReduceOp op) {
  OpPlan plan = plan_by_shard(x, attributes, 1);
  plan.kernel = [op, dtype = x.dtype(),
                 along = attributes.integer("dim")](const LocalCall& call) -> Status {
    std::vector<bool> is_reduced(call.out_box.sizes.size(), false);
    is_reduced[along] = true;
    return call.engine.reduce_dims(op, dtype, call.in[0], call.in_boxes[0].sizes, is_reduced, 1,
                                   call.out);
  };
  return plan;
}

StatusOr<OpPlan> plan_extremes(Operands x, const Attributes& attributes) {
  return plan_reduced_shards(x[0], attributes,
                             attributes.flag("is_max") ? ReduceOp::kMax : ReduceOp::kMin);
}

StatusOr<OpPlan> plan_sums(Operands x, const Attributes& attributes) {
  OpPlan plan = plan_reduced_shards(x[0], attributes, ReduceOp::kSum);
  plan.rule.linearity = Linearity::kJoint;
  plan.rule.reductions = kSums;
  return plan;
}

// The index of the largest or smallest element of each shard; of no elements the largest i64.
StatusOr<OpPlan> plan_indices_of_extremes(Operands x, const Attributes& attributes) {
  OpPlan plan = plan_by_shard(x[0], attributes, 1);
  plan.dtype = DType::kInt64;
  plan.kernel = [is_max = attributes.flag("is_max"), dtype = x[0].dtype(),
                 along =
                     static_cast<int>(attributes.integer("dim"))](const LocalCall& call) -> Status {
    const Box& in = call.in_boxes[0];
    if (in.sizes[along] == 0) {
      const int64_t last = std::numeric_limits<int64_t>::max();
      return call.engine.fill(DType::kInt64, reinterpret_cast<const std::byte*>(&last), call.out,
                              call.out_box.num_elements());
    }
    return call.engine.arg_extreme(is_max, dtype, call.in[0], kernels::lines_along(in.sizes, along),
                                   {in.offsets[along]}, reinterpret_cast<int64_t*>(call.out));
  };
  return plan;
}

// The k largest elements of each shard, or their indices.
StatusOr<OpPlan> plan_tops(Operands x, const Attributes& attributes) {
  const int64_t count = attributes.integer("k");
  const bool gives_indices = attributes.flag("gives_indices");
  OpPlan plan = plan_by_shard(x[0], attributes, count);
  if (gives_indices) plan.dtype = DType::kInt64;
  plan.kernel = [dtype = x[0].dtype(), along = static_cast<int>(attributes.integer("dim")), count,
                 gives_indices](const LocalCall& call) -> Status {
    const Box& in = call.in_boxes[0];
    auto* const indices = reinterpret_cast<int64_t*>(call.out);
    return call.engine.sort_lines(true, dtype, call.in[0], kernels::lines_along(in.sizes, along),
                                  {in.offsets[along]}, count, gives_indices ? nullptr : call.out,
                                  gives_indices ? indices : nullptr);
  };
  return plan;
}

// ---- Split dims

struct SplitDim {
  int dim;
  int64_t num_shards;
};
// The dim of the lines where it is split, and the operation takes the operand; else nothing. Not in
// the last step.
std::optional<SplitDim> split_dim(const OpCall& call) {
  const DTensor& x = call.operands[0];
  const StatusOr<int> dim =
      checked_dim(call.operation.name, call.attributes.integer("dim"), rank_of(x));
  // Without elements there is nothing to save.
  if (call.operands.size() > 1 || !dim.ok() || x.shape()[*dim] == 0) return std::nullopt;
  const int64_t num_shards = x.layout().num_shards(*dim);
  if (num_shards == 1 || !call.operation.plan(types_of(call.operands), call.attributes).ok()) {
    return std::nullopt;
  }
  return SplitDim{*dim, num_shards};
}

template <bool kIsMax>
Results search_parts(const OpCall& call) {
  const std::optional<SplitDim> split = split_dim(call);
  if (!split.has_value()) return {};
  const DTensor whole = without_partial(stop_gradient(call.operands[0]));
  const Attributes::Values of_shards = {split->dim, split->num_shards, kIsMax};
  const DTensor found[] = {only(apply(kExtremesOfShards, {whole}, of_shards)),
                           only(apply(kIndicesOfExtremes, {whole}, of_shards))};
  return apply(call.operation, found, call.attributes.values(), call.out);
}

// The candidates of top_k(): x, or the k largest elements of each shard and their indices.
std::vector<DTensor> candidates(const OpCall& call) {
  const DTensor& x = call.operands[0];
  const int64_t k = call.attributes.integer("k");
  const std::optional<SplitDim> split = split_dim(call);
  if (!split.has_value() || k == 0 || x.shape()[split->dim] / split->num_shards < k) return {x};
  const DTensor whole = without_partial(stop_gradient(x));
  const auto of_shards = [&](bool gives_indices) {
    return only(apply(kTopsOfShards, {whole}, {split->dim, split->num_shards, k, gives_indices}));
  };
  return {of_shards(false), of_shards(true)};
}

Results top_k_parts(const OpCall& call) {
  if (call.attributes.has("result")) return {};
  const std::vector<DTensor> from = candidates(call);
  const auto result = [&](int number) {
    Attributes::Values values = call.attributes.values();
    values.back() = number;
    return only(apply(kTopK, from, std::move(values), call.out));
  };
  const DTensor places = result(1);
  const DTensor operands[] = {call.operands[0], places};
  return {record(kValuesOfTopK, operands, call.attributes, result(0)), places};
}

// The layout with one dim whole.
Layout with_whole_dim(const Layout& layout, int dim) {
  std::vector<internal::SubAxes> dims = internal::dims_of(layout);
  dims[dim].clear();
  return internal::make_layout(layout.mesh(), dims,
                               {layout.partial_axes().begin(), layout.partial_axes().end()},
                               layout.partial_op());
}

// The sums of the shards before each shard.
DTensor sums_before_shards(const DTensor& x, const SplitDim& split) {
  const DTensor sums = only(apply(kSumsOfShards, {x}, {split.dim, split.num_shards}));
  const DTensor whole = relayout(sums, with_whole_dim(sums.layout(), split.dim));
  std::vector<int64_t> one(x.shape().size(), 0);
  one[split.dim] = 1;
  const std::vector<int64_t> none(x.shape().size(), 0);
  return slice(pad(cumsum(whole, split.dim), one, none), none, whole.shape());
}

Results cumsum_parts(const OpCall& call) {
  if (dtype_size(call.operands[0].dtype()) == 2) return {};
  const std::optional<SplitDim> split = split_dim(call);
  if (!split.has_value()) return {};
  const DTensor source = stop_gradient(call.operands[0]);
  DTensor sums =
      only(apply(kCumsum, {source, sums_before_shards(source, *split)}, call.attributes.values()));
  // Under `out` the last step might split the dim otherwise.
  if (call.out.layout.has_value()) sums = relayout(std::move(sums), *call.out.layout);
  return {record(kCumsum, call.operands, call.attributes, std::move(sums))};
}

// ---- Gradients

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
  const DTensor sent = mul_or_zero(expand_dims(transpose(cotangent, to_last), -1), hits);
  return transpose(sum(sent, {-2}), back);
}

Gradients cumsum_gradient(const GradientCall& call) {
  const int64_t dim = call.attributes.integer("dim");
  return {flip(cumsum(flip(call.cotangent, {dim}), dim), {dim})};
}

Gradients sort_gradient(const GradientCall& call) {
  const DTensor& x = call.operands[0];
  const int64_t dim = call.attributes.integer("dim");
  return {send_back(call.cotangent, only(apply(kIndicesOfSort, {x}, {dim})), dim, x.shape())};
}

Gradients top_gradient(const GradientCall& call) {
  return {send_back(call.cotangent, call.operands[1], call.attributes.integer("dim"),
                    call.operands[0].shape())};
}

template <bool kIsMax>
constexpr Operation search_operation(const char* name) {
  return {.name = name,
          .arity = {1, 1},
          .attributes = kLineAttributes,
          .plan = plan_search<kIsMax>,
          .gradient = Gradient::zero(),
          .parts = search_parts<kIsMax>,
          .made_of = "the extremes of shards and their indices",
          .sample = "f32 [8, 6]"};
}

// Gives indices, or has operands that no tape records.
constexpr Operation part(const char* name, absl::Span<const AttributeSpec> attributes, Plan plan) {
  return {.name = name,
          .arity = {1, 1},
          .attributes = attributes,
          .plan = plan,
          .gradient = Gradient::zero()};
}

}  // namespace

constinit const Operation kArgmax = search_operation<true>("argmax");
constinit const Operation kArgmin = search_operation<false>("argmin");
constinit const Operation kCumsum = {.name = "cumsum",
                                     .arity = {1, 1},
                                     .attributes = kLineAttributes,
                                     .plan = plan_cumsum,
                                     .gradient = cumsum_gradient,
                                     .parts = cumsum_parts,
                                     .made_of = "the sums of shards, and sums in each",
                                     .sample = "f32 [8, 6]"};
constinit const Operation kSort = {.name = "sort",
                                   .arity = {1, 1},
                                   .attributes = kLineAttributes,
                                   .plan = plan_sort<false>,
                                   .gradient = sort_gradient,
                                   .sample = "f32 [8, 6]"};
constinit const Operation kIndicesOfSort =
    part("indices of sort", kLineAttributes, plan_sort<true>);
constinit const Operation kTopK = {.name = "top_k",
                                   .arity = {1, 1},
                                   .attributes = kTopKAttributes,
                                   .plan = plan_top_k,
                                   .gradient = Gradient::of_parts(),
                                   .parts = top_k_parts,
                                   .made_of = "the k largest of each shard and their indices",
                                   .sample = "f32 [8, 6]"};
// Recorded for the values: operands are x and the indices.
constinit const Operation kValuesOfTopK = {.name = "values of top_k",
                                           .arity = {2, 2},
                                           .attributes = kTopKAttributes,
                                           .gradient = top_gradient};

constinit const Operation kExtremesOfShards =
    part("extremes of shards", kExtremeAttributes, plan_extremes);
constinit const Operation kIndicesOfExtremes =
    part("indices of extremes of shards", kExtremeAttributes, plan_indices_of_extremes);
constinit const Operation kTopsOfShards = part("top_k of shards", kTopAttributes, plan_tops);
constinit const Operation kSumsOfShards = part("sums of shards", kShardAttributes, plan_sums);

DTensor argmax(const DTensor& x, int64_t dim, const Out& out) {
  return only(apply(kArgmax, {x}, {dim}, out));
}

DTensor argmin(const DTensor& x, int64_t dim, const Out& out) {
  return only(apply(kArgmin, {x}, {dim}, out));
}

DTensor cumsum(const DTensor& x, int64_t dim, const Out& out) {
  return only(apply(kCumsum, {x}, {dim}, out));
}

DTensor sort(const DTensor& x, int64_t dim, const Out& out) {
  return only(apply(kSort, {x}, {dim}, out));
}

TopK top_k(const DTensor& x, int64_t k, int64_t dim, const Out& out) {
  const Results results = apply(kTopK, {x}, {k, dim, Attribute()}, out);
  // A refused call has one result.
  return {results.front(), results.back()};
}

}  // namespace tessera::ops
