// SPDX-License-Identifier: Apache-2.0
//
// SubAxis, DimSharding: the axes of a mesh that a layout names, resolved and as a program writes
// them.
#ifndef TESSERA_LAYOUT_SUB_AXIS_H_
#define TESSERA_LAYOUT_SUB_AXIS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/public.h"

namespace TESSERA_PUBLIC tessera {

// Axes, major to minor; a sub-axis as "x:(2)2"; empty: not split.
using DimSharding = std::vector<std::string>;

// A part of a mesh axis, resolved: the digit (coordinate / (n/(pre*size))) % size of axis number
// `axis` of the mesh, n being the size of that axis. A whole axis has pre = 1 and size = n.
struct SubAxis {
  int axis;
  int64_t pre;
  int64_t size;

  friend bool operator==(const SubAxis& a, const SubAxis& b) {
    return a.axis == b.axis && a.pre == b.pre && a.size == b.size;
  }
  template <typename H>
  friend H AbslHashValue(H h, const SubAxis& part) {
    return H::combine(std::move(h), part.axis, part.pre, part.size);
  }
};

}  // namespace tessera

#endif  // TESSERA_LAYOUT_SUB_AXIS_H_
