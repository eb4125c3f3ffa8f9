// SPDX-License-Identifier: Apache-2.0
//
// Borders, places and components.
#include "relayout/factored_view.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace tessera::internal {
namespace {

// Ascending products of digits from the major end: 1, ..., the whole.
using Borders = std::set<int64_t>;

bool is_chain(const Borders& borders) {
  int64_t before = 1;
  for (int64_t border : borders) {
    if (border % before != 0) return false;
    before = border;
  }
  return true;
}

int64_t smallest_prime_factor(int64_t number) {
  for (int64_t factor = 2; factor * factor <= number; ++factor) {
    if (number % factor == 0) return factor;
  }
  return number;
}

}  // namespace

// The common borders of two layouts. They grow until each border of an axis is also a border of the
// dims that its parts split, and the reverse.
class Refinement {
 public:
  Refinement(const Layout& from, const Layout& to) : mesh_(from.mesh()) {
    for (const MeshAxis& axis : mesh_.axes()) axes_.push_back({1, axis.size});
    dims_.resize(from.rank(), {1});
    for (const Layout* layout : {&from, &to}) {
      for (const SubAxis& part : layout->partial_axes()) add_axis_part(part);
      for (int dim = 0; dim < layout->rank(); ++dim) {
        int64_t first = 1;
        for (const SubAxis& part : layout->dim_axes()[dim]) {
          add_axis_part(part);
          images_.push_back({part.axis, part.pre, dim, first, part.size});
          first *= part.size;
          dims_[dim].insert(first);
        }
      }
    }
  }

  void add_axis_part(const SubAxis& part) {
    axes_[part.axis].insert(part.pre);
    axes_[part.axis].insert(part.pre * part.size);
  }

  // Borders where processes and hosts begin.
  void cut_blocks(const Topology& topology) {
    if (!mesh_.ids_are_positions()) return;
    const auto [process, host] = topology.block_sizes();
    int64_t stride = 1;
    for (int axis = mesh_.rank() - 1; axis >= 0; --axis) {
      const int64_t size = mesh_.axes()[axis].size;
      for (int64_t block : {process, host}) {
        const int64_t minor = block % stride == 0 ? block / stride : 1;
        if (minor < size && size % minor == 0) axes_[axis].insert(size / minor);
      }
      stride *= size;
    }
  }

  // False where the borders are no divisor chains: the layouts are not aligned.
  bool close() {
    for (bool changed = true; changed;) {
      changed = false;
      for (const Image& image : images_) {
        if (!copy_borders(axes_[image.axis], image.axis_first, dims_[image.dim], image.dim_first,
                          image.size, changed) ||
            !copy_borders(dims_[image.dim], image.dim_first, axes_[image.axis], image.axis_first,
                          image.size, changed)) {
          return false;
        }
      }
    }
    return std::all_of(axes_.begin(), axes_.end(), is_chain) &&
           std::all_of(dims_.begin(), dims_.end(), is_chain);
  }

  // Cuts until all digits are prime. A border that is added divides every chain it comes into at
  // the same place of the same number, so the borders stay chains.
  void cut_to_primes() {
    for (Borders& borders : axes_) {
      for (auto border = borders.begin(); std::next(border) != borders.end(); ++border) {
        const int64_t size = *std::next(border) / *border;
        const int64_t prime = smallest_prime_factor(size);
        if (prime != size) borders.insert(std::next(border), *border * prime);
      }
    }
    close();
  }

  const Borders& axis(int axis) const { return axes_[axis]; }
  const Borders& dim(int dim) const { return dims_[dim]; }

 private:
  // A part of an axis and the part of a dim that it splits: the same number, so a border in one is
  // a border in the other.
  struct Image {
    int axis;
    int64_t axis_first;
    int dim;
    int64_t dim_first;
    int64_t size;
  };

  static bool copy_borders(const Borders& source, int64_t source_first, Borders& target,
                           int64_t target_first, int64_t size, bool& changed) {
    for (auto border = source.upper_bound(source_first);
         border != source.end() && *border < source_first * size; ++border) {
      if (*border % source_first != 0) return false;
      changed |= target.insert(*border / source_first * target_first).second;
    }
    return true;
  }

  const Mesh& mesh_;
  std::vector<Borders> axes_;
  std::vector<Borders> dims_;
  std::vector<Image> images_;
};

