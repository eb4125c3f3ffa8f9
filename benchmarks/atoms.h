// SPDX-License-Identifier: Apache-2.0
//
// Atoms: the prime digits that two layouts on one mesh are made of.
//
//   [x, -] to [x:(2)2, y] on {x=4, y=3}:  atoms x:(1)2, x:(2)2, y:(1)3
//   from {{0, 1}, {}}, to {{1}, {2}}
#ifndef TESSERA_BENCHMARKS_ATOMS_H_
#define TESSERA_BENCHMARKS_ATOMS_H_

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "layout/layout.h"

namespace tessera::benchmarks {

// What splits each dim, major to minor, by number of the atom.
using AtomLists = std::vector<std::vector<int>>;

struct Atoms {
  Mesh mesh;
  std::vector<SubAxis> parts;  // By number: each of prime size.
  AtomLists from;
  AtomLists to;

  int count() const { return static_cast<int>(parts.size()); }
  int64_t prime(int atom) const { return parts[atom].size; }
  Layout layout(const AtomLists& lists) const;

  // Unimplemented where the meshes differ, a layout is partial, or an axis is cut at places that do
  // not divide each other.
  static StatusOr<Atoms> create(const Layout& from, const Layout& to);
};

// Where an atom is: the dim, or -1.
int dim_of(const AtomLists& lists, int atom);
bool is_prefix(const std::vector<int>& prefix, const std::vector<int>& list);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_ATOMS_H_
