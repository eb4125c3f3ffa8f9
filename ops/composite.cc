// SPDX-License-Identifier: Apache-2.0
#include "ops/composite.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "Eigen/Core"
#include "base/dtype.h"
#include "base/shape.h"
#include "dtensor/relayout.h"
#include "ops/pointwise.h"
#include "ops/shapes.h"
#include "ops/tape.h"

namespace tessera::ops {
namespace {

double largest(DType dtype) {
  return dtype == DType::kFloat32 ? std::numeric_limits<float>::max()
                                  : std::numeric_limits<double>::max();
}

}  // namespace

DTensor without_partial(const DTensor& x) {
  return x.layout().is_partial() ? relayout(x, x.layout().without_partial()) : x;
}

DTensor finish(DTensor x, const Out& out) {
  if (out.layout.has_value()) return relayout(std::move(x), *out.layout);
  return without_partial(x);
}

DTensor sum_to(const DTensor& cotangent, const Shape& shape) {
  if (cotangent.shape() == shape) return cotangent;
  const size_t before = cotangent.shape().size() - shape.size();
  std::vector<int64_t> dims;
  for (size_t dim = 0; dim < cotangent.shape().size(); ++dim) {
    if (dim < before || (shape[dim - before] == 1 && cotangent.shape()[dim] != 1)) {
      dims.push_back(static_cast<int64_t>(dim));
    }
  }
  return reshape(sum(cotangent, dims, KeepDims::kYes), shape);
}

DTensor finite_max(const DTensor& x, const Dims& dims) {
  // Any number is right for no elements.
  if (num_elements(x.shape()) == 0) return sum(stop_gradient(x), dims, KeepDims::kYes);
  const double limit = largest(x.dtype());
  // The callers subtract this maximum, which changes no derivative of their results.
  return clip(max(stop_gradient(x), dims, KeepDims::kYes), -limit, limit);
}

DTensor in_f32(absl::Span<const DTensor> operands, const Out& out, Computation compute) {
  const DType dtype = operands[0].dtype();
  if (!is_half(dtype)) return compute(operands, out);
  return cast(compute(widened(operands), {}), dtype, out);
}

std::vector<DTensor> widened(absl::Span<const DTensor> tensors) {
  std::vector<DTensor> result;
  result.reserve(tensors.size());
  for (const DTensor& each : tensors) {
    result.push_back(is_half(each.dtype()) ? cast(each, DType::kFloat32) : each);
  }
  return result;
}

Gradients gradients_in_f32(const GradientCall& call, Derivative derivative) {
  if (!is_half(call.result.dtype())) return derivative(call);
  return gradients_in_f32(
      call, [&](absl::Span<const DTensor>) { return cast(call.result, DType::kFloat32); },
      derivative);
}

Gradients gradients_in_f32(const GradientCall& call, Recomputation result, Derivative derivative) {
  const DType dtype = call.result.dtype();
  if (!is_half(dtype)) return derivative(call);
  const std::vector<DTensor> operands = widened(call.operands);
  Gradients gradients =
      derivative({operands, result(operands), cast(call.cotangent, DType::kFloat32), call.needed,
                  call.attributes});
  for (std::optional<DTensor>& each : gradients) {
    if (each.has_value()) each = cast(*each, dtype);
  }
  return gradients;
}

}  // namespace tessera::ops
