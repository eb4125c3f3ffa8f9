// SPDX-License-Identifier: Apache-2.0
//
// check_tiling: whether boxes hold each element of a shape exactly once.
//
//   shape [4, 4]       a a b b        a a b b         a a b b
//                      a a b b        a a b b         a a b b
//                      c c c c        c c c b         c c c .
//                      c c c c        c c c c         c c c c
//                      tiled          c and b overlap  no box holds (2, 3)
//
// Volumes and pairs of boxes would take quadratic time, which a manifest of a million pieces does
// not allow. Instead, give each place t of a border in dim d a random number F_d(t). For a box let
//
//   value(box) = product over d of (F_d(end of the box) - F_d(begin of the box)).
//
// value() adds up: it is the sum over the elements of the box of the product of F_d(i+1) - F_d(i).
// So boxes that hold each element once have values whose sum is value(whole shape). Other
// boxes almost never do: the two sides are polynomials in the numbers F_d(t) that differ wherever
// some element is not held once, so for numbers below the prime 2^61 - 1 they are equal with a
// probability of at most rank / 2^61 (Schwartz and Zippel). The numbers are drawn anew in each
// call, so that no file can be made for them. Only where the sums differ, a sweep finds which
// boxes or elements are wrong, for the message.
//
// Internal to checkpoint/. Safe to call from any thread.
#ifndef TESSERA_CHECKPOINT_TILING_H_
#define TESSERA_CHECKPOINT_TILING_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "base/status.h"
#include "checkpoint/info.h"

namespace tessera::checkpoint::internal {

// InvalidArgument, naming the tensor:
// - a box of another rank than the shape, or with a part outside of it: names box and shape;
// - two boxes with a common element: names both;
// - an element that no box holds: names the first one in row-major order.
// Boxes without elements are ignored, but must be inside the shape. Requires a shape that passed
// validate_shape(). O(rank) for each piece where they tile the shape.
Status check_tiling(absl::string_view tensor, const Shape& shape, absl::Span<const Piece> pieces);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_TILING_H_
