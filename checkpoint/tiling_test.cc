// SPDX-License-Identifier: Apache-2.0
//
// check_tiling() against an oracle that counts the boxes of each element, its messages, and its
// time.
#include "checkpoint/tiling.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seed.h"

namespace tessera::checkpoint::internal {
namespace {

using tessera::testing::IsOk;
using tessera::testing::StatusIs;
using ::testing::HasSubstr;

Status check(const Shape& shape, const std::vector<Box>& boxes) {
  std::vector<Piece> pieces;
  for (const Box& box : boxes) pieces.push_back({box, 0, 0});
  return check_tiling("w", shape, pieces);
}

// How many boxes hold each element, in row-major order.
std::vector<int> counts(const Shape& shape, const std::vector<Box>& boxes) {
  std::vector<int> result;
  std::vector<int64_t> index(shape.size(), 0);
  for (int64_t n = num_elements(shape); n > 0; --n) {
    const Box element = {index, std::vector<int64_t>(shape.size(), 1)};
    result.push_back(static_cast<int>(std::count_if(
        boxes.begin(), boxes.end(), [&](const Box& box) { return contains(box, element); })));
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
  return result;
}

// Cuts the box at random places into at most `most` boxes.
void cut(std::mt19937_64& random, Box box, int most, std::vector<Box>* boxes) {
  const size_t d = box.sizes.empty() ? 0 : random() % box.sizes.size();
  if (most == 1 || box.sizes.empty() || box.sizes[d] < 2) return boxes->push_back(box);
  Box minor = box;
  box.sizes[d] = 1 + static_cast<int64_t>(random() % (box.sizes[d] - 1));
  minor.offsets[d] += box.sizes[d];
  minor.sizes[d] -= box.sizes[d];
  cut(random, box, most / 2, boxes);
  cut(random, minor, most - most / 2, boxes);
}

TEST(TilingTest, RandomTilingsAgreeWithTheOracle) {
  std::mt19937_64 random(tessera::testing::test_seed());
  int tiled = 0;
  const int trials = tessera::testing::kSanitized ? 500 : 5000;
  for (int trial = 0; trial < trials; ++trial) {
    Shape shape(random() % 4);
    for (int64_t& size : shape) size = static_cast<int64_t>(random() % 6);
    std::vector<Box> boxes;
    if (num_elements(shape) > 0) cut(random, whole_box(shape), 1 + random() % 12, &boxes);
    std::shuffle(boxes.begin(), boxes.end(), random);
    // Half of them with one change that keeps the boxes inside the shape.
    if (!boxes.empty() && !shape.empty() && random() % 2 == 0) {
      Box& box = boxes[random() % boxes.size()];
      const size_t d = random() % shape.size();
      box.offsets[d] = static_cast<int64_t>(random() % shape[d]);
      box.sizes[d] = static_cast<int64_t>(random() % (shape[d] - box.offsets[d] + 1));
    }
    const std::vector<int> held = counts(shape, boxes);
    const bool expected = std::all_of(held.begin(), held.end(), [](int n) { return n == 1; });
    const Status status = check(shape, boxes);
    ASSERT_EQ(status.ok(), expected) << status << shape_to_string(shape);
    tiled += expected ? 1 : 0;
    if (expected) continue;
    // The reason is right: the first element that is missing, or two boxes with a common element.
    const auto missing = std::find(held.begin(), held.end(), 0);
    const bool overlaps = std::any_of(held.begin(), held.end(), [](int n) { return n > 1; });
    if (overlaps) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in common")));
      continue;
    }
    int64_t element = missing - held.begin();
    std::vector<int64_t> index(shape.size());
    for (size_t d = shape.size(); d-- > 0; element /= shape[d]) index[d] = element % shape[d];
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr(absl::StrCat("no piece holds element ",
                                                        shape_to_string(index), " of"))));
  }
  EXPECT_GT(tiled, trials / 4);
}

TEST(TilingTest, MessagesNameTheBoxes) {
  EXPECT_EQ(check({9}, {{{0}, {5}}, {{4}, {5}}}).message(),
            "tensor \"w\": its pieces [0:5] and [4:9] have elements in common");
  EXPECT_EQ(check({9}, {{{0}, {4}}, {{5}, {4}}}).message(),
            "tensor \"w\": no piece holds element [4] of the shape [9]");
  EXPECT_EQ(check({3, 3}, {{{0, 0}, {2, 3}}, {{2, 0}, {1, 2}}}).message(),
            "tensor \"w\": no piece holds element [2, 2] of the shape [3, 3]");
  EXPECT_EQ(check({9}, {{{4}, {6}}}).message(),
            "tensor \"w\": the box [4:10] of a piece is not inside the shape [9]");
  EXPECT_EQ(check({3, 3}, {{{0}, {3}}}).message(),
            "tensor \"w\": a piece has a box of 1 dims, the shape [3, 3] has 2");
  EXPECT_EQ(check({}, {}).message(), "tensor \"w\": no piece holds element [] of the shape []");
  EXPECT_EQ(check({}, {{{}, {}}, {{}, {}}}).message(),
            "tensor \"w\": its pieces [] and [] have elements in common");
}

TEST(TilingTest, EmptyBoxesAreIgnored) {
  EXPECT_THAT(check({4}, {{{0}, {4}}, {{2}, {0}}, {{4}, {0}}}), IsOk());
  EXPECT_THAT(check({0, 5}, {}), IsOk());
  EXPECT_THAT(check({0, 5}, {{{0, 1}, {0, 2}}}), IsOk());
  EXPECT_THAT(check({4}, {{{0}, {4}}, {{5}, {0}}}), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(TilingTest, NumbersAtTheEndOfInt64) {
  const int64_t max = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(check({max}, {{{0}, {max - 1}}, {{max - 1}, {1}}}), IsOk());
  EXPECT_THAT(check({max}, {{{1}, {max}}}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(check({max}, {{{max}, {max}}}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(check({max}, {{{-1}, {1}}}), StatusIs(absl::StatusCode::kInvalidArgument));
}

// Bricks: rows of boxes that begin at other places in each row. A sweep of either dim has many
// boxes open at many places.
TEST(TilingTest, AHundredThousandBricks) {
  constexpr int64_t kRows = 300;
  std::vector<Box> boxes;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t brick = 0; brick <= kRows; ++brick) {
      const int64_t begin = brick == 0 ? 0 : brick * kRows - row;
      const int64_t end = brick == kRows ? kRows * kRows + 1 : (brick + 1) * kRows - row;
      boxes.push_back({{row, begin}, {1, end - begin}});
    }
  }
  const Shape shape = {kRows, kRows * kRows + 1};
  EXPECT_THAT(check(shape, boxes), IsOk());
  // The message of an error is searched in bounded time.
  boxes.back().sizes[1] -= 1;
  EXPECT_THAT(check(shape, boxes), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace tessera::checkpoint::internal
