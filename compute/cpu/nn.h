// SPDX-License-Identifier: Apache-2.0
//
// Kernels of operations of neural networks. Pure functions of one device's memory; several threads
// at once. f16 and bf16 are computed in f32 and rounded once.
#ifndef TESSERA_COMPUTE_CPU_NN_H_
#define TESSERA_COMPUTE_CPU_NN_H_

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/engine.h"
#include "device/arithmetic.h"

namespace tessera::kernels {

// Images may be parts of whole ones: image.h says which.
//
// The part `out_box` of a convolution of x, [batch, height, width, in], by a filter
// [height, width, in, out]; the box says which part of batch and out.
void conv2d(const Arithmetic& arithmetic, DType dtype, const BoxArray& x, const BoxArray& filter,
            const Window& height, const Window& width, const Box& out_box, std::byte* out);
// The part `out_box` of the gradients of the sum of the convolution times c: by x, and by the
// filter.
void conv2d_by_x(const Arithmetic& arithmetic, DType dtype, const BoxArray& c,
                 const BoxArray& filter, const Window& height, const Window& width,
                 const Box& out_box, std::byte* out);
void conv2d_by_filter(const Arithmetic& arithmetic, DType dtype, const BoxArray& x,
                      const BoxArray& c, const Window& height, const Window& width,
                      const Box& out_box, std::byte* out);

// The part `out_box` of the means of windows of x; and of the elements of `values` at the place in
// each window where x is largest, the first of equals.
void avg_pool2d(DType dtype, const BoxArray& x, const Window& height, const Window& width,
                const Box& out_box, std::byte* out);
void max_pool2d(DType dtype, const BoxArray& x, const BoxArray& values, const Window& height,
                const Window& width, const Box& out_box, std::byte* out);
// The part `out_box` of their gradients, times c: by x of the means, by `values`.
void avg_pool2d_by_x(DType dtype, const BoxArray& c, const Window& height, const Window& width,
                     int64_t rows, int64_t columns, const Box& out_box, std::byte* out);
void max_pool2d_by_values(DType dtype, const BoxArray& x, const BoxArray& c, const Window& height,
                          const Window& width, const Box& out_box, std::byte* out);

// Copies the box of [batch, heads, queries, keys], with -infinity where key > query + shift.
void mask_later(DType dtype, const std::byte* in, const Box& box, int64_t shift, std::byte* out);

// Element indices[i] of row i of the box, whose last dim is `part` of a whole one; 0 where it is in
// another part. OutOfRange for an index outside of the dim.
Status pick(DType dtype, const std::byte* in, const Box& box, const DimPart& part,
            const Indices& indices, std::byte* out);

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_CPU_NN_H_
