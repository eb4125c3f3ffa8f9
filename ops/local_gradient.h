// SPDX-License-Identifier: Apache-2.0
//
// local_map() with gradients: each is a function of one device's shards too.
//
//   // y = x w, rows of x over batch. The gradient of x has rows over batch as well; the gradient
//   // of w is a term for each part of the batch.
//   const DTensor y = local_map(rows, {m, n}, DType::kFloat32, {x, w}, multiply,
//                               {LocalGradient{rows, gradient_of_x},
//                                LocalGradient{Layout::parse(mesh, "[-, -] sum{batch}"),
//                                              gradient_of_w}});
//
// JAX: jax.custom_vjp of a shard_map, where the layouts of both directions are stated. PyTorch: an
// autograd.Function inside local_map.
#ifndef TESSERA_OPS_LOCAL_GRADIENT_H_
#define TESSERA_OPS_LOCAL_GRADIENT_H_

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/public.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "layout/layout.h"

namespace TESSERA_PUBLIC tessera {

// How a device computes its shard of the gradient of one input, or its term where the layout is
// partial (sum). The function's inputs are the inputs of local_map() in their layouts, then the
// results in their layouts, then the cotangents of the results, in the results' layouts without
// their partial axes. Its output has the shape and dtype of the input.
struct LocalGradient {
  LayoutArg layout;
  LocalFn fn;
};

// local_map() with a gradient for each input, nothing where it is zero. InvalidArgument where their
// number is not the number of inputs, and where an input of integers or bool has a gradient.
DTensor local_map(const LayoutArg& out_layout, const Shape& out_shape, DType out_dtype,
                  absl::Span<const DTensor> inputs, LocalFn fn,
                  std::vector<std::optional<LocalGradient>> gradients);

// As above, with several outputs. The function of a gradient is linear in the cotangents; it runs
// once for each output on which the target depends, with zeros as the cotangents of the others.
std::vector<DTensor> local_map(absl::Span<const LocalOutput> outputs,
                               absl::Span<const DTensor> inputs, LocalFn fn,
                               std::vector<std::optional<LocalGradient>> gradients);

}  // namespace tessera

#endif  // TESSERA_OPS_LOCAL_GRADIENT_H_
