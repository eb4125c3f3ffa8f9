// SPDX-License-Identifier: Apache-2.0
//
// Pictures of a layout: which device holds which part of a tensor of rank 0 to 3.
//
//   visualize([batch, model] on {batch=2, model=2}, shape [5, 4])
//
//           0:2   2:4
//         +-----+-----+
//     0:3 |  0  |  1  |         rows 0 to 2, columns 2 and 3 are on device 1
//         +-----+-----+
//     3:5 |  2  |  3  |
//         +-----+-----+
//
// Both forms have these properties:
//   1. each element of the tensor is in exactly one cell;
//   2. a device is named in exactly one cell, or among the devices that hold nothing;
//   3. devices of one cell hold copies ("0,2-5"), or terms of a reduction ("sum(0; 1)": the terms
//      of device 0, then of device 1).
//
// Pure; safe from any thread. JAX: visualize_array_sharding.
#ifndef TESSERA_VISUALIZE_VISUALIZE_H_
#define TESSERA_VISUALIZE_VISUALIZE_H_

#include <cstdint>
#include <string>

#include "base/public.h"
#include "base/shape.h"
#include "base/status.h"
#include "layout/layout.h"

namespace TESSERA_PUBLIC tessera {

// Bounds of readable pictures.
inline constexpr int kMaxPictureRank = 3;
inline constexpr int64_t kMaxPictureDevices = 4096;

// The picture as text, lines ended by '\n'. A tensor of rank 3 is drawn as one table for each shard
// of dim 0. InvalidArgument for the error that `layout` carries, a shape that is not legal for it,
// and more than kMaxPictureDevices; Unimplemented beyond kMaxPictureRank.
StatusOr<std::string> visualize(const LayoutArg& layout, const Shape& shape);

// The picture as an SVG 1.1 document, with the errors of visualize(). Cells have the proportions of
// the tensor, as far as the width of their texts allows.
StatusOr<std::string> visualize_svg(const LayoutArg& layout, const Shape& shape);

}  // namespace tessera

#endif  // TESSERA_VISUALIZE_VISUALIZE_H_
