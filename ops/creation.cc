// SPDX-License-Identifier: Apache-2.0
//
// All but the tensors of one value are made of iota() and other operations, which every engine has:
// each device computes its own elements from their indices.
#include "ops/creation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/device_op.h"
#include "ops/all_operations.h"
#include "ops/apply.h"
#include "ops/moving.h"
#include "ops/operation.h"
#include "ops/pointwise.h"
#include "ops/refusal.h"
#include "ops/shapes.h"

namespace tessera {
namespace {

using ops::refusal;

// The indices along a dim of a tensor of this shape and layout: of rank 1, split as the dim is.
DTensor indices_along(int dim, DType dtype, const Shape& shape, const Layout& layout) {
  return internal::iota_raw(dtype, {shape[dim]},
                            Layout::create(layout.mesh(), {layout.dims()[dim]}));
}

// Makes a tensor of rank 1 of its indices, as `dtype` and under the layout, which may be partial.
template <class Fn>
DTensor of_indices(DType dtype, DType dtype_of_indices, int64_t count,
                   const StatusOr<Layout>& layout, Fn numbers) {
  const Shape shape = {count};
  // The errors of other ranks, of shapes and of layouts are those of iota().
  if (!layout.ok() || layout->rank() != 1) return internal::iota_raw(dtype, shape, layout);
  const DTensor indices = indices_along(0, dtype_of_indices, shape, *layout);
  return ops::cast(numbers(indices), dtype, layout);
}

std::string range_text(const ops::Scalar& start, const ops::Scalar& limit,
                       const ops::Scalar& step) {
  return absl::StrCat("from ", scalar_text(start), " to ", scalar_text(limit), " by ",
                      scalar_text(step));
}

StatusOr<int64_t> count_of_arange(DType dtype, int64_t start, int64_t limit, int64_t step) {
  const std::string text = range_text(start, limit, step);
  if (step == 0) return refusal("arange", text, ": step 0 reaches no limit");
  const __int128 reach = static_cast<__int128>(limit) - start;
  if (reach == 0 || (reach > 0) != (step > 0)) return 0;
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t count,
      ops::checked_size("arange", 0, (reach + step - (step > 0 ? 1 : -1)) / step, text));
  const auto last = static_cast<int64_t>(start + static_cast<__int128>(count - 1) * step);
  for (const int64_t each : {start, last}) {
    if (ops::element_of("arange", each, dtype).ok()) continue;
    return refusal("arange", text, ": ", each, " is not a value of ", dtype_name(dtype));
  }
  return count;
}

StatusOr<int64_t> count_of_arange(double start, double limit, double step) {
  const std::string text = range_text(start, limit, step);
  if (step == 0) return refusal("arange", text, ": step 0 reaches no limit");
  if (!std::isfinite(start) || !std::isfinite(limit) || !std::isfinite(step)) {
    return refusal("arange", text, ": the numbers should be finite");
  }
  const double count = std::max(0.0, std::ceil((limit - start) / step));
  const bool fits = count < std::ldexp(1, 63);
  return ops::checked_size("arange", 0, fits ? static_cast<__int128>(count) : __int128{1} << 63,
                           text);
}

}  // namespace

DTensor internal::arange_raw(DType dtype, int64_t start, int64_t limit, int64_t step,
                             const LayoutArg& layout) {
  const StatusOr<int64_t> count = count_of_arange(dtype, start, limit, step);
  if (!count.ok()) return failed_tensor(dtype, {0}, layout.layout(), count.status());
  return of_indices(dtype, DType::kInt64, *count, layout.layout(),
                    [&](const DTensor& i) { return i * step + start; });
}

DTensor internal::arange_raw(DType dtype, double start, double limit, double step,
                             const LayoutArg& layout) {
  const StatusOr<int64_t> count = count_of_arange(start, limit, step);
  if (!count.ok()) return failed_tensor(dtype, {0}, layout.layout(), count.status());
  return of_indices(dtype, DType::kFloat64, *count, layout.layout(),
                    [&](const DTensor& i) { return i * step + start; });
}

DTensor internal::linspace_raw(DType dtype, double start, double limit, int64_t count,
                               const LayoutArg& layout, Endpoint endpoint) {
  if (count < 0) {
    return failed_tensor(dtype, {0}, layout.layout(),
                         refusal("linspace", "of ", count, " numbers; it should be 0 or more"));
  }
  if (!std::isfinite(limit - start)) {
    return failed_tensor(dtype, {count}, layout.layout(),
                         refusal("linspace", "from ", start, " to ", limit,
                                 "; the numbers and their distance should be finite"));
  }
  const bool has_limit = endpoint == Endpoint::kIncluded && count > 1;
  const int64_t num_steps = has_limit ? count - 1 : std::max<int64_t>(count, 1);
  return of_indices(dtype, DType::kFloat64, count, layout.layout(), [&](const DTensor& i) {
    const DTensor numbers = i * (limit - start) / num_steps + start;
    if (!has_limit) return numbers;
    const DTensor last = full<double>({1}, limit, Layout::replicated(i.layout().mesh(), 1));
    return ops::select(i == num_steps, last, numbers);
  });
}