namespace {

std::optional<Refinement> refine(const Layout& from, const Layout& to, const Topology& topology) {
  // Blocks of devices may cut axes where the layouts cannot: then the layouts alone decide.
  for (const bool by_blocks : {true, false}) {
    Refinement refinement(from, to);
    if (by_blocks) refinement.cut_blocks(topology);
    if (!refinement.close()) continue;
    refinement.cut_to_primes();
    return refinement;
  }
  return std::nullopt;
}

// Which digit, an index into `digits`, stands at each border of a dim under a layout.
std::map<int64_t, int> digits_at(const Layout& layout, int dim, const SubAxes& digits) {
  std::map<int64_t, int> result;
  int64_t first = 1;
  for (const SubAxis& part : layout.dim_axes()[dim]) {
    for (size_t i = 0; i < digits.size(); ++i) {
      const SubAxis& digit = digits[i];
      const bool inside =
          digit.axis == part.axis && digit.pre >= part.pre && digit.pre < part.pre * part.size;
      if (inside) result[first * (digit.pre / part.pre)] = static_cast<int>(i);
    }
    first *= part.size;
  }
  return result;
}

bool same_partials(const Layout& a, const Layout& b) {
  return a.partial_op() == b.partial_op() &&
         std::equal(a.partial_axes().begin(), a.partial_axes().end(), b.partial_axes().begin(),
                    b.partial_axes().end());
}

}  // namespace

std::optional<FactoredView> FactoredView::create(const Layout& from, const Layout& to,
                                                 const Shape& shape, const Topology& topology) {
  if (!(from.mesh() == to.mesh()) || !same_partials(from, to)) return std::nullopt;
  const std::optional<Refinement> refinement = refine(from, to, topology);
  if (!refinement.has_value()) return std::nullopt;
  FactoredView view(from, to);
  if (!view.find_places(*refinement, shape)) return std::nullopt;
  const std::optional<LinkClass> flat = topology.only_link();
  std::vector<LinkClass> links;
  for (const Digit& digit : digits_of(from.mesh(), view.digits_)) {
    links.push_back(flat.has_value() ? *flat : link_of_digit(from.mesh(), digit, topology));
  }
  view.find_components(links);
  return view;
}

std::optional<FactoredView> FactoredView::of_reduction(const Layout& from, const Layout& goal,
                                                       const Shape& shape, const SubAxes& parts) {
  if (!(from.mesh() == goal.mesh())) return std::nullopt;
  Refinement refinement(from, goal);
  for (const SubAxis& part : parts) refinement.add_axis_part(part);
  if (!refinement.close()) return std::nullopt;
  FactoredView view(from, goal);
  if (!view.find_places(refinement, shape)) return std::nullopt;
  view.component_of_place_.assign(view.places_.size(), kNone);
  return view;
}

bool FactoredView::find_places(const Refinement& refinement, const Shape& shape) {
  for (int axis = 0; axis < from_.mesh().rank(); ++axis) {
    const Borders& borders = refinement.axis(axis);
    for (auto border = borders.begin(); std::next(border) != borders.end(); ++border) {
      digits_.push_back({axis, *border, *std::next(border) / *border});
    }
  }
  for (int dim = 0; dim < from_.rank(); ++dim) {
    const Borders& borders = refinement.dim(dim);
    if (shape[dim] == 0 || shape[dim] % *borders.rbegin() != 0) return false;
    const std::map<int64_t, int> before = digits_at(from_, dim, digits_);
    const std::map<int64_t, int> after = digits_at(to_, dim, digits_);
    const auto digit = [](const std::map<int64_t, int>& at, int64_t border) {
      const auto found = at.find(border);
      return found == at.end() ? kNone : found->second;
    };
    for (auto border = borders.begin(); std::next(border) != borders.end(); ++border) {
      view_dim_of_place_.push_back(static_cast<int>(view_shape_.size()));
      view_shape_.push_back(*std::next(border) / *border);
      places_.push_back({dim, view_shape_.back(), digit(before, *border), digit(after, *border)});
    }
    rest_dims_.push_back(static_cast<int>(view_shape_.size()));
    view_shape_.push_back(shape[dim] / *borders.rbegin());
  }
  return true;
}

