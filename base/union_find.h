// SPDX-License-Identifier: Apache-2.0
//
// UnionFind: which of n elements, 0 to n-1, are joined, directly or by others.
//
// Galler and Fischer 1964, with path halving. Invariant: the root of a set is its smallest element.
// Not thread-safe.
#ifndef TESSERA_BASE_UNION_FIND_H_
#define TESSERA_BASE_UNION_FIND_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace tessera {

class UnionFind {
 public:
  explicit UnionFind(int64_t size) : parent_(static_cast<size_t>(size)) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }

  int64_t root(int64_t element) {
    while (parent_[element] != element) {
      element = parent_[element] = parent_[parent_[element]];
    }
    return element;
  }
  void unite(int64_t a, int64_t b) {
    a = root(a);
    b = root(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<int64_t> parent_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_UNION_FIND_H_
