// SPDX-License-Identifier: Apache-2.0
//
// Which value of a number stands, and which numbers are kept.
#include "job/coordinator/proposals.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

class ProposalsTest : public ::testing::Test {
 protected:
  std::string propose(const std::string& series, uint32_t number, const std::string& value) {
    return proposals_.propose(series, number, value, &is_new_);
  }

  Proposals proposals_;
  bool is_new_ = false;
};

TEST_F(ProposalsTest, TheFirstStands) {
  EXPECT_EQ(proposals_.find("a", 7), nullptr);
  EXPECT_EQ(propose("a", 7, "first"), "first");
  EXPECT_TRUE(is_new_);
  EXPECT_EQ(propose("a", 7, "second"), "first");
  EXPECT_FALSE(is_new_);
  EXPECT_EQ(*proposals_.find("a", 7), "first");
  EXPECT_EQ(propose("b", 7, "other series"), "other series");
  EXPECT_EQ(propose("a", 6, "other number"), "other number");
}

TEST_F(ProposalsTest, ASeriesKeepsItsLast) {
  propose("other", 1, "stays");
  constexpr uint32_t kLast = Proposals::kMostOfSeries + 3;
  for (uint32_t number = 1; number <= kLast; ++number) propose("a", number, "v");
  for (uint32_t number = 1; number <= kLast; ++number) {
    EXPECT_EQ(proposals_.is_forgotten("a", number), number <= 3) << number;
    EXPECT_EQ(propose("a", number, "late"), number <= 3 ? "late" : "v") << number;
    EXPECT_FALSE(is_new_);
  }
  EXPECT_FALSE(proposals_.is_forgotten("a", kLast + 1));
  EXPECT_EQ(propose("other", 1, "late"), "stays");
}

TEST_F(ProposalsTest, NumbersWrapAround) {
  for (uint32_t i = 0; i <= Proposals::kMostOfSeries; ++i) propose("a", i - 10, "v");
  EXPECT_TRUE(proposals_.is_forgotten("a", 0u - 10));
  EXPECT_FALSE(proposals_.is_forgotten("a", 0u - 9));
  EXPECT_EQ(*proposals_.find("a", 5), "v");
  EXPECT_FALSE(proposals_.is_forgotten("a", Proposals::kMostOfSeries));
}

// However many series there are, and however long their values.
TEST_F(ProposalsTest, AllTogetherAreBounded) {
  const std::string long_value(100'000, 'x');
  for (uint32_t i = 0; i < 2000; ++i) {
    EXPECT_EQ(propose(absl::StrCat("series ", i % 100), i, long_value), long_value);
    ASSERT_LE(proposals_.num_bytes(), Proposals::kMostBytes);
  }
  EXPECT_TRUE(proposals_.is_forgotten("series 0", 0));
  EXPECT_EQ(propose("series 99", 1999, "late"), long_value);
}

// A series that says much displaces what it has said itself, not the last word of the others.
TEST_F(ProposalsTest, TheLastOfASeriesStays) {
  propose("quiet", 1, "earlier");
  propose("quiet", 2, "last");
  const std::string long_value(500'000, 'x');
  for (uint32_t i = 0; i < 1000; ++i) propose(absl::StrCat("loud ", i % 2), i, long_value);
  EXPECT_TRUE(proposals_.is_forgotten("quiet", 1));
  EXPECT_EQ(*proposals_.find("quiet", 2), "last");
  EXPECT_EQ(*proposals_.find("loud 1", 999), long_value);
  // Last words alone are bounded, too.
  for (uint32_t i = 0; i < 100; ++i) propose(absl::StrCat("one ", i), 1, long_value);
  EXPECT_LE(proposals_.num_bytes(), Proposals::kMostBytes);
  EXPECT_TRUE(proposals_.is_forgotten("quiet", 2));
  EXPECT_EQ(*proposals_.find("one 99", 1), long_value);
}

TEST_F(ProposalsTest, TooManySeriesAreNotKept) {
  for (uint32_t i = 0; i < Proposals::kMostSeries; ++i) propose(absl::StrCat(i), 1, "v");
  const int64_t num_bytes = proposals_.num_bytes();
  EXPECT_EQ(propose("one more", 1, "v"), "v");
  EXPECT_EQ(proposals_.find("one more", 1), nullptr);
  EXPECT_EQ(proposals_.num_bytes(), num_bytes);
}

}  // namespace
}  // namespace tessera
