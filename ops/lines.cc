// SPDX-License-Identifier: Apache-2.0
//
// Operations of reductions.h along the lines of one dim: argmax, argmin, cumsum, sort, top_k.
//
// Where the dim is split, argmax, argmin, top_k and cumsum first make a few numbers of each shard,
// which alone are gathered (of cumsum in f16 and bf16, whose sums are rounded once, and of top_k of
// more elements than a shard has, the dim is gathered itself). sort gathers the dim.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/cpu/reduce.h"
#include "dtensor/device_op.h"
#include "dtensor/relayout.h"
#include "layout/layout.h"
#include "ops/broadcast.h"
#include "ops/catalog_entries.h"
#include "ops/composite.h"
#include "ops/gradient.h"
#include "ops/moving.h"
#include "ops/op.h"
#include "ops/operand_type.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/tape.h"
#include "relayout/sub_axes.h"

namespace tessera::ops {
namespace {

Status check_numbers(const char* name, DType dtype) {
  if (dtype != DType::kBool) return absl::OkStatus();
  return refusal(name, "takes numbers, not bool; use any or all, or cast() first");
}

// One line of each result is an index, or an element, of a line along the dim.
StatusOr<OpPlan> plan_search(const char* name, const OperandType& x, int64_t dim, bool is_max) {
  TESSERA_RETURN_IF_ERROR(check_numbers(name, x.dtype()));
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

// The first k of each line in order: their values, or their indices.
StatusOr<OpPlan> plan_sort(const char* name, const OperandType& x, int64_t dim,
                           std::optional<int64_t> k, bool gives_indices) {
  TESSERA_RETURN_IF_ERROR(check_numbers(name, x.dtype()));
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
  TESSERA_RETURN_IF_ERROR(check_numbers("cumsum", x.dtype()));
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

// ---- Split dims

// The number of shards of the dim where it is split, and the operation takes x; else nothing.
std::optional<int64_t> split_of(const DTensor& x, int64_t dim, const StatusOr<OpPlan>& plan) {
  if (!plan.ok()) return std::nullopt;
  const auto along = static_cast<int>(dim < 0 ? dim + static_cast<int64_t>(x.shape().size()) : dim);
  // Without elements there is nothing to save.
  if (x.shape()[along] == 0) return std::nullopt;
  const int64_t num_shards = x.layout().num_shards(along);
  return num_shards > 1 ? std::make_optional(num_shards) : std::nullopt;
}

// `count` elements of the result for each shard of the dim, which the device makes of its shard
// alone: shard i of N needs elements floor((i n + N - 1) / N) to floor((i n + n - 1) / N) of n.
OpPlan plan_by_shard(const OperandType& x, int along, int64_t num_shards, int64_t count) {
  OpPlan plan = plan_same(x);
  const int64_t size = x.shape()[along];
  set_moved(plan, along, num_shards * count,
            {size, count * (num_shards - 1), size - count, count * num_shards});
  plan.rule.linearity = Linearity::kNone;
  return plan;
}

// The reduction of each shard; of no elements as reduce_dims().
OpPlan plan_reduced_shards(const OperandType& x, int along, int64_t num_shards, ReduceOp op) {
  OpPlan plan = plan_by_shard(x, along, num_shards, 1);
  plan.kernel = [op, dtype = x.dtype(), along](const LocalCall& call) -> Status {
    std::vector<bool> is_reduced(call.out_box.sizes.size(), false);
    is_reduced[along] = true;
    return call.engine.reduce_dims(op, dtype, call.in[0], call.in_boxes[0].sizes, is_reduced, 1,
                                   call.out);
  };
  return plan;
}

// The index of the largest or smallest element of each shard; of no elements the largest i64.
OpPlan plan_extremes_of_shards(const OperandType& x, int along, int64_t num_shards, bool is_max) {
  OpPlan plan = plan_by_shard(x, along, num_shards, 1);
  plan.dtype = DType::kInt64;
  plan.kernel = [is_max, dtype = x.dtype(), along](const LocalCall& call) -> Status {
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

// The largest `count` elements of each shard, or their indices.
OpPlan plan_tops_of_shards(const OperandType& x, int along, int64_t num_shards, int64_t count,
                           bool gives_indices) {
  OpPlan plan = plan_by_shard(x, along, num_shards, count);
  if (gives_indices) plan.dtype = DType::kInt64;
  plan.kernel = [dtype = x.dtype(), along, count, gives_indices](const LocalCall& call) -> Status {
    const Box& in = call.in_boxes[0];
    auto* const indices = reinterpret_cast<int64_t*>(call.out);
    return call.engine.sort_lines(true, dtype, call.in[0], kernels::lines_along(in.sizes, along),
                                  {in.offsets[along]}, count, gives_indices ? nullptr : call.out,
                                  gives_indices ? indices : nullptr);
  };
  return plan;
}

// The rule of a plan for one operand, with a second one of the same dims.
void add_like_operand(OpPlan& plan) { plan.rule.operands.push_back(plan.rule.operands[0]); }

DTensor search(const char* name, const DTensor& x, int64_t dim, bool is_max, const Out& out) {
  const int64_t attributes[] = {dim};
  const auto plan = [&] { return plan_search(name, x, dim, is_max); };
  const bool has_error = !internal::facts_of(x).error.ok();
  const std::optional<int64_t> num_shards = has_error ? std::nullopt : split_of(x, dim, plan());
  if (!num_shards.has_value()) return run({name, {&x, 1}, attributes, out}, plan);
  const DTensor whole = without_partial(stop_gradient(x));
  const int along = *checked_dim(name, dim, static_cast<int64_t>(x.shape().size()));
  const int64_t of_shards[] = {along, *num_shards, is_max};
  const DTensor found[] = {
      run({"extremes of shards", {&whole, 1}, of_shards, {}},
          [&]() -> StatusOr<OpPlan> {
            return plan_reduced_shards(whole, along, *num_shards,
                                       is_max ? ReduceOp::kMax : ReduceOp::kMin);
          }),
      run({"indices of extremes of shards", {&whole, 1}, of_shards, {}}, [&]() -> StatusOr<OpPlan> {
        return plan_extremes_of_shards(whole, along, *num_shards, is_max);
      })};
  return run({name, found, attributes, out}, [&]() -> StatusOr<OpPlan> {
    TESSERA_ASSIGN_OR_RETURN(OpPlan merge, plan_search(name, found[0], dim, is_max));
    add_like_operand(merge);
    merge.kernel = [is_max, dtype = x.dtype(), along](const LocalCall& call) -> Status {
      return call.engine.arg_extreme(
          is_max, dtype, call.in[0], kernels::lines_along(call.in_boxes[0].sizes, along),
          {0, reinterpret_cast<const int64_t*>(call.in[1])}, reinterpret_cast<int64_t*>(call.out));
    };
    return merge;
  });
}

// The candidates of top_k(): x, or the k largest elements of each shard and their indices.
std::vector<DTensor> candidates(const DTensor& x, int64_t k, int64_t dim) {
  if (!internal::facts_of(x).error.ok()) return {x};
  const std::optional<int64_t> num_shards = split_of(x, dim, plan_sort("top_k", x, dim, k, false));
  const int along = num_shards.has_value()
                        ? *checked_dim("top_k", dim, static_cast<int64_t>(x.shape().size()))
                        : 0;
  if (!num_shards.has_value() || k == 0 || x.shape()[along] / *num_shards < k) return {x};
  const DTensor whole = without_partial(stop_gradient(x));
  const auto of_shards = [&](bool gives_indices) {
    const int64_t attributes[] = {along, *num_shards, k, gives_indices};
    return run({"top_k of shards", {&whole, 1}, attributes, {}}, [&]() -> StatusOr<OpPlan> {
      return plan_tops_of_shards(whole, along, *num_shards, k, gives_indices);
    });
  };
  return {of_shards(false), of_shards(true)};
}

DTensor top_of(const std::vector<DTensor>& from, int64_t k, int64_t dim, bool gives_indices,
               const Out& out) {
  const int64_t attributes[] = {dim, k, gives_indices};
  return run({"top_k", from, attributes, out}, [&]() -> StatusOr<OpPlan> {
    TESSERA_ASSIGN_OR_RETURN(OpPlan plan, plan_sort("top_k", from[0], dim, k, gives_indices));
    if (from.size() == 1) return plan;
    add_like_operand(plan);
    const int along = *checked_dim("top_k", dim, static_cast<int64_t>(from[0].shape().size()));
    plan.kernel = [gives_indices, dtype = from[0].dtype(), along,
                   k](const LocalCall& call) -> Status {
      return call.engine.sort_lines(
          true, dtype, call.in[0], kernels::lines_along(call.in_boxes[0].sizes, along),
          {0, reinterpret_cast<const int64_t*>(call.in[1])}, k, gives_indices ? nullptr : call.out,
          gives_indices ? reinterpret_cast<int64_t*>(call.out) : nullptr);
    };
    return plan;
  });
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
DTensor sums_before_shards(const DTensor& x, int along, int64_t num_shards) {
  const int64_t attributes[] = {along, num_shards};
  const DTensor sums = run({"sums of shards", {&x, 1}, attributes, {}}, [&]() -> StatusOr<OpPlan> {
    OpPlan plan = plan_reduced_shards(x, along, num_shards, ReduceOp::kSum);
    plan.rule.linearity = Linearity::kJoint;
    plan.rule.reductions = kSums;
    return plan;
  });
  const DTensor whole = relayout(sums, with_whole_dim(sums.layout(), along));
  std::vector<int64_t> one(x.shape().size(), 0);
  one[along] = 1;
  const std::vector<int64_t> none(x.shape().size(), 0);
  return slice(pad(cumsum(whole, along), one, none), none, whole.shape());
}

// Cumulative sums along a split dim: the sums of earlier shards are added to the sums of the
// device's shard.
StatusOr<OpPlan> plan_cumsum_of_shards(const OperandType& x, int along, int64_t num_shards) {
  OpPlan plan = plan_same(x);
  plan.rule.reductions = kSums;
  add_like_operand(plan);
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

DTensor cumsum_of(const DTensor& x, int64_t dim, const Out& out) {
  const int64_t attributes[] = {dim};
  const auto plan = [&] { return plan_cumsum(x, dim); };
  std::optional<int64_t> num_shards;
  if (internal::facts_of(x).error.ok() && dtype_size(x.dtype()) != 2) {
    num_shards = split_of(x, dim, plan());
  }
  if (!num_shards.has_value()) return run({"cumsum", {&x, 1}, attributes, out}, plan);
  const DTensor source = stop_gradient(x);
  const int along = *checked_dim("cumsum", dim, static_cast<int64_t>(x.shape().size()));
  const DTensor operands[] = {source, sums_before_shards(source, along, *num_shards)};
  // Under `out` it might be split otherwise.
  DTensor sums = run({"cumsum", operands, attributes, {}},
                     [&] { return plan_cumsum_of_shards(source, along, *num_shards); });
  return out.layout.has_value() ? relayout(std::move(sums), *out.layout) : sums;
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
  const DTensor sent = mul_or_zero(expand_dims(transpose(cotangent, to_last), -1), hits);
  return transpose(sum(sent, {-2}), back);
}

}  // namespace

DTensor argmax(const DTensor& x, int64_t dim, const Out& out) {
  return search("argmax", x, dim, true, out);
}
DTensor argmin(const DTensor& x, int64_t dim, const Out& out) {
  return search("argmin", x, dim, false, out);
}

DTensor cumsum(const DTensor& x, int64_t dim, const Out& out) {
  DTensor result = cumsum_of(x, dim, out);
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
  const std::vector<DTensor> from = candidates(x, k, dim);
  DTensor places = top_of(from, k, dim, true, out);
  DTensor top =
      differentiable(top_of(from, k, dim, false, out), {&x, 1},
                     [places, dim](const GradientCall& call) -> Gradients {
                       return {send_back(call.cotangent, places, dim, call.operands[0].shape())};
                     });
  return {std::move(top), std::move(places)};
}

namespace {

// The entry of an operation along the attribute dim.
template <class Plan>
CatalogEntry line_entry(const char* name, const char* made_of, Plan plan) {
  return {name,
          1,
          1,
          {"dim=1"},
          {},
          {SampleOperand{DType::kFloat32, {8, 6}}},
          [plan](Operands x, const Attributes& attributes) -> StatusOr<OpPlan> {
            TESSERA_ASSIGN_OR_RETURN(const int64_t dim, attributes.integer("dim"));
            return plan(x[0], dim);
          },
          made_of};
}

}  // namespace

std::vector<CatalogEntry> line_entries() {
  const char* const kOfExtremes = "the extremes of shards and their indices";
  return {
      line_entry(
          "argmax", kOfExtremes,
          [](const OperandType& x, int64_t dim) { return plan_search("argmax", x, dim, true); }),
      line_entry(
          "argmin", kOfExtremes,
          [](const OperandType& x, int64_t dim) { return plan_search("argmin", x, dim, false); }),
      line_entry("cumsum", "the sums of shards, and sums in each", plan_cumsum),
      line_entry("sort", "",
                 [](const OperandType& x, int64_t dim) {
                   return plan_sort("sort", x, dim, std::nullopt, false);
                 }),
      {"top_k",
       1,
       1,
       {"k=2", "dim=1"},
       {},
       {SampleOperand{DType::kFloat32, {8, 6}}},
       [](Operands x, const Attributes& attributes) -> StatusOr<OpPlan> {
         TESSERA_ASSIGN_OR_RETURN(const int64_t k, attributes.integer("k"));
         TESSERA_ASSIGN_OR_RETURN(const int64_t dim, attributes.integer("dim"));
         return plan_sort("top_k", x[0], dim, k, false);
       },
       "the k largest of each shard and their indices"},
  };
}

}  // namespace tessera::ops
