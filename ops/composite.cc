// SPDX-License-Identifier: Apache-2.0
#include "ops/composite.h"

#include <limits>
#include <utility>

#include "Eigen/Core"
#include "base/dtype.h"
#include "dtensor/relayout.h"
#include "ops/pointwise.h"
#include "ops/tape.h"

namespace tessera::ops {
namespace {

double largest(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 65504;
    case DType::kBFloat16:
      return static_cast<double>(std::numeric_limits<Eigen::bfloat16>::max());
    case DType::kFloat32:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

}  // namespace

DTensor without_partial(const DTensor& x) {
  return x.layout().is_partial() ? relayout(x, x.layout().without_partial()) : x;
}

DTensor finish(DTensor x, const Out& out) {
  if (out.layout.has_value()) return relayout(std::move(x), *out.layout);
  return without_partial(x);
}

DTensor finite_max(const DTensor& x, const Dims& dims) {
  const double limit = largest(x.dtype());
  // What is subtracted changes no derivative of what the callers compute.
  return clip(max(stop_gradient(x), dims, KeepDims::kYes), -limit, limit);
}

}  // namespace tessera::ops
