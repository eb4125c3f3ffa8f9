// SPDX-License-Identifier: Apache-2.0
//
// plan_map: how the items of a Map walk through its arrays. A pure function.
#ifndef TESSERA_COMPUTE_CUDA_MAP_PLAN_H_
#define TESSERA_COMPUTE_CUDA_MAP_PLAN_H_

#include <cstdint>

#include "absl/types/span.h"
#include "compute/cuda/math.h"

namespace tessera::cuda {

// Sets how the items of a map walk through its arrays; the other fields are set. `sizes` are those
// of the result, of 1 to 2^30 elements and at most kMaxDims dims; strides[k], in elements, are
// those of operand k. An operand without data is its element.
void plan_map(absl::Span<const int64_t> sizes, absl::Span<const absl::Span<const int64_t>> strides,
              Map* map);

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_MAP_PLAN_H_
