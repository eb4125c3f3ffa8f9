// SPDX-License-Identifier: Apache-2.0
//
// Operations that move elements: shapes, parts, and elements by their indices.
//
// transpose, reshape, expand_dims, squeeze and broadcast_to send nothing where the split of a dim
// carries over. The others keep every dim split that they leave whole; where they cut, pad, turn or
// join a split dim, the result is split as the operand was, and each device fetches the elements
// that it needs of others in one exchange.
//
// Partial operands of any reduction pass, with these exceptions: pad passes sums and averages, and
// only where the value is 0; take passes sums (of bool, maxima); scatter_add and one_hot pass none.
//
// Dims may be negative, from -rank. InvalidArgument for what does not fit the shape.
#ifndef TESSERA_OPS_SHAPES_H_
#define TESSERA_OPS_SHAPES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/dims.h"
#include "base/public.h"
#include "base/shape.h"
#include "dtensor/dtensor.h"
#include "ops/out.h"
#include "ops/pointwise.h"

namespace TESSERA_PUBLIC tessera {
namespace ops {

// Dim k of the result is dim permutation[k] of x.
DTensor transpose(const DTensor& x, const Dims& permutation, const Out& out = {});
// The elements of x in row-major order. One size may be -1: it is computed from the others.
DTensor reshape(const DTensor& x, const Shape& shape, const Out& out = {});
// A dim of size 1 before dim `dim` of the result.
DTensor expand_dims(const DTensor& x, int64_t dim, const Out& out = {});
// Without dim `dim`, which has size 1.
DTensor squeeze(const DTensor& x, int64_t dim, const Out& out = {});
DTensor broadcast_to(const DTensor& x, const Shape& shape, const Out& out = {});

// The tensors one after the other along a dim; and along a new dim. At least one tensor.
DTensor concat(absl::Span<const DTensor> xs, int64_t dim, const Out& out = {});
DTensor stack(absl::Span<const DTensor> xs, int64_t dim = 0, const Out& out = {});
// Parts of these sizes, which add up to the size of the dim.
std::vector<DTensor> split(const DTensor& x, const std::vector<int64_t>& sizes, int64_t dim,
                           const Out& out = {});
// Elements starts[d], starts[d] + strides[d], ... below limits[d] of each dim.
DTensor slice(const DTensor& x, const std::vector<int64_t>& starts,
              const std::vector<int64_t>& limits, const std::vector<int64_t>& strides = {},
              const Out& out = {});
// Elements start to start + length - 1 of the dim. `start` does not count from the end.
DTensor narrow(const DTensor& x, int64_t dim, int64_t start, int64_t length, const Out& out = {});
// low[d] elements of `value` before dim d, high[d] behind it.
DTensor pad(const DTensor& x, const std::vector<int64_t>& low, const std::vector<int64_t>& high,
            const Scalar& value = 0, const Out& out = {});
// The elements of x in reverse order along the dims.
DTensor flip(const DTensor& x, const Dims& dims, const Out& out = {});
// Element i becomes element i + shift; what leaves at the end comes in at the beginning.
DTensor roll(const DTensor& x, int64_t shift, int64_t dim, const Out& out = {});
// Dim d repeated repeats[d] times.
DTensor tile(const DTensor& x, const std::vector<int64_t>& repeats, const Out& out = {});

// f32: 1 where the last dim's index is the integer, else 0; all 0 where it is out of range.
DTensor one_hot(const DTensor& indices, int64_t depth, const Out& out = {});
// The slices of x along the dim with these integer indices, which take the place of the dim. An
// index out of range is OutOfRange in the result. Where the dim is split, each device gives the
// slices that it has, and the result is partial.
DTensor take(const DTensor& x, const DTensor& indices, int64_t dim, const Out& out = {});
// x with updates[k] added to its slice indices[k] along the dim, of f16 and bf16 in f32. Indices
// are of rank 1. Errors as take().
DTensor scatter_add(const DTensor& x, const DTensor& indices, const DTensor& updates, int64_t dim,
                    const Out& out = {});

}  // namespace ops
}  // namespace tessera

#endif  // TESSERA_OPS_SHAPES_H_
