// SPDX-License-Identifier: Apache-2.0
//
// Operations of shapes.h whose result is made of pieces: joined, padded, repeated, turned.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/math.h"
#include "base/status.h"
#include "dtensor/device_op.h"
#include "ops/broadcast.h"
#include "ops/catalog_entries.h"
#include "ops/gradient.h"
#include "ops/moving.h"
#include "ops/op.h"
#include "ops/operand_type.h"
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

StatusOr<OpPlan> plan_pad(const OperandType& x, const std::vector<int64_t>& low,
                          const std::vector<int64_t>& high, const Scalar& value) {
  for (const std::vector<int64_t>* list : {&low, &high}) {
    if (static_cast<int64_t>(list->size()) != rank_of(x)) {
      return refusal("pad", list_text(*list), " has ", list->size(),
                     " entries for a tensor of rank ", rank_of(x));
    }
    if (std::any_of(list->begin(), list->end(), [](int64_t n) { return n < 0; })) {
      return refusal("pad", list_text(*list), " has a negative entry; slice() makes dims shorter");
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const ElementBytes element, element_of("pad", value, x.dtype()));
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

StatusOr<OpPlan> plan_roll(const OperandType& x, int64_t shift, int64_t dim) {
  TESSERA_ASSIGN_OR_RETURN(const int along, checked_dim("roll", dim, rank_of(x)));
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

StatusOr<OpPlan> plan_tile(const OperandType& x, const std::vector<int64_t>& repeats) {
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

StatusOr<OpPlan> plan_concat(absl::Span<const OperandType> xs, int64_t dim) {
  TESSERA_RETURN_IF_ERROR(check_same_dtype("concat", xs));
  TESSERA_ASSIGN_OR_RETURN(const int along, checked_dim("concat", dim, rank_of(xs[0])));
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

}  // namespace

DTensor concat(absl::Span<const DTensor> xs, int64_t dim, const Out& out) {
  if (xs.empty()) {
    return internal::failed_tensor(DType::kFloat32, {}, absl::InvalidArgumentError("no operands"),
                                   refusal("concat", "of no tensors; give one at least"));
  }
  const int64_t attributes[] = {dim};
  DTensor result =
      run({"concat", xs, attributes, out}, [&] { return plan_concat(types_of(xs), dim); });
  return differentiable(std::move(result), xs, [dim](const GradientCall& call) -> Gradients {
    Gradients gradients;
    const int64_t along = dim < 0 ? dim + rank_of(call.result) : dim;
    std::vector<int64_t> starts(rank_of(call.result), 0);
    std::vector<int64_t> limits = call.result.shape();
    for (const DTensor& part : call.operands) {
      limits[along] = starts[along] + part.shape()[along];
      gradients.emplace_back(slice(call.cotangent, starts, limits));
      starts[along] = limits[along];
    }
    return gradients;
  });
}

DTensor stack(absl::Span<const DTensor> xs, int64_t dim, const Out& out) {
  if (xs.empty()) {
    return internal::failed_tensor(DType::kFloat32, {}, absl::InvalidArgumentError("no operands"),
                                   refusal("stack", "of no tensors; give one at least"));
  }
  std::vector<DTensor> expanded;
  for (const DTensor& x : xs) {
    if (x.shape() != xs[0].shape()) {
      const OpCall call = {"stack", xs, {}, out};
      return refuse(call, refusal("stack", "shapes ", shape_to_string(xs[0].shape()), " and ",
                                  shape_to_string(x.shape()), " differ"));
    }
    expanded.push_back(expand_dims(x, dim));
  }
  return concat(expanded, dim, out);
}

std::vector<DTensor> split(const DTensor& x, const std::vector<int64_t>& sizes, int64_t dim,
                           const Out& out) {
  std::vector<DTensor> parts;
  const OpCall call = {"split", {&x, 1}, sizes, out};
  const StatusOr<int> along = checked_dim("split", dim, rank_of(x));
  Status status = internal::facts_of(x).error;
  status.Update(along.status());
  if (status.ok()) {
    // A negative size does not fit, whatever the others are.
    int64_t total = 0;
    bool has_negative = false;
    for (const int64_t size : sizes) {
      total = saturating_add(total, size);
      has_negative = has_negative || size < 0;
    }
    if (total != x.shape()[*along] || has_negative) {
      status = refusal("split", "sizes ", list_text(sizes), " add up to ", total, ", and dim ",
                       *along, " has ", x.shape()[*along], " elements",
                       has_negative ? "; no size may be negative" : "");
    }
  }
  std::vector<int64_t> starts(rank_of(x), 0);
  std::vector<int64_t> limits = x.shape();
  for (const int64_t size : sizes) {
    if (!status.ok()) {
      parts.push_back(refuse(call, status));
      continue;
    }
    limits[*along] = starts[*along] + size;
    parts.push_back(slice(x, starts, limits, {}, out));
    starts[*along] += size;
  }
  return parts;
}

DTensor pad(const DTensor& x, const std::vector<int64_t>& low, const std::vector<int64_t>& high,
            const Scalar& value, const Out& out) {
  DTensor result = run({"pad", {&x, 1}, attributes_of({low, high, scalar_attributes(value)}), out},
                       [&] { return plan_pad(x, low, high, value); });
  return differentiable(std::move(result), {&x, 1}, [low](const GradientCall& call) -> Gradients {
    std::vector<int64_t> limits = low;
    for (size_t dim = 0; dim < low.size(); ++dim) limits[dim] += call.operands[0].shape()[dim];
    return {slice(call.cotangent, low, limits)};
  });
}

DTensor roll(const DTensor& x, int64_t shift, int64_t dim, const Out& out) {
  const int64_t attributes[] = {shift, dim};
  DTensor result =
      run({"roll", {&x, 1}, attributes, out}, [&] { return plan_roll(x, shift, dim); });
  return differentiable(
      std::move(result), {&x, 1}, [shift, dim](const GradientCall& call) -> Gradients {
        // -shift, which is no int64 of the least one.
        const int64_t size = call.result.shape()[dim < 0 ? dim + rank_of(call.result) : dim];
        return {roll(call.cotangent, size == 0 ? 0 : -(shift % size), dim)};
      });
}

DTensor tile(const DTensor& x, const std::vector<int64_t>& repeats, const Out& out) {
  DTensor result = run({"tile", {&x, 1}, repeats, out}, [&] { return plan_tile(x, repeats); });
  return differentiable(std::move(result), {&x, 1},
                        [repeats](const GradientCall& call) -> Gradients {
                          // Each dim as [repeats, size], of which the repeats are summed.
                          Shape apart;
                          std::vector<int64_t> summed;
                          for (size_t dim = 0; dim < repeats.size(); ++dim) {
                            summed.push_back(static_cast<int64_t>(apart.size()));
                            apart.push_back(repeats[dim]);
                            apart.push_back(call.operands[0].shape()[dim]);
                          }
                          return {sum(reshape(call.cotangent, apart), summed)};
                        });
}

namespace {

StatusOr<OpPlan> plan_pad_entry(Operands x, const Attributes& attributes) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> low, attributes.integers("low"));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> high, attributes.integers("high"));
  Scalar value = 0;
  if (attributes.has("value")) {
    TESSERA_ASSIGN_OR_RETURN(value, attributes.scalar("value"));
  }
  return plan_pad(x[0], low, high, value);
}

StatusOr<OpPlan> plan_roll_entry(Operands x, const Attributes& attributes) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t shift, attributes.integer("shift"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t dim, attributes.integer("dim"));
  return plan_roll(x[0], shift, dim);
}

StatusOr<OpPlan> plan_tile_entry(Operands x, const Attributes& attributes) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> repeats, attributes.integers("repeats"));
  return plan_tile(x[0], repeats);
}

StatusOr<OpPlan> plan_concat_entry(Operands x, const Attributes& attributes) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t dim, attributes.integer("dim"));
  return plan_concat(x, dim);
}

}  // namespace

std::vector<CatalogEntry> joining_entries() {
  const SampleOperand matrix = {DType::kFloat32, {8, 6}};
  constexpr int kMany = std::numeric_limits<int>::max();
  return {
      {"concat", 1, kMany, {"dim=1"}, {}, {matrix, matrix}, plan_concat_entry},
      composition("stack", "expand_dims and concat"),
      {"pad", 1, 1, {"low=[0, 1]", "high=[0, 1]"}, {"value=0"}, {matrix}, plan_pad_entry},
      {"roll", 1, 1, {"shift=1", "dim=1"}, {}, {matrix}, plan_roll_entry},
      {"tile", 1, 1, {"repeats=[1, 2]"}, {}, {matrix}, plan_tile_entry},
  };
}

}  // namespace tessera::ops
