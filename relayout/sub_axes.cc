// SPDX-License-Identifier: Apache-2.0
//
// Positions as mixed-radix numbers, layouts as lists of their digits.
#include "relayout/sub_axes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tessera::internal {
namespace {

std::vector<int64_t> axis_strides(const Mesh& mesh) {
  std::vector<int64_t> strides(mesh.rank());
  int64_t stride = 1;
  for (int axis = mesh.rank() - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    stride *= mesh.axes()[axis].size;
  }
  return strides;
}

bool in_mesh_order(const SubAxis& a, const SubAxis& b) {
  return a.axis != b.axis ? a.axis < b.axis : a.pre < b.pre;
}

}  // namespace

Digits digits_of(const Mesh& mesh, absl::Span<const SubAxis> parts) {
  const std::vector<int64_t> strides = axis_strides(mesh);
  Digits digits;
  digits.reserve(parts.size());
  for (const SubAxis& part : parts) {
    const int64_t below = mesh.axes()[part.axis].size / (part.pre * part.size);
    digits.push_back({part.size, strides[part.axis] * below});
  }
  return digits;
}

int64_t num_values(const Digits& digits) {
  int64_t product = 1;
  for (const Digit& digit : digits) product *= digit.size;
  return product;
}

int64_t value_at(const Digits& digits, int64_t position) {
  int64_t value = 0;
  for (const Digit& digit : digits) {
    value = value * digit.size + position / digit.weight % digit.size;
  }
  return value;
}

int64_t offset_of(const Digits& digits, int64_t value) {
  int64_t offset = 0;
  for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) {
    offset += value % digit->size * digit->weight;
    value /= digit->size;
  }
  return offset;
}

bool overlaps(const SubAxis& a, const SubAxis& b) {
  if (a.axis != b.axis) return false;
  return b.pre % (a.pre * a.size) != 0 && a.pre % (b.pre * b.size) != 0;
}

bool overlaps_any(const SubAxis& part, absl::Span<const SubAxis> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const SubAxis& other) { return overlaps(part, other); });
}

bool contains_sub_axis(absl::Span<const SubAxis> parts, const SubAxis& part) {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

bool is_prefix(const SubAxes& prefix, const SubAxes& parts) {
  return prefix.size() <= parts.size() && std::equal(prefix.begin(), prefix.end(), parts.begin());
}

SubAxes all_sub_axes(absl::Span<const SubAxes> dims) {
  SubAxes all;
  for (const SubAxes& parts : dims) all.insert(all.end(), parts.begin(), parts.end());
  return all;
}

std::vector<SubAxes> dims_of(const Layout& layout) {
  return {layout.dim_axes().begin(), layout.dim_axes().end()};
}

// The borders of an axis are the products of sizes at which some part begins or ends. If each one
// divides the next, the axis is aligned: every part is a run of the same atoms.
Cuts::Cuts(const Layout& a, const Layout& b, absl::Span<const SubAxis> parts) {
  const Mesh& mesh = a.mesh();
  for (const MeshAxis& axis : mesh.axes()) {
    sizes_.push_back(axis.size);
    borders_.push_back({1, axis.size});
  }
  SubAxes all(parts.begin(), parts.end());
  for (const Layout* layout : {&a, &b}) {
    for (const std::vector<SubAxis>& dim : layout->dim_axes()) {
      all.insert(all.end(), dim.begin(), dim.end());
    }
    all.insert(all.end(), layout->partial_axes().begin(), layout->partial_axes().end());
  }
  for (const SubAxis& part : all) {
    borders_[part.axis].push_back(part.pre);
    borders_[part.axis].push_back(part.pre * part.size);
  }
  for (std::vector<int64_t>& borders : borders_) {
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    bool chain = true;
    for (size_t i = 1; i < borders.size(); ++i) chain &= borders[i] % borders[i - 1] == 0;
    aligned_.push_back(chain);
  }
}

bool Cuts::all_aligned() const {
  return std::all_of(aligned_.begin(), aligned_.end(), [](bool aligned) { return aligned; });
}

SubAxes Cuts::cut(absl::Span<const SubAxis> parts) const {
  SubAxes result;
  for (const SubAxis& part : parts) {
    if (!aligned_[part.axis]) {
      result.push_back(part);
      continue;
    }
    for (const SubAxis& atom : atoms(part.axis)) {
      if (overlaps(atom, part)) result.push_back(atom);
    }
  }
  return result;
}

SubAxes Cuts::atoms(int axis) const {
  SubAxes result;
  const std::vector<int64_t>& borders = borders_[axis];
  for (size_t i = 1; i < borders.size(); ++i) {
    result.push_back({axis, borders[i - 1], borders[i] / borders[i - 1]});
  }
  return result;
}

SubAxes complement(const Mesh& mesh, absl::Span<const SubAxis> parts) {
  SubAxes sorted(parts.begin(), parts.end());
  std::sort(sorted.begin(), sorted.end(), in_mesh_order);
  SubAxes result;
  size_t next = 0;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    int64_t pre = 1;
    for (; next < sorted.size() && sorted[next].axis == axis; ++next) {
      if (sorted[next].pre > pre) result.push_back({axis, pre, sorted[next].pre / pre});
      pre = sorted[next].pre * sorted[next].size;
    }
    const int64_t size = mesh.axes()[axis].size;
    if (size > pre) result.push_back({axis, pre, size / pre});
  }
  return result;
}

// The complement of the complement: parts in mesh order, with neighbours merged.
SubAxes normalised(const Mesh& mesh, SubAxes parts) {
  return complement(mesh, complement(mesh, parts));
}

std::string sub_axis_name(const Mesh& mesh, const SubAxis& part) {
  const MeshAxis& axis = mesh.axes()[part.axis];
  if (part.size == axis.size) return axis.name;
  return absl::StrCat(axis.name, ":(", part.pre, ")", part.size);
}

Layout make_layout(const Mesh& mesh, const std::vector<SubAxes>& dims, const SubAxes& partial,
                   std::optional<ReduceOp> op) {
  std::vector<DimSharding> names(dims.size());
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    for (const SubAxis& part : dims[dim]) names[dim].push_back(sub_axis_name(mesh, part));
  }
  StatusOr<Layout> layout = Layout::create(mesh, std::move(names));
  if (layout.ok() && !partial.empty()) {
    std::vector<std::string> axes;
    for (const SubAxis& part : partial) axes.push_back(sub_axis_name(mesh, part));
    layout = layout->with_partial(std::move(axes), *op);
  }
  TESSERA_CHECK(layout.ok(), "a layout derived from valid layouts is valid");
  return *std::move(layout);
}

}  // namespace tessera::internal
