// SPDX-License-Identifier: Apache-2.0
//
// Counts against the lists that they are made of, and their one form of each value.
#include "collectives/counts.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "collectives/collective.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using testing::IsOk;
using testing::StatusIs;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// All lists of up to 4 counts of 0 to 2.
std::vector<std::vector<int64_t>> small_lists() {
  std::vector<std::vector<int64_t>> lists = {{}};
  for (size_t k = 0; k < lists.size(); ++k) {
    if (lists[k].size() == 4) continue;
    for (int64_t count = 0; count < 3; ++count) {
      std::vector<int64_t> longer = lists[k];
      longer.push_back(count);
      lists.push_back(longer);
    }
  }
  return lists;
}

TEST(CountsTest, SayWhatTheirListSays) {
  for (const std::vector<int64_t>& list : small_lists()) {
    SCOPED_TRACE(absl::StrJoin(list, " "));
    const Counts counts = Counts::of(list);
    ASSERT_EQ(counts.size(), static_cast<int>(list.size()));
    bool equal = true;
    for (int k = 0; k <= counts.size(); ++k) {
      EXPECT_EQ(counts.sum_before(k), std::accumulate(list.begin(), list.begin() + k, int64_t{0}));
      if (k == counts.size()) break;
      EXPECT_EQ(counts[k], list[k]);
      equal &= list[k] == list[0];
    }
    EXPECT_EQ(counts.sum(), std::accumulate(list.begin(), list.end(), int64_t{0}));
    EXPECT_EQ(counts.checked_sum(), counts.sum());
    EXPECT_EQ(counts.are_equal(), equal);
    EXPECT_EQ(counts.to_string(), absl::StrJoin(list, ", "));
  }
}

TEST(CountsTest, AreEqualWhereTheListsAreAndHashThen) {
  const std::vector<std::vector<int64_t>> lists = small_lists();
  std::set<uint64_t> hashes;
  for (const std::vector<int64_t>& a : lists) {
    EXPECT_EQ(Counts::of(a).hash(), Counts::of(a).hash());
    hashes.insert(Counts::of(a).hash());
    for (const std::vector<int64_t>& b : lists) EXPECT_EQ(Counts::of(a) == Counts::of(b), a == b);
  }
  EXPECT_EQ(lists.size(), 1u + 3 + 9 + 27 + 81);
  EXPECT_EQ(hashes.size(), lists.size());
}

TEST(CountsTest, AListOfEqualNumbersIsEqualParts) {
  for (const int size : {0, 1, 2, 7, 100}) {
    for (const int64_t each : {int64_t{0}, int64_t{1}, int64_t{8}, int64_t{-3}, kMax}) {
      const std::vector<int64_t> list(size, each);
      const Counts listed = Counts::of(list);
      const Counts equal = Counts::equal(size, each);
      EXPECT_EQ(listed, equal);
      EXPECT_EQ(listed.hash(), equal.hash());
      EXPECT_TRUE(listed.are_equal());
      EXPECT_EQ(equal.to_string(), absl::StrJoin(list, ", "));
      EXPECT_EQ(equal.checked_sum(), listed.checked_sum());
    }
  }
  EXPECT_EQ(Counts(), Counts::of({}));
  EXPECT_EQ(Counts(), Counts::equal(0, 5));
  // Equal parts are not hashed as a list of two counts.
  EXPECT_NE(Counts::equal(3, 2).hash(), Counts::of({3, 2}).hash());
}

// The hash goes from process to process, which may be of different builds.
TEST(CountsTest, HashIsStable) {
  EXPECT_EQ(Counts::equal(4, 8).hash(), 0xd73b80772211d644u);
  EXPECT_EQ(Counts::of({3, 5}).hash(), 0xcabe7cdf407b516du);
}

TEST(CountsTest, NoSumOfNegativeOrTooManyElements) {
  const std::vector<std::vector<int64_t>> wrong = {
      {-1}, {-1, -1}, {9, -1}, {-1, 9}, {kMax, kMax}, {kMax, 1}, {1, 0, kMax}, {kMax / 2, kMax, 3}};
  for (const std::vector<int64_t>& list : wrong) {
    EXPECT_EQ(Counts::of(list).checked_sum(), std::nullopt) << absl::StrJoin(list, " ");
  }
  EXPECT_EQ(Counts::equal(4, kMax / 4 + 1).checked_sum(), std::nullopt);
  EXPECT_EQ(Counts::equal(4, kMax / 4).checked_sum(), kMax / 4 * 4);
  EXPECT_EQ(Counts::of({kMax, 0}).checked_sum(), kMax);
}

TEST(CountsTest, CopiesStayWhenOneIsAssigned) {
  Counts first = Counts::of({1, 2, 3});
  const Counts second = first;
  first = Counts::equal(2, 7);
  EXPECT_EQ(first.to_string(), "7, 7");
  EXPECT_EQ(second.to_string(), "1, 2, 3");
}

// The mistakes that validate() finds in the counts of a call.
struct WrongCase {
  const char* name;
  OpKind kind;
  Counts counts;
  int64_t count;
  const char* message;
};
std::vector<WrongCase> wrong_cases() {
  return {
      {"equal_parts_of_fewer", OpKind::kAllGather, Counts::equal(3, 1), 0,
       "counts has 3 entries, and the group has 2 members; give one for each"},
      {"negative", OpKind::kGather, Counts::of({4, -1}), 0,
       "counts[1] is -1; a count is 0 or more"},
      {"equal_and_negative", OpKind::kScatter, Counts::equal(2, -1), 0,
       "counts[0] is -1; a count is 0 or more"},
      {"too_many", OpKind::kReduceScatter, Counts::of({1, kMax}), 0,
       "counts 1, 9223372036854775807 are more elements than a 64-bit integer counts; use smaller "
       "counts"},
      {"equal_and_too_many", OpKind::kAllGather, Counts::equal(2, kMax), 0,
       "counts 9223372036854775807, 9223372036854775807 are more elements than a 64-bit integer "
       "counts; use smaller counts"},
      {"count_of_unequal_parts", OpKind::kAllToAll, Counts::of({5, 3}), 8,
       "count is 8, and its 2 parts are not equal; make count 0 where they differ"},
      {"count_of_other_parts", OpKind::kAllToAll, Counts::equal(2, 3), 8,
       "count is 8, and its 2 parts are not equal; make count 0 where they differ"},
  };
}

class WrongCountsTest : public ::testing::TestWithParam<WrongCase> {};

TEST_P(WrongCountsTest, AreRefused) {
  const CollectiveSpec spec = {.kind = GetParam().kind,
                               .count = GetParam().count,
                               .counts = GetParam().counts,
                               .received_counts = GetParam().counts};
  EXPECT_THAT(Collective::make({.num_members = 2, .position = 0}, spec).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Cases, WrongCountsTest, ::testing::ValuesIn(wrong_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(WrongCountsTest, OthersAreNot) {
  for (const Counts& counts : {Counts::of({5, 3}), Counts::equal(2, 4)}) {
    for (const int64_t count : {int64_t{0}, counts.are_equal() ? int64_t{8} : int64_t{0}}) {
      const CollectiveSpec spec = {
          .kind = OpKind::kAllToAll, .count = count, .counts = counts, .received_counts = counts};
      EXPECT_THAT(Collective::make({.num_members = 2, .position = 0}, spec).status(), IsOk());
    }
  }
}

}  // namespace
}  // namespace tessera
