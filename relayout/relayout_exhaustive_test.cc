// SPDX-License-Identifier: Apache-2.0
//
// A sample of the relayouts that tools/soak runs for hours: every n-th relayout of small meshes,
// run in full, and random relayouts of large meshes that are only planned.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "relayout/testing/random_relayouts.h"
#include "relayout/testing/small_relayouts.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seed.h"

namespace tessera::testing {
namespace {

// Primes, so that no sample falls in step with the number of layouts.
constexpr int64_t kStride = testing::kSanitized ? 20011 : 2003;
constexpr int kRandomPlans = testing::kSanitized ? 1000 : 8000;

TEST(SmallRelayoutsTest, MeshesAndLayoutsAreAllThere) {
  // Ordered triples, pairs and single sizes with a product of at most 8.
  EXPECT_EQ(small_meshes(3, 8).size(), 8 + 20 + 38);
  // For a mesh of m prime axes: sum over k of C(m,k) k! C(k+r-1, r-1) ways to place k of them on r
  // dims, and 2^(m-k) subsets of the others that are partial.
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh cube, Mesh::parse("{x=2, y=2, z=2}"));
  EXPECT_EQ(every_layout(cube, 2, {}).size(), 1 + 6 + 18 + 24);
  EXPECT_EQ(every_layout(cube, 3, {ReduceOp::kSum}).size(), 8 + 36 + 72 + 60);
  // 2 * 3 and 3 * 2: [x], [-], and each of the four parts.
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh six, Mesh::parse("{x=6}"));
  EXPECT_EQ(every_layout(six, 1, {}).size(), 2 + 4 + 2);
}

TEST(SmallRelayoutsTest, SharesTogetherAreAll) {
  const SmallRelayouts all({});
  int64_t seen = 0;
  int64_t sum = 0;
  for (int64_t share = 0; share < 3; ++share) {
    all.for_each(share, 3, [&](int64_t number, const RelayoutCase&) {
      EXPECT_EQ(number % 3, share);
      ++seen;
      sum += number;
      return true;
    });
  }
  EXPECT_EQ(seen, all.size());
  EXPECT_EQ(sum, all.size() * (all.size() - 1) / 2);
}

TEST(SmallRelayoutsTest, ASampleKeepsEveryPromise) {
  const SmallRelayouts all({ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kAvg});
  int64_t checked = 0;
  all.for_each(0, kStride, [&](int64_t number, const RelayoutCase& relayout) {
    EXPECT_EQ(check_relayout_exhaustively(relayout), "")
        << "number " << number << ": " << relayout.to_string();
    ++checked;
    return !::testing::Test::HasFailure();
  });
  std::cout << checked << " of " << all.size() << " relayouts, every " << kStride << "th\n";
  EXPECT_EQ(checked, (all.size() + kStride - 1) / kStride);
}

TEST(RandomRelayoutsTest, PlansOfLargeMeshesKeepTheirPromises) {
  RandomRelayouts relayouts(test_seed(20240301));
  int64_t largest = 0;
  for (int i = 0; i < kRandomPlans; ++i) {
    const RelayoutCase relayout = relayouts.next();
    SCOPED_TRACE(absl::StrCat("number ", i, ": ", relayout.to_string()));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RelayoutPlan plan,
        plan_relayout(relayout.from, relayout.to, relayout.shape, DType::kFloat32));
    const int64_t size = relayout.to.mesh().size();
    ASSERT_EQ(check_plan(plan, {0, i % size}), "");
    largest = std::max(largest, size);
  }
  EXPECT_GT(largest, 30000);
}

}  // namespace
}  // namespace tessera::testing
