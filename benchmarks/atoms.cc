// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/atoms.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"

namespace tessera::benchmarks {

StatusOr<Atoms> Atoms::create(const Layout& from, const Layout& to) {
  if (!(from.mesh() == to.mesh()) || from.is_partial() || to.is_partial()) {
    return absl::UnimplementedError("a baseline for one mesh, without partial axes");
  }
  Atoms atoms = {from.mesh(), {}, AtomLists(from.rank()), AtomLists(to.rank())};
  std::vector<std::set<int64_t>> borders(from.mesh().rank());
  for (int axis = 0; axis < from.mesh().rank(); ++axis) {
    borders[axis] = {1, from.mesh().axes()[axis].size};
  }
  for (const Layout* layout : {&from, &to}) {
    for (const std::vector<SubAxis>& dim : layout->dim_axes()) {
      for (const SubAxis& part : dim) {
        borders[part.axis].insert({part.pre, part.pre * part.size});
      }
    }
  }
  for (int axis = 0; axis < from.mesh().rank(); ++axis) {
    int64_t pre = 1;
    for (const int64_t border : borders[axis]) {
      if (border % pre != 0) return absl::UnimplementedError("an axis without common digits");
      for (int64_t p = 2; pre < border; ++p) {
        for (; (border / pre) % p == 0; pre *= p) atoms.parts.push_back({axis, pre, p});
      }
    }
  }
  const auto fill = [&](const Layout& layout, AtomLists* lists) {
    for (int dim = 0; dim < layout.rank(); ++dim) {
      for (const SubAxis& part : layout.dim_axes()[dim]) {
        for (int atom = 0; atom < atoms.count(); ++atom) {
          const SubAxis& digit = atoms.parts[atom];
          const bool inside = digit.axis == part.axis && digit.pre >= part.pre &&
                              digit.pre * digit.size <= part.pre * part.size;
          if (inside) (*lists)[dim].push_back(atom);
        }
      }
    }
  };
  fill(from, &atoms.from);
  fill(to, &atoms.to);
  return atoms;
}

Layout Atoms::layout(const AtomLists& lists) const {
  std::vector<DimSharding> dims(lists.size());
  for (size_t dim = 0; dim < lists.size(); ++dim) {
    for (const int atom : lists[dim]) {
      const SubAxis& part = parts[atom];
      dims[dim].push_back(
          absl::StrCat(mesh.axes()[part.axis].name, ":(", part.pre, ")", part.size));
    }
  }
  return *Layout::create(mesh, dims);
}

int dim_of(const AtomLists& lists, int atom) {
  for (size_t dim = 0; dim < lists.size(); ++dim) {
    if (std::find(lists[dim].begin(), lists[dim].end(), atom) != lists[dim].end()) {
      return static_cast<int>(dim);
    }
  }
  return -1;
}

bool is_prefix(const std::vector<int>& prefix, const std::vector<int>& list) {
  return prefix.size() <= list.size() && std::equal(prefix.begin(), prefix.end(), list.begin());
}

}  // namespace tessera::benchmarks
