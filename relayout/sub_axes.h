// SPDX-License-Identifier: Apache-2.0
//
// Lists of sub-axes: set operations on them, the common sub-axes of two layouts, and positions of a
// mesh as mixed-radix numbers with a digit per sub-axis. Internal to relayout/.
//
//   mesh {x=4, y=3}, position 7 = (x=2, y=1)      digit = (position / weight) % size
//     x       {size 4, weight 3}   digit 2
//     x:(1)2  {size 2, weight 6}   digit 1          y  {size 3, weight 1}   digit 1
//     x:(2)2  {size 2, weight 3}   digit 0
//
// Two layouts on one mesh may cut the same axis into parts of different sizes. Cuts (below) cuts
// both layouts at the borders of either: both are then lists of the same atoms, and "does this
// gather the minor axes" is a comparison of two lists. An axis is not aligned where its borders are
// no divisor chain (thirds against halves of an axis of 6); its parts then stay whole.
#ifndef TESSERA_RELAYOUT_SUB_AXES_H_
#define TESSERA_RELAYOUT_SUB_AXES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace tessera::internal {

// A list of sub-axes, also called parts of axes, major to minor.
using SubAxes = std::vector<SubAxis>;

struct Digit {
  int64_t size;
  int64_t weight;
};
using Digits = std::vector<Digit>;

Digits digits_of(const Mesh& mesh, absl::Span<const SubAxis> parts);
// The product of the sizes.
int64_t num_values(const Digits& digits);
// The number that the digits of `position` make, major to minor.
int64_t value_at(const Digits& digits, int64_t position);
// The part of a position that the digits contribute when they make the number `value`.
int64_t offset_of(const Digits& digits, int64_t value);

// Whether two parts of one axis have a digit in common. Else the whole of one is more significant
// than the other.
bool overlaps(const SubAxis& a, const SubAxis& b);
bool overlaps_any(const SubAxis& part, absl::Span<const SubAxis> parts);
bool contains_sub_axis(absl::Span<const SubAxis> parts, const SubAxis& part);
// Whether `parts` begins with `prefix`.
bool is_prefix(const SubAxes& prefix, const SubAxes& parts);
// The parts of all dims (of a Layout: dim_axes()), one after the other.
SubAxes all_sub_axes(absl::Span<const SubAxes> dims);
// The parts of each dim.
std::vector<SubAxes> dims_of(const Layout& layout);

// Two layouts on one mesh, in common atoms.
class Cuts {
 public:
  // Requires equal meshes. Also cuts where `parts` begin and end.
  Cuts(const Layout& a, const Layout& b, absl::Span<const SubAxis> parts = {});

  bool aligned(int axis) const { return aligned_[axis]; }
  bool all_aligned() const;
  // Cuts each part of the list into atoms; parts of axes that are not aligned stay whole.
  SubAxes cut(absl::Span<const SubAxis> parts) const;
  // The atoms of an aligned axis, major to minor.
  SubAxes atoms(int axis) const;

 private:
  std::vector<int64_t> sizes_;
  std::vector<std::vector<int64_t>> borders_;  // An axis: ascending, 1 and the size included.
  std::vector<bool> aligned_;
};

// The sub-axes that no part of `parts` covers, in mesh order. Requires parts that are digits of one
// number.
SubAxes complement(const Mesh& mesh, absl::Span<const SubAxis> parts);
// Mesh order, neighbours merged, duplicates gone. Requires parts that are digits of one number.
SubAxes normalised(const Mesh& mesh, SubAxes parts);

// "x", or "x:(2)2".
std::string sub_axis_name(const Mesh& mesh, const SubAxis& part);
// The layout of these parts. Requires what Layout requires of them.
Layout make_layout(const Mesh& mesh, const std::vector<SubAxes>& dims, const SubAxes& partial,
                   std::optional<ReduceOp> op);

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_SUB_AXES_H_
