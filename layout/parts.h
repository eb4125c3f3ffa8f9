// SPDX-License-Identifier: Apache-2.0
//
// Parts: the algebra of whole axes and sub-axes that a layout is made of.
//
// A part (axis, pre, size) of an axis of n is a digit of its coordinate: n = pre * size * rest, and
// the digit counts the `size` places between the major `pre` and the minor `rest`.
//
//   axis x of 12        x:(1)2 | x:(2)3 | x:(6)2        digits of 5 = (0, 2, 1)
//                       major                minor      5 = 0*6 + 2*2 + 1
//
// Two parts of one axis are compatible if one is wholly below the other: pre*size of the upper
// divides the pre of the lower. If every two do, all are digits of one mixed-radix number.
#ifndef TESSERA_LAYOUT_PARTS_H_
#define TESSERA_LAYOUT_PARTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "layout/layout_text.h"
#include "layout/sub_axis.h"
#include "mesh/mesh.h"

namespace tessera::internal {

inline constexpr int kPartialPlace = -1;

// A part as it was written, and where: the dim, or kPartialPlace.
struct NamedPart {
  SubAxis part;
  std::string text;
  int place;
};

// Finds the axis in the mesh. InvalidArgument for an unknown axis or a sub-axis that does not
// divide it; `layout` is the text of the whole layout, for the message.
StatusOr<NamedPart> resolve_part(const Mesh& mesh, const AxisText& axis, int place,
                                 absl::string_view layout);

// InvalidArgument for two parts that are not compatible, with both and their places.
Status check_parts(const Mesh& mesh, absl::Span<const NamedPart> parts, absl::string_view layout);

// The normal form of an ordered list of parts: none of size 1, neighbours merged.
std::vector<SubAxis> normal_parts(absl::Span<const SubAxis> parts);

// "x" where the part is the whole axis, else "x:(2)2".
std::string part_to_string(const Mesh& mesh, const SubAxis& part);

// A part as a digit of the position: (position / divisor) % size. This is what boxes need, and it
// compares parts of two meshes.
struct PositionDigit {
  int64_t divisor;
  int64_t size;

  friend bool operator==(const PositionDigit& a, const PositionDigit& b) {
    return a.divisor == b.divisor && a.size == b.size;
  }
};

// The digits of an ordered list of parts, merged where neighbours are one digit of the position,
// also across axes. Two lists with equal digits number every position alike.
std::vector<PositionDigit> position_digits(const Mesh& mesh, absl::Span<const SubAxis> parts);

}  // namespace tessera::internal

#endif  // TESSERA_LAYOUT_PARTS_H_
