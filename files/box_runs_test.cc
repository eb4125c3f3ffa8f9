// SPDX-License-Identifier: Apache-2.0
//
// Runs of boxes against an oracle that places single elements.
#include "files/box_runs.h"

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/seed.h"

namespace tessera::files {
namespace {

using ::testing::ElementsAre;

// Offset in the piece, offset in the target, bytes.
struct RunBytes {
  int64_t from;
  int64_t to;
  int64_t bytes;

  friend bool operator==(const RunBytes& a, const RunBytes& b) = default;
};

std::vector<RunBytes> runs(const Box& piece, const Box& wanted, const Box& target, int64_t bytes) {
  std::vector<RunBytes> result;
  for_each_run(piece, wanted, target, bytes, [&](int64_t from, int64_t to, int64_t size) {
    result.push_back({from, to, size});
  });
  return result;
}

// The place of an element in the row-major memory of a box; nothing where it is not in the box.
std::optional<int64_t> place_in(const Box& box, const std::vector<int64_t>& index) {
  int64_t place = 0;
  for (size_t d = 0; d < index.size(); ++d) {
    if (index[d] < box.offsets[d] || index[d] >= box.offsets[d] + box.sizes[d]) return std::nullopt;
    place = place * box.sizes[d] + index[d] - box.offsets[d];
  }
  return place;
}

TEST(BoxRunsTest, RowsGoToTheirPlaces) {
  const Box piece = {{0, 0}, {4, 3}};
  const Box rows = {{0, 0}, {2, 6}};
  EXPECT_THAT(runs(piece, rows, rows, 4), ElementsAre(RunBytes{0, 0, 12}, RunBytes{12, 24, 12}));
}

TEST(BoxRunsTest, RunsAreAsLongAsBothAllow) {
  const Box shape = {{0, 0, 0}, {2, 3, 4}};
  EXPECT_THAT(runs(shape, shape, shape, 2), ElementsAre(RunBytes{0, 0, 48}));
  // Whole rows of the piece, which are whole rows of the target.
  EXPECT_THAT(runs(shape, {{0, 1, 0}, {2, 2, 4}}, {{0, 1, 0}, {2, 2, 4}}, 1),
              ElementsAre(RunBytes{4, 0, 8}, RunBytes{16, 8, 8}));
  // One dim of one index does not end a run: there is only one.
  EXPECT_THAT(runs(shape, {{1, 1, 1}, {1, 1, 2}}, {{1, 1, 1}, {1, 1, 2}}, 1),
              ElementsAre(RunBytes{17, 0, 2}));
}

TEST(BoxRunsTest, ScalarsAndEmptyBoxes) {
  EXPECT_THAT(runs({}, {}, {}, 8), ElementsAre(RunBytes{0, 0, 8}));
  EXPECT_THAT(runs({{0}, {4}}, {{4}, {2}}, {{4}, {2}}, 8), ElementsAre());
  // The product of the sizes but the last does not fit 64 bits.
  const int64_t large = int64_t{1} << 40;
  const Box none = {{0, 0, 0}, {0, large, large}};
  EXPECT_THAT(runs(none, none, none, 8), ElementsAre());
}

Box random_box(std::mt19937_64& random, const Box& in) {
  Box box = in;
  for (size_t d = 0; d < in.sizes.size(); ++d) {
    const int64_t begin = static_cast<int64_t>(random() % (in.sizes[d] + 1));
    box.offsets[d] = in.offsets[d] + begin;
    box.sizes[d] = static_cast<int64_t>(random() % (in.sizes[d] - begin + 1));
    if (random() % 2 == 0) {  // Whole dims are where runs merge.
      box.offsets[d] = in.offsets[d];
      box.sizes[d] = in.sizes[d];
    }
  }
  return box;
}

TEST(BoxRunsTest, RandomBoxesAgreeWithSingleElements) {
  std::mt19937_64 random(tessera::testing::test_seed());
  for (int trial = 0; trial < 20000; ++trial) {
    Shape shape(random() % 5);
    for (int64_t& size : shape) size = 1 + static_cast<int64_t>(random() % 4);
    const Box whole = whole_box(shape);
    const Box piece = random_box(random, whole);
    const Box target = random_box(random, whole);
    const Box wanted = random_box(random, target);
    const int64_t element_bytes = 1 + static_cast<int64_t>(random() % 3);
    SCOPED_TRACE(absl::StrCat(piece.to_string(), " ", wanted.to_string(), " ", target.to_string()));

    // For each byte of the piece, where it goes.
    std::vector<RunBytes> expected;
    std::vector<int64_t> index(shape.size(), 0);
    for (int64_t n = num_elements(shape); n > 0; --n) {
      const std::optional<int64_t> from = place_in(piece, index);
      const std::optional<int64_t> to = place_in(target, index);
      if (from.has_value() && to.has_value() && place_in(wanted, index).has_value()) {
        const RunBytes element = {*from * element_bytes, *to * element_bytes, element_bytes};
        if (!expected.empty() && expected.back().from + expected.back().bytes == element.from &&
            expected.back().to + expected.back().bytes == element.to) {
          expected.back().bytes += element.bytes;
        } else {
          expected.push_back(element);
        }
      }
      for (size_t d = index.size(); d-- > 0;) {
        if (++index[d] < shape[d]) break;
        index[d] = 0;
      }
    }
    ASSERT_EQ(runs(piece, wanted, target, element_bytes), expected);
  }
}

}  // namespace
}  // namespace tessera::files
