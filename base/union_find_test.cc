// SPDX-License-Identifier: Apache-2.0
//
// UnionFind against an oracle that renumbers whole sets.
#include "base/union_find.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

// The oracle gives each element the number of its set, and renumbers one whole set at each join.
TEST(UnionFindTest, AgreesWithRenumbering) {
  std::mt19937 random(1);
  for (int64_t size = 1; size <= 12; ++size) {
    for (int trial = 0; trial < 50; ++trial) {
      UnionFind sets(size);
      std::vector<int64_t> least(static_cast<size_t>(size));
      for (int64_t i = 0; i < size; ++i) least[i] = i;
      for (int64_t join = 0; join < size; ++join) {
        const auto a = static_cast<int64_t>(random() % static_cast<uint64_t>(size));
        const auto b = static_cast<int64_t>(random() % static_cast<uint64_t>(size));
        sets.unite(a, b);
        const int64_t from = std::max(least[a], least[b]);
        std::replace(least.begin(), least.end(), from, std::min(least[a], least[b]));
        for (int64_t i = 0; i < size; ++i) ASSERT_EQ(sets.root(i), least[i]) << size;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
