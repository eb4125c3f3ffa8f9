// SPDX-License-Identifier: Apache-2.0
//
// FactoredView: the tensor under a shape with one dim per prime factor that a layout cuts off, the
// relayout as moves of these factors (digits) between places, and its independent components.
// Internal to relayout/.
//
//   [(node,gpu), -] -> [gpu, node] on {node=2, gpu=2}, shape [8, 8]
//
//     view of the shape   [2, 2, 2]  [2, 4]       a place for each digit, and the rest of each dim
//     places of dim 0      A  B                   A holds node, then gpu
//     places of dim 1                 C           B holds gpu, then nothing; C nothing, then node
//
// A place is a digit of the index along a dim. A digit belongs to the position in the mesh; a
// layout says which digit is in which place. Where both layouts cut all dims and axes at borders of
// one divisor chain and all sizes divide, the tensor can be seen under a shape with one dim per
// place: the same elements in the same order. Under that view every choice of digits for places is
// a Layout, also choices that hold strided blocks of the tensor, so that digits can move in any
// order.
//
// Digits that take each other's places form a component: a path or a cycle. Components move
// independently of each other, in one batch or in several. Each multiplies the bytes that a device
// holds by grows / shrinks. A device already holds 1 / kept_divisor of the bytes that it needs (0:
// nothing):
//
//   slice      replicated -> place         shrinks by p      kept 1
//   gather     place -> replicated         grows by p        kept 1/p
//   move       place -> free place         size stays        kept 1/p
//   longer paths, replacements, cycles                       kept 0, on the worst placed device
//
// This also holds within a process and within a host, if only the digits count that tell processes,
// or hosts, apart: the nearest holder of an element differs from the requesting device only in
// digits that both layouts' places force to differ.
#ifndef TESSERA_RELAYOUT_FACTORED_VIEW_H_
#define TESSERA_RELAYOUT_FACTORED_VIEW_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/shape.h"
#include "layout/layout.h"
#include "relayout/sub_axes.h"
#include "relayout/topology.h"

namespace tessera::internal {

// The distance of data: on the device itself, in its process, on its host.
inline constexpr int kNumReaches = 3;

struct Component {
  int64_t grows = 1;
  int64_t shrinks = 1;
  // Within a reach a device finds 1 / kept_divisor[reach] of the bytes that it needs; 0: nothing.
  int64_t kept_divisor[kNumReaches] = {1, 1, 1};
  std::vector<int> places;
  std::string name;  // "x:(2)2: 0 -> 1", for messages and tests.
};

class Refinement;  // In factored_view.cc.

// Immutable, safe to read from any thread.
class FactoredView {
 public:
  // Nothing where the meshes or partial axes differ, borders do not align, or sizes do not divide:
  // such relayouts are one batch. Digits are prime, and are cut at the beginnings of processes and
  // hosts as far as the borders allow. O(digits^2), and O(devices) per digit for a topology of
  // listed devices.
  static std::optional<FactoredView> create(const Layout& from, const Layout& to,
                                            const Shape& shape, const Topology& topology);

  // As create(), for a reduction, whose partial axes differ: digits are cut where the layouts and
  // `parts` begin and end, not to primes, and there are no components.
  static std::optional<FactoredView> of_reduction(const Layout& from, const Layout& goal,
                                                  const Shape& shape, const SubAxes& parts);

  const std::vector<Component>& components() const { return components_; }
  // The shape with a dim for each place: the same elements in the same order.
  const Shape& shape() const { return view_shape_; }
  // The layout under shape() after the components in the mask have moved. Bit i of the mask stands
  // for components()[i].
  Layout layout(uint64_t done) const;
  // The layout after all components have moved, with the partial axes of that time.
  Layout target() const;
  // For each dim of the tensor, the dim of shape() that holds the part which no place cuts.
  const std::vector<int>& rest_dims() const { return rest_dims_; }

 private:
  struct Place {
    int dim;
    int64_t size;
    int old_digit;  // Index into digits_, or kNone.
    int new_digit;
  };
  static constexpr int kNone = -1;

  FactoredView(const Layout& from, const Layout& to) : from_(from), to_(to) {}
  // With these digits in the places, and the partial axes of the layout.
  Layout with_digits(absl::FunctionRef<int(size_t place)> digit_of, const Layout& terms) const;
  // False where sizes do not divide.
  bool find_places(const Refinement& refinement, const Shape& shape);
  void find_components(const std::vector<LinkClass>& links);
  void add_place(Component& component, const Place& place,
                 const std::vector<LinkClass>& links) const;

  Layout from_;
  Layout to_;
  SubAxes digits_;  // The digits of all axes, in mesh order.
  std::vector<Place> places_;
  std::vector<int> component_of_place_;  // kNone: the place keeps its digit.
  std::vector<Component> components_;
  Shape view_shape_;
  std::vector<int> view_dim_of_place_;
  std::vector<int> rest_dims_;
};

// Whether processes and hosts are blocks of the mesh's positions.
bool has_blocks(const Mesh& mesh, const Topology& topology);
// Writes the number in finer digits, cut where blocks of a topology's processes and hosts begin.
Digits cut_at_blocks(const Digits& digits, const Topology& topology);
// The farthest link between positions that differ only in this digit.
LinkClass link_of_digit(const Mesh& mesh, const Digit& digit, const Topology& topology);
// `a * b` where 0 means "nothing kept": absorbing.
inline int64_t joint_divisor(int64_t a, int64_t b) { return a * b; }

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_FACTORED_VIEW_H_