void FactoredView::find_components(const std::vector<LinkClass>& links) {
  // The place where each digit is before, if it moves or goes: from there the component goes on.
  std::vector<int> old_place(digits_.size(), kNone);
  std::vector<int> new_place(digits_.size(), kNone);
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].old_digit != kNone) old_place[places_[i].old_digit] = static_cast<int>(i);
    if (places_[i].new_digit != kNone) new_place[places_[i].new_digit] = static_cast<int>(i);
  }
  component_of_place_.assign(places_.size(), kNone);
  for (size_t start = 0; start < places_.size(); ++start) {
    const bool stays = places_[start].old_digit == places_[start].new_digit;
    if (stays || component_of_place_[start] != kNone) continue;
    const int number = static_cast<int>(components_.size());
    Component& component = components_.emplace_back();
    std::vector<int> todo = {static_cast<int>(start)};
    while (!todo.empty()) {
      const int at = todo.back();
      todo.pop_back();
      if (component_of_place_[at] != kNone) continue;
      component_of_place_[at] = number;
      add_place(component, places_[at], links);
      component.places.push_back(at);
      // Where the old digit goes, and where the new one comes from.
      const int old_digit = places_[at].old_digit;
      const int new_digit = places_[at].new_digit;
      if (old_digit != kNone && new_place[old_digit] != kNone) {
        todo.push_back(new_place[old_digit]);
      }
      if (new_digit != kNone && old_place[new_digit] != kNone) {
        todo.push_back(old_place[new_digit]);
      }
    }
  }
}

void FactoredView::add_place(Component& component, const Place& place,
                             const std::vector<LinkClass>& links) const {
  const auto name = [&](int digit) {
    return digit == kNone ? std::string("-") : sub_axis_name(from_.mesh(), digits_[digit]);
  };
  absl::StrAppend(&component.name, component.name.empty() ? "" : ", ", "dim ", place.dim, ": ",
                  name(place.old_digit), " -> ", name(place.new_digit));
  if (place.old_digit == kNone) {
    component.shrinks *= place.size;
    return;
  }
  const bool freed = place.new_digit == kNone;
  if (freed) component.grows *= place.size;
  // Another digit takes the place: on some device it has another value, and nothing is kept.
  const int64_t divisor = freed ? place.size : 0;
  const int far = static_cast<int>(links[place.old_digit]);
  for (int reach = 0; reach <= far; ++reach) {
    component.kept_divisor[reach] = joint_divisor(component.kept_divisor[reach], divisor);
  }
}

Layout FactoredView::layout(uint64_t done) const {
  const auto digit_of = [&](size_t place) {
    const int component = component_of_place_[place];
    const bool moved = component != kNone && (done >> component & 1) != 0;
    return moved ? places_[place].new_digit : places_[place].old_digit;
  };
  return with_digits(digit_of, from_);
}

Layout FactoredView::target() const {
  return with_digits([&](size_t place) { return places_[place].new_digit; }, to_);
}

Layout FactoredView::with_digits(absl::FunctionRef<int(size_t)> digit_of,
                                 const Layout& terms) const {
  std::vector<SubAxes> dims(view_shape_.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    const int digit = digit_of(i);
    if (digit != kNone) dims[view_dim_of_place_[i]].push_back(digits_[digit]);
  }
  const SubAxes partial(terms.partial_axes().begin(), terms.partial_axes().end());
  return make_layout(terms.mesh(), dims, partial, terms.partial_op());
}

Digits cut_at_blocks(const Digits& digits, const Topology& topology) {
  Digits result = digits;
  const auto [process, host] = topology.block_sizes();
  for (int64_t block : {process, host}) {
    Digits finer;
    for (const Digit& digit : result) {
      const int64_t minor = block % digit.weight == 0 ? block / digit.weight : 1;
      const bool cuts = minor > 1 && minor < digit.size && digit.size % minor == 0;
      if (cuts) finer.push_back({digit.size / minor, digit.weight * minor});
      finer.push_back(cuts ? Digit{minor, digit.weight} : digit);
    }
    result = std::move(finer);
  }
  return result;
}

bool has_blocks(const Mesh& mesh, const Topology& topology) {
  return mesh.ids_are_positions() && !topology.num_devices().has_value();
}

LinkClass link_of_digit(const Mesh& mesh, const Digit& digit, const Topology& topology) {
  if (has_blocks(mesh, topology)) {
    // The digit stays within blocks that its whole range divides.
    const auto [process, host] = topology.block_sizes();
    const int64_t range = digit.size * digit.weight;
    const auto within = [&](int64_t block) { return block >= mesh.size() || block % range == 0; };
    if (within(process)) return LinkClass::kProcess;
    return within(host) ? LinkClass::kHost : LinkClass::kNetwork;
  }
  const absl::Span<const int> ids = mesh.device_ids();
  LinkClass farthest = LinkClass::kProcess;
  for (int64_t position = 0; position < mesh.size(); ++position) {
    const int64_t value = position / digit.weight % digit.size;
    if (value == 0) continue;
    const LinkClass link = topology.link(ids[position], ids[position - value * digit.weight]);
    farthest = std::max(farthest, link);
    if (farthest == LinkClass::kNetwork) break;
  }
  return farthest;
}

}  // namespace tessera::internal
