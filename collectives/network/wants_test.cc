// SPDX-License-Identifier: Apache-2.0
//
// The invariants of wants.h, for every kind, group size and split of the members over two hosts:
// what a member finds on its host and what it wants of others are together all that it needs, and
// nothing reaches a host twice.
#include "collectives/network/wants.h"

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::network {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;

constexpr int64_t kElements = 1000;

// Member m is on this host where bit m is set.
Places places_of(int num_members, unsigned here) {
  std::vector<bool> is_here;
  for (int m = 0; m < num_members; ++m) is_here.push_back((here >> m & 1) != 0);
  return Places(std::move(is_here));
}

// Calls `body` for every group of 2 to 5 members, some of them here and some not.
template <class Body>
void for_each_split(Body body) {
  for (int n = 2; n <= 5; ++n) {
    for (unsigned here = 1; here + 1 < 1u << n; ++here) body(n, places_of(n, here));
  }
}

TEST(WantsTest, PullsFromOtherHosts) {
  for_each_split([](int n, const Places& places) {
    std::vector<int64_t> counts;
    for (int m = 0; m < n; ++m) counts.push_back(m * 7);  // member 0 has nothing
    for (int self = 0; self < n; ++self) {
      if (!places.is_here(self)) continue;
      const auto all_gather =
          Collective::all_gather({n, self}, DType::kFloat32, Counts::of(counts));
      ASSERT_THAT(all_gather, IsOk());
      std::vector<BoxPull> made;
      const auto pulls = (*all_gather)->pulls({}, made);
      ASSERT_THAT(pulls, IsOk());
      std::set<int> sources;
      for (const BoxPull& pull : *pulls) {
        if (places.is_here(pull.source) && !pull.box.is_empty()) sources.insert(pull.source);
      }
      for (const Want& want : wants_of_inputs(**all_gather, *pulls, places)) {
        EXPECT_FALSE(places.is_here(want.server));
        EXPECT_EQ(want.box.num_elements(), counts[want.server]);
        EXPECT_TRUE(sources.insert(want.server).second) << "twice";
      }
      EXPECT_EQ(static_cast<int>(sources.size()), n - 1);
      EXPECT_TRUE(wants_of_sums(**all_gather, places).empty());
    }
  });
}

TEST(WantsTest, EveryTermOfTheOwnPart) {
  for_each_split([](int n, const Places& places) {
    for (int self = 0; self < n; ++self) {
      if (!places.is_here(self)) continue;
      const auto sum =
          Collective::all_reduce({n, self}, DType::kFloat32, ReduceOp::kSum, kElements);
      ASSERT_THAT(sum, IsOk());
      const Box own = chunk_box(**sum, self);
      std::set<int> servers;
      for (const Want& want : wants_of_inputs(**sum, {}, places)) {
        EXPECT_EQ(want.box, own);
        EXPECT_EQ(want.held.num_elements(), kElements);
        EXPECT_FALSE(places.is_here(want.server));
        servers.insert(want.server);
      }
      EXPECT_EQ(static_cast<int>(servers.size()), own.is_empty() ? 0 : n - places.num_here());
    }
  });
}

// Each host that needs the sums gets those of all chunks, each once.
TEST(WantsTest, SumsOfOtherHosts) {
  for_each_split([](int n, const Places& places) {
    for (const bool is_for_all : {true, false}) {
      const int root = n - 1;
      int64_t here = 0;
      int64_t fetched = 0;
      std::set<int64_t> firsts;
      for (int self = 0; self < n; ++self) {
        if (!places.is_here(self)) continue;
        const auto sum =
            is_for_all
                ? Collective::all_reduce({n, self}, DType::kFloat32, ReduceOp::kSum, kElements)
                : Collective::reduce({n, self}, DType::kFloat32, ReduceOp::kSum, kElements, root);
        ASSERT_THAT(sum, IsOk());
        EXPECT_TRUE(has_second_step(**sum));
        here += chunk_box(**sum, self).num_elements();
        for (const Want& want : wants_of_sums(**sum, places)) {
          fetched += want.box.num_elements();
          EXPECT_TRUE(firsts.insert(want.box.offsets[0]).second) << "twice";
          EXPECT_FALSE(places.is_here(want.server));
        }
      }
      const bool is_wanted = is_for_all || places.is_here(root);
      EXPECT_EQ(fetched, is_wanted ? kElements - here : 0);
    }
  });
}

TEST(WantsTest, SumsThatStay) {
  const auto sum =
      Collective::reduce_scatter({4, 1}, DType::kInt32, ReduceOp::kSum, Counts::equal(4, 3));
  ASSERT_THAT(sum, IsOk());
  EXPECT_FALSE(has_second_step(**sum));
  EXPECT_TRUE(wants_of_sums(**sum, places_of(4, 3)).empty());
  EXPECT_EQ(wants_of_inputs(**sum, {}, places_of(4, 3)).size(), 2u);
}

TEST(RequestTest, ComesBackAsItWas) {
  Request request;
  request.of_sums = true;
  request.parts.push_back({{{1, 2}, {3, 4}}, {{0, 0}, {9, 9}}, 77});
  request.parts.push_back({{{}, {}}, {{}, {}}, kNumTags - 1});  // a scalar
  const StatusOr<Request> read = decode_request(encode(request));
  ASSERT_THAT(read, IsOk());
  EXPECT_TRUE(read->of_sums);
  ASSERT_EQ(read->parts.size(), 2u);
  EXPECT_EQ(read->parts[0].box, request.parts[0].box);
  EXPECT_EQ(read->parts[0].held, request.parts[0].held);
  EXPECT_EQ(read->parts[0].tag, 77u);
  EXPECT_EQ(read->parts[1].box.num_elements(), 1);
}

TEST(RequestTest, MalformedOnesAreRefused) {
  Request request;
  request.parts.push_back({{{1}, {3}}, {{0}, {9}}, 1});
  const std::vector<std::byte> good = encode(request);
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(decode_request(absl::MakeConstSpan(good).subspan(0, size)),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << size;
  }
  request.parts[0].tag = kNumTags;
  EXPECT_THAT(decode_request(encode(request)), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace tessera::network
