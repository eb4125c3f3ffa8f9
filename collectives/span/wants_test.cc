// SPDX-License-Identifier: Apache-2.0
//
// The invariants of wants.h, for every kind, group size and split of the members over two hosts:
// the boxes on a member's host and the boxes that it wants of others are together all that it
// needs, and nothing reaches a host twice.
#include "collectives/span/wants.h"

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::span {
namespace {

using ::tessera::testing::IsOk;

constexpr int64_t kElements = 1000;

// Member m is on this host where bit m is set.
Places places_of(int num_members, unsigned here) {
  std::vector<int> hosts;
  for (int m = 0; m < num_members; ++m) hosts.push_back((here >> m & 1) != 0 ? 7 : 3);
  return Places(hosts, 7);
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
    std::set<int64_t> fetched;                            // by all members here
    for (int self = 0; self < n; ++self) {
      if (!places.is_here(self)) continue;
      const auto all_gather = Collective::make(
          {n, self},
          {.kind = OpKind::kAllGather, .dtype = DType::kFloat32, .counts = Counts::of(counts)});
      ASSERT_THAT(all_gather, IsOk());
      std::vector<BoxPull> made;
      const auto pulls = (*all_gather)->pulls({}, made);
      ASSERT_THAT(pulls, IsOk());
      for (const Want& want : wants_of_inputs(**all_gather, *pulls, places)) {
        EXPECT_FALSE(places.is_here(want.server));
        EXPECT_TRUE(contains(want.held, want.box));
        for (int64_t i = 0; i < want.box.sizes[0]; ++i) {
          EXPECT_TRUE(fetched.insert(want.box.offsets[0] + i).second) << "twice";
        }
      }
      EXPECT_TRUE(wants_of_sums(**all_gather, places).empty());
    }
    int64_t far = 0;
    for (int m = 0; m < n; ++m) far += places.is_here(m) ? 0 : counts[m];
    EXPECT_EQ(static_cast<int64_t>(fetched.size()), far);
  });
}

// The bytes that a member fetches for the others of its host are about as many as they fetch for
// it.
TEST(WantsTest, SharesAreEqual) {
  constexpr int kHere = 3;
  for (int self = 0; self < kHere; ++self) {
    const auto broadcast = Collective::make(
        {5, self},
        {.kind = OpKind::kBroadcast, .dtype = DType::kFloat32, .root = 4, .count = kElements});
    ASSERT_THAT(broadcast, IsOk());
    std::vector<BoxPull> made;
    const auto pulls = (*broadcast)->pulls({}, made);
    ASSERT_THAT(pulls, IsOk());
    const Places places = places_of(5, (1u << kHere) - 1);
    const std::vector<Want> wants = wants_of_inputs(**broadcast, *pulls, places);
    ASSERT_EQ(wants.size(), 1u);
    EXPECT_NEAR(wants[0].box.sizes[0], kElements / kHere, 32);
    EXPECT_EQ(wants[0].box.offsets[0] % 16, 0) << "a line of memory is cut";
  }
}

TEST(WantsTest, EveryTermOfTheOwnPart) {
  for_each_split([](int n, const Places& places) {
    for (int self = 0; self < n; ++self) {
      if (!places.is_here(self)) continue;
      const auto sum = Collective::make(
          {n, self}, {.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .count = kElements});
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

// In a reduction by host each member asks one member of each other host, and each knows how many
// ask it.
TEST(WantsTest, OneSumOfEachHost) {
  const std::vector<std::vector<int>> forms = {
      {0, 1}, {0, 0, 1, 1}, {0, 1, 0, 1}, {1, 0, 0, 0}, {0, 1, 1, 2, 0}, {2, 1, 1, 2, 2, 0, 2}};
  for (const std::vector<int>& hosts : forms) {
    const int n = static_cast<int>(hosts.size());
    for (const int64_t count : {int64_t{1}, int64_t{40}, kElements}) {
      std::vector<int> expected(n);
      std::vector<int> asked(n);
      std::vector<int> expected_sums(n);
      std::vector<int> asked_sums(n);
      for (int self = 0; self < n; ++self) {
        const Places places(hosts, hosts[self]);
        const auto sum = Collective::make({n, self}, {.kind = OpKind::kAllReduce,
                                                      .dtype = DType::kFloat32,
                                                      .count = count,
                                                      .order = ReductionOrder::kByHost});
        ASSERT_THAT(sum, IsOk());
        std::set<int> of_hosts;
        for (const Want& want : wants_of_inputs(**sum, {}, places)) {
          ++asked[want.server];
          EXPECT_NE(hosts[want.server], hosts[self]);
          EXPECT_TRUE(of_hosts.insert(hosts[want.server]).second) << "twice";
        }
        const bool has_part = !chunk_box(**sum, self).is_empty();
        EXPECT_EQ(of_hosts.size(), has_part ? places.by_host().size() - 1 : 0);
        for (const Want& want : wants_of_sums(**sum, places)) ++asked_sums[want.server];
        expected[self] = num_askers_of_inputs(**sum, places).value_or(-1);
        expected_sums[self] = num_askers_of_sums(**sum, places);
      }
      EXPECT_EQ(asked, expected);
      EXPECT_EQ(asked_sums, expected_sums);
    }
  }
}

// Each host that needs the sums gets the sums of all chunks, each once.
TEST(WantsTest, SumsOfOtherHosts) {
  for_each_split([](int n, const Places& places) {
    for (const bool is_for_all : {true, false}) {
      const int root = n - 1;
      int64_t here = 0;
      int64_t fetched = 0;
      std::set<int64_t> firsts;
      for (int self = 0; self < n; ++self) {
        if (!places.is_here(self)) continue;
        const auto sum = is_for_all ? Collective::make({n, self}, {.kind = OpKind::kAllReduce,
                                                                   .dtype = DType::kFloat32,
                                                                   .count = kElements})
                                    : Collective::make({n, self}, {.kind = OpKind::kReduce,
                                                                   .dtype = DType::kFloat32,
                                                                   .root = root,
                                                                   .count = kElements});
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
  const auto sum = Collective::make(
      {4, 1},
      {.kind = OpKind::kReduceScatter, .dtype = DType::kInt32, .counts = Counts::equal(4, 3)});
  ASSERT_THAT(sum, IsOk());
  EXPECT_FALSE(has_second_step(**sum));
  EXPECT_TRUE(wants_of_sums(**sum, places_of(4, 3)).empty());
  EXPECT_EQ(wants_of_inputs(**sum, {}, places_of(4, 3)).size(), 2u);
}

TEST(RequestTest, ComesBackAsItWas) {
  Request request;
  request.of_sums = true;
  request.parts.push_back({{{1, 2}, {3, 4}}, {{0, 0}, {9, 9}}, 77});
  request.parts.push_back({{{}, {}}, {{}, {}}, transport::kNumTags - 1});  // a scalar
  const std::optional<Request> read = decode_request(encode(request));
  ASSERT_TRUE(read.has_value());
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
    EXPECT_FALSE(decode_request(absl::MakeConstSpan(good).subspan(0, size)).has_value()) << size;
  }
  request.parts[0].tag = transport::kNumTags;
  EXPECT_FALSE(decode_request(encode(request)).has_value());
}

}  // namespace
}  // namespace tessera::span
