// SPDX-License-Identifier: Apache-2.0
//
// Reductions over dims, scans along a dim, and searches in a dim.
//
//   ops::sum(x)                          all dims: rank 0
//   ops::mean(x, 0, KeepDims::kYes)      dim 0, which stays with size 1
//   ops::max(x, {-2, -1})                the last two dims
//   ops::norm(x, {})                     no dim: of each element by itself
//
// sum, mean, prod, max, min, all and any of a dim that is split give a partial result: each device
// reduces its part, and nothing is sent. var, norm, logsumexp, argmax and argmin give a whole one:
// they need the reduced value. cumsum keeps the dim split. argmax, argmin, cumsum and top_k along a
// split dim gather a few numbers of each shard; sort gathers the dim, as top_k does where k is more
// than a shard has, and cumsum of f16 and bf16, which is rounded once.
//
// Dims may be negative, from -rank. InvalidArgument for a dim out of range or given twice, and for
// dtypes that an operation does not take: sum, prod, argmax and argmin take numbers, all and any
// bool, mean, var, norm and logsumexp floats. max and min, argmax and argmin of no elements are
// refused; they ignore NaN, and give NaN, and index 0, where all elements are NaN. Integers wrap.
// f16 and bf16 are computed in f32 and rounded once; each term of a partial result is rounded.
#ifndef TESSERA_OPS_REDUCTIONS_H_
#define TESSERA_OPS_REDUCTIONS_H_

#include <cstdint>

#include "base/dims.h"
#include "base/public.h"
#include "dtensor/dtensor.h"
#include "ops/out.h"

namespace TESSERA_PUBLIC tessera {
namespace ops {

// Whether reduced dims stay, with size 1.
enum class KeepDims : uint8_t { kNo, kYes };

DTensor sum(const DTensor& x, const Dims& dims = kAllDims, KeepDims keep = KeepDims::kNo,
            const Out& out = {});
DTensor mean(const DTensor& x, const Dims& dims = kAllDims, KeepDims keep = KeepDims::kNo,
             const Out& out = {});
DTensor prod(const DTensor& x, const Dims& dims = kAllDims, KeepDims keep = KeepDims::kNo,
             const Out& out = {});
DTensor max(const DTensor& x, const Dims& dims = kAllDims, KeepDims keep = KeepDims::kNo,
            const Out& out = {});
DTensor min(const DTensor& x, const Dims& dims = kAllDims, KeepDims keep = KeepDims::kNo,
            const Out& out = {});
DTensor all(const DTensor& x, const Dims& dims = kAllDims, KeepDims keep = KeepDims::kNo,
            const Out& out = {});
DTensor any(const DTensor& x, const Dims& dims = kAllDims, KeepDims keep = KeepDims::kNo,
            const Out& out = {});
// The mean squared distance from the mean.
DTensor var(const DTensor& x, const Dims& dims = kAllDims, KeepDims keep = KeepDims::kNo,
            const Out& out = {});
// The square root of the sum of squares.
DTensor norm(const DTensor& x, const Dims& dims = kAllDims, KeepDims keep = KeepDims::kNo,
             const Out& out = {});
// log(sum(exp(x))), without overflow.
DTensor logsumexp(const DTensor& x, const Dims& dims = kAllDims, KeepDims keep = KeepDims::kNo,
                  const Out& out = {});

// The index of the largest or smallest element along the dim, which is removed: i64, the lowest of
// equals.
DTensor argmax(const DTensor& x, int64_t dim, const Out& out = {});
DTensor argmin(const DTensor& x, int64_t dim, const Out& out = {});
// Element i is the sum of elements 0 to i along the dim.
DTensor cumsum(const DTensor& x, int64_t dim, const Out& out = {});
// Ascending and stable along the dim; NaN last.
DTensor sort(const DTensor& x, int64_t dim = -1, const Out& out = {});
// The k largest elements along the dim, the largest first, and their indices (i64); among equals
// the lower index comes first.
struct TopK {
  DTensor values;
  DTensor indices;
};
TopK top_k(const DTensor& x, int64_t k, int64_t dim = -1, const Out& out = {});

}  // namespace ops
}  // namespace tessera

#endif  // TESSERA_OPS_REDUCTIONS_H_
