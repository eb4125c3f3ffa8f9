// SPDX-License-Identifier: Apache-2.0
//
// What may be given as Dims, and the dims that it is.
#include "base/dims.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> dims_of_rank_3(const Dims& dims) { return dims.of_rank(3); }

TEST(DimsTest, AreOneDimAListOrAll) {
  const std::vector<int64_t> list = {2, 0};
  EXPECT_THAT(dims_of_rank_3(1), ElementsAre(1));
  EXPECT_THAT(dims_of_rank_3(int64_t{-1}), ElementsAre(-1));
  EXPECT_THAT(dims_of_rank_3(0), ElementsAre(0));
  EXPECT_THAT(dims_of_rank_3({0}), ElementsAre(0));
  EXPECT_THAT(dims_of_rank_3({0, -1}), ElementsAre(0, -1));
  EXPECT_THAT(dims_of_rank_3(list), ElementsAre(2, 0));
  EXPECT_THAT(dims_of_rank_3(absl::MakeConstSpan(list).subspan(1)), ElementsAre(0));
  EXPECT_THAT(dims_of_rank_3(kAllDims), ElementsAre(0, 1, 2));
}

TEST(DimsTest, AnEmptyListIsNoDim) {
  EXPECT_THAT(dims_of_rank_3({}), ElementsAre());
  EXPECT_EQ(Dims({}).list(), std::vector<int64_t>());
  EXPECT_EQ(Dims(kAllDims).list(), std::nullopt);
}

}  // namespace
}  // namespace tessera