namespace {

// Compares column - row with `diagonal`: compare(column, row + diagonal), a tensor of bool of the
// last two dims of this shape and layout.
template <class Compare>
DTensor compare_places(const Shape& shape, const Layout& layout, int64_t diagonal,
                       Compare compare) {
  const auto rank = static_cast<int>(shape.size());
  const DTensor rows = indices_along(rank - 2, DType::kInt64, shape, layout);
  const DTensor columns = indices_along(rank - 1, DType::kInt64, shape, layout);
  // Diagonals farther away are outside of the matrix, too.
  const int64_t first = std::clamp(diagonal, -shape[rank - 2], shape[rank - 1]);
  return compare(columns, ops::expand_dims(rows + first, 1));
}

}  // namespace

DTensor internal::eye_raw(DType dtype, int64_t rows, int64_t columns, const LayoutArg& layout,
                          int64_t diagonal) {
  const Shape shape = {rows, columns};
  const Status valid = with_context(validate_shape(shape, dtype), "eye");
  if (!valid.ok()) return failed_tensor(dtype, shape, layout.layout(), valid);
  const StatusOr<Layout>& known = layout.layout();
  if (!known.ok() || known->rank() != 2) return iota_raw(dtype, shape, layout);
  const DTensor is_on =
      compare_places(shape, *known, diagonal,
                     [](const DTensor& column, const DTensor& row) { return column == row; });
  return ops::cast(is_on, dtype, layout);
}

namespace ops {
namespace {

// ---- Tensors of one value

Results like_operand(const OpCall& call, const Scalar& value) {
  const DTensor& x = call.operands[0];
  const StatusOr<ElementBytes> element = element_of(call.operation.name, value, x.dtype());
  if (!element.ok()) return refuse(call, element.status());
  const StatusOr<Layout> layout =
      call.out.layout.has_value() ? call.out.layout->layout() : x.layout().without_partial();
  return {internal::full_raw(x.dtype(), x.shape(), layout, element->data())};
}

Results zeros_like_parts(const OpCall& call) { return like_operand(call, 0); }
Results ones_like_parts(const OpCall& call) { return like_operand(call, 1); }
Results full_like_parts(const OpCall& call) {
  return like_operand(call, call.attributes.scalar("value"));
}

constexpr AttributeSpec kLikeValue[] = {{"value", AttributeKind::kScalar, "2"}};

// ---- Triangles

constexpr AttributeSpec kDiagonal[] = {{"diagonal", AttributeKind::kInt, "1", "0"}};

// The elements at the places for which keeps(column, row + diagonal) holds, and zeros elsewhere.
// The zeros are partial as x is, so that terms are selected one by one.
template <class Keeps>
Results triangle_of(const OpCall& call, Keeps keeps) {
  const DTensor& x = call.operands[0];
  if (x.shape().size() < 2) {
    return refuse(call, refusal(call.operation.name,
                                "takes matrices in the last two dims, not a "
                                "tensor of rank ",
                                x.shape().size()));
  }
  const DTensor is_kept =
      compare_places(x.shape(), x.layout(), call.attributes.integer("diagonal"), keeps);
  return {select(is_kept, x, zeros_like(x, x.layout()), call.out)};
}

Results tril_parts(const OpCall& call) {
  return triangle_of(
      call, [](const DTensor& column, const DTensor& row) { return less_equal(column, row); });
}
Results triu_parts(const OpCall& call) {
  return triangle_of(
      call, [](const DTensor& column, const DTensor& row) { return greater_equal(column, row); });
}

}  // namespace

constinit const Operation kZerosLike = {.name = "zeros_like",
                                        .arity = {1, 1},
                                        .gradient = Gradient::zero(),
                                        .parts = zeros_like_parts,
                                        .made_of = "full",
                                        .sample = "f32 [8, 6]"};
constinit const Operation kOnesLike = {.name = "ones_like",
                                       .arity = {1, 1},
                                       .gradient = Gradient::zero(),
                                       .parts = ones_like_parts,
                                       .made_of = "full",
                                       .sample = "f32 [8, 6]"};
constinit const Operation kFullLike = {.name = "full_like",
                                       .arity = {1, 1},
                                       .attributes = kLikeValue,
                                       .gradient = Gradient::zero(),
                                       .parts = full_like_parts,
                                       .made_of = "full",
                                       .sample = "f32 [8, 6]"};
constinit const Operation kTril = {.name = "tril",
                                   .arity = {1, 1},
                                   .attributes = kDiagonal,
                                   .gradient = Gradient::of_parts(),
                                   .parts = tril_parts,
                                   .made_of = "comparisons and select",
                                   .sample = "f32 [8, 6]"};
constinit const Operation kTriu = {.name = "triu",
                                   .arity = {1, 1},
                                   .attributes = kDiagonal,
                                   .gradient = Gradient::of_parts(),
                                   .parts = triu_parts,
                                   .made_of = "comparisons and select",
                                   .sample = "f32 [8, 6]"};

DTensor zeros_like(const DTensor& x, const Out& out) {
  return only(apply(kZerosLike, {x}, {}, out));
}

DTensor ones_like(const DTensor& x, const Out& out) { return only(apply(kOnesLike, {x}, {}, out)); }

DTensor full_like(const DTensor& x, const Scalar& value, const Out& out) {
  return only(apply(kFullLike, {x}, {value}, out));
}

DTensor tril(const DTensor& x, int64_t diagonal, const Out& out) {
  return only(apply(kTril, {x}, {diagonal}, out));
}

DTensor triu(const DTensor& x, int64_t diagonal, const Out& out) {
  return only(apply(kTriu, {x}, {diagonal}, out));
}

}  // namespace ops
}  // namespace tessera
