// SPDX-License-Identifier: Apache-2.0
//
// Operations of shapes.h whose result is made of pieces: joined, padded, repeated, turned.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/math.h"
#include "base/status.h"
#include "dtensor/device_op.h"
#include "ops/all_operations.h"
#include "ops/apply.h"
#include "ops/broadcast.h"
#include "ops/moving.h"
#include "ops/operand_type.h"
#include "ops/operation.h"
#include "ops/reductions.h"
#include "ops/scalar.h"
#include "ops/shapes.h"

namespace tessera::ops {
namespace {

// Pieces of operands that are placed into the result, each where it overlaps the device's box.
// pieces(call, place) calls place(operand, where its box begins in the result).
template <class Pieces>
LocalKernel placing(DType dtype, std::array<std::byte, 8> rest, Pieces pieces) {
  return [dtype, rest, pieces = std::move(pieces)](const LocalCall& call) -> Status {
    Status status = call.engine.fill(dtype, rest.data(), call.out, call.out_box.num_elements());
    pieces(call, [&](size_t operand, const std::vector<int64_t>& begin) {
      if (!status.ok()) return;
      status = call.engine.place_box(dtype_size(dtype), call.in[operand], call.in_boxes[operand],
                                     begin, call.out_box, call.out);
    });
    return status;
  };
}

// The places in the result where the device's part of a dim begins. The result repeats the dim, of
// `size` elements, from `by` on; only copies that meet the device's part of the result count.
std::vector<int64_t> repeated_begins(const LocalCall& call, int dim, int64_t by, int64_t size) {
  std::vector<int64_t> begins;
  const int64_t sizes[] = {call.in_boxes[0].sizes[dim], call.out_box.sizes[dim]};
  if (sizes[0] == 0 || sizes[1] == 0) return begins;
  const int64_t first = call.out_box.offsets[dim];
  int64_t begin = call.in_boxes[0].offsets[dim] + by;
  // The first that ends behind the beginning of the result's part.
  begin += (first - begin) / size * size;
  while (begin > first) begin -= size;
  while (begin + sizes[0] <= first) begin += size;
  for (; begin < first + sizes[1]; begin += size) begins.push_back(begin);
  return begins;
}

constexpr AttributeSpec kPadAttributes[] = {{"low", AttributeKind::kInts, "[0, 1]"},
                                            {"high", AttributeKind::kInts, "[0, 1]"},
                                            {"value", AttributeKind::kScalar, "0", "0"}};

StatusOr<OpPlan> plan_pad(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  const std::vector<int64_t>& low = attributes.integers("low");
  const std::vector<int64_t>& high = attributes.integers("high");
  for (const std::vector<int64_t>* list : {&low, &high}) {
    if (static_cast<int64_t>(list->size()) != rank_of(x)) {
      return refusal("pad", list_text(*list), " has ", list->size(),
                     " entries for a tensor of rank ", rank_of(x));
    }
    if (std::any_of(list->begin(), list->end(), [](int64_t n) { return n < 0; })) {
      return refusal("pad", list_text(*list), " has a negative entry; slice() makes dims shorter");
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const ElementBytes element,
                           element_of("pad", attributes.scalar("value"), x.dtype()));
  OpPlan plan = plan_same(x);
  for (int dim = 0; dim < rank_of(x); ++dim) {
    const __int128 sum = static_cast<__int128>(low[dim]) + x.shape()[dim] + high[dim];
    TESSERA_ASSIGN_OR_RETURN(
        const int64_t size,
        checked_size("pad", dim, sum,
                     absl::StrCat("low ", list_text(low), ", high ", list_text(high))));
    set_moved(plan, dim, size, {1, -low[dim], -low[dim]});
  }
  const bool is_zero =
      std::all_of(element.begin(), element.end(), [](std::byte b) { return b == std::byte{0}; });
  plan.rule.reductions = is_zero ? kSums : 0;
  plan.kernel = placing(x.dtype(), element, [low](const LocalCall& call, auto place) {
    std::vector<int64_t> begin = call.in_boxes[0].offsets;
    for (size_t dim = 0; dim < begin.size(); ++dim) begin[dim] += low[dim];
    place(0, begin);
  });
  return plan;
}

Gradients pad_gradient(const GradientCall& call) {
  const std::vector<int64_t>& low = call.attributes.integers("low");
  std::vector<int64_t> limits = low;
  for (size_t dim = 0; dim < low.size(); ++dim) limits[dim] += call.operands[0].shape()[dim];
  return {slice(call.cotangent, low, limits)};
}

constexpr AttributeSpec kRollAttributes[] = {{"shift", AttributeKind::kInt, "1"},
                                             {"dim", AttributeKind::kInt, "1"}};

StatusOr<OpPlan> plan_roll(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  const int64_t shift = attributes.integer("shift");
  TESSERA_ASSIGN_OR_RETURN(const int along,
                           checked_dim("roll", attributes.integer("dim"), rank_of(x)));
  OpPlan plan = plan_same(x);
  const int64_t size = x.shape()[along];
  const int64_t by = size == 0 ? 0 : (shift % size + size) % size;
  set_moved(plan, along, size, {1, -by, -by, 1, true});
  plan.kernel = placing(x.dtype(), {}, [along, by, size](const LocalCall& call, auto place) {
    std::vector<int64_t> begin = call.in_boxes[0].offsets;
    for (const int64_t each : repeated_begins(call, along, by, size)) {
      begin[along] = each;
      place(0, begin);
    }
  });
  return plan;
}

Gradients roll_gradient(const GradientCall& call) {
  const int64_t shift = call.attributes.integer("shift");
  const int64_t dim = call.attributes.integer("dim");
  // -shift, which is no int64 of the least one.
  const int64_t size = call.result.shape()[dim < 0 ? dim + rank_of(call.result) : dim];
  return {roll(call.cotangent, size == 0 ? 0 : -(shift % size), dim)};
}

constexpr AttributeSpec kTileAttributes[] = {{"repeats", AttributeKind::kInts, "[1, 2]"}};

StatusOr<OpPlan> plan_tile(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  const std::vector<int64_t>& repeats = attributes.integers("repeats");
  if (static_cast<int64_t>(repeats.size()) != rank_of(x)) {
    return refusal("tile", list_text(repeats), " has ", repeats.size(),
                   " entries for a tensor of rank ", rank_of(x));
  }
  OpPlan plan = plan_same(x);
  for (int dim = 0; dim < rank_of(x); ++dim) {
    if (repeats[dim] < 0) return refusal("tile", list_text(repeats), " has a negative entry");
    TESSERA_ASSIGN_OR_RETURN(
        const int64_t size,
        checked_size("tile", dim, static_cast<__int128>(repeats[dim]) * x.shape()[dim],
                     absl::StrCat("repeats ", list_text(repeats))));
    set_moved(plan, dim, size, {1, 0, 0, 1, repeats[dim] != 1});
  }
  plan.kernel = placing(x.dtype(), {}, [shape = x.shape()](const LocalCall& call, auto place) {
    // Repeated in each dim, as often as it meets the device's part of the result.
    std::vector<std::vector<int64_t>> begins;
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      begins.push_back(repeated_begins(call, static_cast<int>(dim), 0, shape[dim]));
      if (begins.back().empty()) return;
    }
    std::vector<size_t> number(shape.size(), 0);
    for (;;) {
      std::vector<int64_t> begin;
      for (size_t dim = 0; dim < number.size(); ++dim) begin.push_back(begins[dim][number[dim]]);
      place(0, begin);
      size_t dim = number.size();
      while (dim > 0 && ++number[dim - 1] == begins[dim - 1].size()) number[--dim] = 0;
      if (dim == 0) return;
    }
  });
  return plan;
}

// Each dim as [repeats, size], of which the repeats are summed.
Gradients tile_gradient(const GradientCall& call) {
  const std::vector<int64_t>& repeats = call.attributes.integers("repeats");
  Shape apart;
  std::vector<int64_t> summed;
  for (size_t dim = 0; dim < repeats.size(); ++dim) {
    summed.push_back(static_cast<int64_t>(apart.size()));
    apart.push_back(repeats[dim]);
    apart.push_back(call.operands[0].shape()[dim]);
  }
  return {sum(reshape(call.cotangent, apart), summed)};
}

constexpr AttributeSpec kJoinedDim[] = {{"dim", AttributeKind::kInt, "1"}};

StatusOr<OpPlan> plan_concat(Operands xs, const Attributes& attributes) {
  TESSERA_RETURN_IF_ERROR(check_same_dtype("concat", xs));
  TESSERA_ASSIGN_OR_RETURN(const int along,
                           checked_dim("concat", attributes.integer("dim"), rank_of(xs[0])));
  OpPlan plan = plan_same(xs[0]);
  plan.rule.operands.clear();
  std::vector<int64_t> begins;
  int64_t size = 0;
  for (const OperandType& x : xs) {
    Shape shape = x.shape();
    if (shape.size() == plan.shape.size()) shape[along] = xs[0].shape()[along];
    if (shape != xs[0].shape()) {
      return refusal("concat", "shapes ", shape_to_string(xs[0].shape()), " and ",
                     shape_to_string(x.shape()), " differ in more than dim ", along);
    }
    plan.rule.operands.push_back(plan.rule.result);
    begins.push_back(size);
    TESSERA_ASSIGN_OR_RETURN(
        size, checked_size("concat", along, static_cast<__int128>(size) + x.shape()[along],
                           absl::StrCat("one of ", x.shape()[along], " joins ", size)));
  }
  plan.shape[along] = size;
  plan.rule.factors[plan.rule.result[along][0]].size = size;
  for (size_t k = 0; k < begins.size(); ++k) {
    plan.rule.moved.push_back({static_cast<int>(k), along, {1, -begins[k], -begins[k]}});
  }
  plan.kernel = placing(xs[0].dtype(), {}, [along, begins](const LocalCall& call, auto place) {
    for (size_t k = 0; k < begins.size(); ++k) {
      std::vector<int64_t> begin = call.in_boxes[k].offsets;
      begin[along] += begins[k];
      place(k, begin);
    }
  });
  return plan;
}

Gradients concat_gradient(const GradientCall& call) {
  const int64_t dim = call.attributes.integer("dim");
  const int64_t along = dim < 0 ? dim + rank_of(call.result) : dim;
  std::vector<int64_t> starts(rank_of(call.result), 0);
  std::vector<int64_t> limits = call.result.shape();
  Gradients gradients(call.operands.size());
  for (size_t k = 0; k < gradients.size(); ++k) {
    limits[along] = starts[along] + call.operands[k].shape()[along];
    if (call.needed[k]) gradients[k] = slice(call.cotangent, starts, limits);
    starts[along] = limits[along];
  }
  return gradients;
}

Results stack_parts(const OpCall& call) {
  const DTensor& first = call.operands[0];
  const int64_t dim = call.attributes.integer("dim");
  std::vector<DTensor> expanded;
  for (const DTensor& x : call.operands) {
    if (x.shape() != first.shape()) {
      return refuse(call, refusal("stack", "shapes ", shape_to_string(first.shape()), " and ",
                                  shape_to_string(x.shape()), " differ"));
    }
    expanded.push_back(expand_dims(x, dim));
  }
  return {concat(expanded, dim, call.out)};
}

constexpr AttributeSpec kSplitAttributes[] = {{"sizes", AttributeKind::kInts, "[2, 4]"},
                                              {"dim", AttributeKind::kInt, "1"}};

// InvalidArgument where the parts do not add up to the dim.
StatusOr<int> check_split(const DTensor& x, absl::Span<const int64_t> sizes, int64_t dim) {
  TESSERA_ASSIGN_OR_RETURN(const int along, checked_dim("split", dim, rank_of(x)));
  if (sizes.empty()) return refusal("split", "of no sizes; give one at least");
  // A negative size does not fit, whatever the others are.
  int64_t total = 0;
  bool has_negative = false;
  for (const int64_t size : sizes) {
    total = saturating_add(total, size);
    has_negative = has_negative || size < 0;
  }
  if (total == x.shape()[along] && !has_negative) return along;
  return refusal("split", "sizes ", list_text(sizes), " add up to ", total, ", and dim ", along,
                 " has ", x.shape()[along], " elements",
                 has_negative ? "; no size may be negative" : "");
}

Results split_parts(const OpCall& call) {
  const DTensor& x = call.operands[0];
  const std::vector<int64_t>& sizes = call.attributes.integers("sizes");
  const StatusOr<int> along = check_split(x, sizes, call.attributes.integer("dim"));
  if (!along.ok()) return refuse(call, along.status());
  Results parts;
  std::vector<int64_t> starts(rank_of(x), 0);
  std::vector<int64_t> limits = x.shape();
  for (const int64_t size : sizes) {
    limits[*along] = starts[*along] + size;
    parts.push_back(slice(x, starts, limits, {}, call.out));
    starts[*along] += size;
  }
  return parts;
}

// A call without operands has no client to run it.
DTensor refuse_no_tensors(const char* name) {
  return internal::failed_tensor(DType::kFloat32, {}, absl::InvalidArgumentError("no operands"),
                                 refusal(name, "of no tensors; give one at least"));
}

}  // namespace

constinit const Operation kConcat = {.name = "concat",
                                     .arity = {1, Arity::kMany},
                                     .attributes = kJoinedDim,
                                     .plan = plan_concat,
                                     .gradient = concat_gradient,
                                     .sample = "f32 [8, 6]; f32 [8, 6]"};
constinit const Operation kStack = {.name = "stack",
                                    .arity = {1, Arity::kMany},
                                    .attributes = kJoinedDim,
                                    .gradient = Gradient::of_parts(),
                                    .parts = stack_parts,
                                    .made_of = "expand_dims and concat",
                                    .sample = "f32 [8, 6]; f32 [8, 6]"};
constinit const Operation kSplit = {.name = "split",
                                    .arity = {1, 1},
                                    .attributes = kSplitAttributes,
                                    .gradient = Gradient::of_parts(),
                                    .parts = split_parts,
                                    .made_of = "slice for each part",
                                    .sample = "f32 [8, 6]"};
constinit const Operation kPad = {.name = "pad",
                                  .arity = {1, 1},
                                  .attributes = kPadAttributes,
                                  .plan = plan_pad,
                                  .gradient = pad_gradient,
                                  .sample = "f32 [8, 6]"};
constinit const Operation kRoll = {.name = "roll",
                                   .arity = {1, 1},
                                   .attributes = kRollAttributes,
                                   .plan = plan_roll,
                                   .gradient = roll_gradient,
                                   .sample = "f32 [8, 6]"};
constinit const Operation kTile = {.name = "tile",
                                   .arity = {1, 1},
                                   .attributes = kTileAttributes,
                                   .plan = plan_tile,
                                   .gradient = tile_gradient,
                                   .sample = "f32 [8, 6]"};

DTensor concat(absl::Span<const DTensor> xs, int64_t dim, const Out& out) {
  return xs.empty() ? refuse_no_tensors("concat") : only(apply(kConcat, xs, {dim}, out));
}

DTensor stack(absl::Span<const DTensor> xs, int64_t dim, const Out& out) {
  return xs.empty() ? refuse_no_tensors("stack") : only(apply(kStack, xs, {dim}, out));
}

std::vector<DTensor> split(const DTensor& x, const std::vector<int64_t>& sizes, int64_t dim,
                           const Out& out) {
  if (sizes.empty()) return {};
  const Results parts = apply(kSplit, {x}, {sizes, dim}, out);
  std::vector<DTensor> result(parts.begin(), parts.end());
  // A refused call has one result.
  result.resize(sizes.size(), parts[0]);
  return result;
}

DTensor pad(const DTensor& x, const std::vector<int64_t>& low, const std::vector<int64_t>& high,
            const Scalar& value, const Out& out) {
  return only(apply(kPad, {x}, {low, high, value}, out));
}

DTensor roll(const DTensor& x, int64_t shift, int64_t dim, const Out& out) {
  return only(apply(kRoll, {x}, {shift, dim}, out));
}

DTensor tile(const DTensor& x, const std::vector<int64_t>& repeats, const Out& out) {
  return only(apply(kTile, {x}, {repeats}, out));
}

}  // namespace tessera::ops
