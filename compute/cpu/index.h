// SPDX-License-Identifier: Apache-2.0
//
// Kernels that place boxes, and that find elements by indices in memory. Pure functions of one
// device's memory; several threads at once.
#ifndef TESSERA_COMPUTE_CPU_INDEX_H_
#define TESSERA_COMPUTE_CPU_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/engine.h"

namespace tessera::kernels {

// Copies a dense array of a box to where it begins in a result, as far as it is in `out_box`, of
// which `out` is the dense array.
void place_box(int64_t element_bytes, const std::byte* in, const Box& in_box,
               const std::vector<int64_t>& begin, const Box& out_box, std::byte* out);

// Copies of an element.
void fill(DType dtype, const std::byte* element, std::byte* out, int64_t num_elements);

// Index number k; OutOfRange where it is not in the dim.
StatusOr<int64_t> checked_index(const Indices& indices, int64_t k, const DimPart& part);

// out[o][k] = lines[o][indices[k] - part.first], slices of lines.inner elements; zeros for an index
// that is in the dim and not in the part. OutOfRange for an index outside of the dim.
Status take(int64_t element_bytes, const std::byte* in, const Lines& lines, const DimPart& part,
            const Indices& indices, std::byte* out);
// lines[o][indices[k] - part.first] += updates[o][k], for indices in the part, in the order of k.
Status scatter_add(DType dtype, std::byte* out, const Lines& lines, const DimPart& part,
                   const Indices& indices, const std::byte* updates);
// out[k][i] = indices[k] == i.
void one_hot(const Indices& indices, int64_t depth, float* out);

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_CPU_INDEX_H_
