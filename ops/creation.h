// SPDX-License-Identifier: Apache-2.0
//
// Tensors of numbers in a row, of the diagonal, and like another tensor.
//
//   DTensor steps = arange<int32_t>(10, layout);             0 to 9
//   DTensor x = linspace<float>(0, 1, 5, layout);            0, 0.25, 0.5, 0.75, 1
//   DTensor unit = eye<double>(4, 4, layout);
//   DTensor mask = ops::tril(ops::ones_like(scores));
//
// Each device makes its own elements, and nothing is sent. zeros(), ones(), full() and iota() are
// in dtensor/dtensor.h.
#ifndef TESSERA_OPS_CREATION_H_
#define TESSERA_OPS_CREATION_H_

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/public.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "ops/out.h"
#include "ops/scalar.h"

namespace TESSERA_PUBLIC tessera {

// Whether linspace() has `limit` as its last element.
enum class Endpoint : uint8_t { kIncluded, kExcluded };

namespace internal {
DTensor arange_raw(DType dtype, int64_t start, int64_t limit, int64_t step,
                   const LayoutArg& layout);
DTensor arange_raw(DType dtype, double start, double limit, double step, const LayoutArg& layout);
DTensor linspace_raw(DType dtype, double start, double limit, int64_t count,
                     const LayoutArg& layout, Endpoint endpoint);
DTensor eye_raw(DType dtype, int64_t rows, int64_t columns, const LayoutArg& layout,
                int64_t diagonal);

template <class T>
using ArangeNumber = std::conditional_t<std::integral<T>, int64_t, double>;
}  // namespace internal

// start + i step, of rank 1, for each i where that is before `limit`: below it, or above it for a
// step below 0. Floats are computed in f64, each operation rounded by itself, and then rounded to
// T. InvalidArgument for a step of 0, for integers that T cannot hold, and for numbers that are not
// finite. NumPy: arange.
template <HasDType T>
requires(!std::is_same_v<T, bool>) DTensor
    arange(internal::ArangeNumber<T> start, internal::ArangeNumber<T> limit,
           internal::ArangeNumber<T> step, const LayoutArg& layout) {
  return internal::arange_raw(dtype_of<T>(), start, limit, step, layout);
}
// From 0 in steps of 1.
template <HasDType T>
requires(!std::is_same_v<T, bool>) DTensor
    arange(internal::ArangeNumber<T> limit, const LayoutArg& layout) {
  return arange<T>(0, limit, 1, layout);
}

// `count` numbers at equal distances, of rank 1, from `start` to `limit`: element i is
// start + i (limit - start) / (count - 1), computed in f64 and rounded to T, and the last one is
// `limit` itself. Without the endpoint the divisor is `count`. InvalidArgument for a count below 0
// and for numbers
// that are not finite, or whose distance is not. NumPy: linspace.
template <HasDType T>
requires(!std::integral<T>) DTensor
    linspace(double start, double limit, int64_t count, const LayoutArg& layout,
             Endpoint endpoint = Endpoint::kIncluded) {
  return internal::linspace_raw(dtype_of<T>(), start, limit, count, layout, endpoint);
}

// A matrix of zeros with 1 where column - row is `diagonal`. NumPy: eye.
template <HasDType T>
DTensor eye(int64_t rows, int64_t columns, const LayoutArg& layout, int64_t diagonal = 0) {
  return internal::eye_raw(dtype_of<T>(), rows, columns, layout, diagonal);
}

namespace ops {

// A tensor of one value, with the dtype, the shape and the layout of x; where x is partial, its
// layout without the partial axes. The values of x are not read, and no gradient passes. An error
// of x that is known is the error of the result.
DTensor zeros_like(const DTensor& x, const Out& out = {});
DTensor ones_like(const DTensor& x, const Out& out = {});
// InvalidArgument for a value that is not exact in an integer dtype.
DTensor full_like(const DTensor& x, const Scalar& value, const Out& out = {});

// x where column - row is not above (tril) or not below (triu) `diagonal`, else 0, also for NaN. Of
// the last two dims; those before are a batch. Every dim stays split, and partial operands of any
// reduction pass. InvalidArgument for a rank below 2. NumPy: tril, triu.
DTensor tril(const DTensor& x, int64_t diagonal = 0, const Out& out = {});
DTensor triu(const DTensor& x, int64_t diagonal = 0, const Out& out = {});

}  // namespace ops
}  // namespace tessera

#endif  // TESSERA_OPS_CREATION_H_
