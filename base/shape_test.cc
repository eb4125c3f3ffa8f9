// SPDX-License-Identifier: Apache-2.0
//
// Boxes against sets of elements: every pair of boxes of ranks 1 and 2 in a small space.
#include "base/shape.h"

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

using Element = std::vector<int64_t>;

std::set<Element> elements_of(const Box& box) {
  std::set<Element> elements = {{}};
  for (size_t dim = 0; dim < box.sizes.size(); ++dim) {
    std::set<Element> longer;
    for (const Element& element : elements) {
      for (int64_t i = 0; i < box.sizes[dim]; ++i) {
        Element next = element;
        next.push_back(box.offsets[dim] + i);
        longer.insert(next);
      }
    }
    elements = std::move(longer);
  }
  return elements;
}

std::vector<Box> all_boxes(int rank, int64_t space) {
  std::vector<Box> boxes = {{}};
  for (int dim = 0; dim < rank; ++dim) {
    std::vector<Box> longer;
    for (const Box& box : boxes) {
      for (int64_t offset = 0; offset <= space; ++offset) {
        for (int64_t size = 0; offset + size <= space; ++size) {
          longer.push_back(box);
          longer.back().offsets.push_back(offset);
          longer.back().sizes.push_back(size);
        }
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

class BoxPairsTest : public ::testing::TestWithParam<int> {};

TEST_P(BoxPairsTest, AgreeWithSetsOfElements) {
  const int rank = GetParam();
  const std::vector<Box> boxes = all_boxes(rank, rank == 1 ? 6 : 3);
  int checked = 0;
  for (const Box& a : boxes) {
    const std::set<Element> in_a = elements_of(a);
    ASSERT_EQ(a.num_elements(), static_cast<int64_t>(in_a.size()));
    ASSERT_EQ(a.is_empty(), in_a.empty());
    for (const Box& b : boxes) {
      const std::set<Element> in_b = elements_of(b);
      std::set<Element> common, rest;
      for (const Element& element : in_a) {
        (in_b.count(element) != 0 ? common : rest).insert(element);
      }
      ASSERT_EQ(elements_of(intersect(a, b)), common) << a.to_string() << " " << b.to_string();
      ASSERT_EQ(contains(b, a), rest.empty()) << b.to_string() << " " << a.to_string();

      const std::vector<Box> pieces = subtract(a, b);
      ASSERT_LE(pieces.size(), 2u * rank);
      std::set<Element> in_pieces;
      int64_t total = 0;
      for (const Box& piece : pieces) {
        ASSERT_FALSE(piece.is_empty()) << a.to_string() << " less " << b.to_string();
        total += piece.num_elements();
        in_pieces.merge(elements_of(piece));
      }
      ASSERT_EQ(in_pieces, rest) << a.to_string() << " less " << b.to_string();
      ASSERT_EQ(total, static_cast<int64_t>(rest.size())) << "the pieces overlap";
      ++checked;
    }
  }
  EXPECT_GE(checked, 700);
}
INSTANTIATE_TEST_SUITE_P(Rank, BoxPairsTest, ::testing::Values(1, 2));

// Where in a buffer that holds `outer` the elements of `inner` are, one by one.
std::optional<int64_t> offset_by_search(const Box& outer, const Box& inner) {
  std::map<Element, int64_t> places;
  for (const Element& element : elements_of(outer)) {
    places.emplace(element, static_cast<int64_t>(places.size()));  // the set is in row-major order
  }
  std::optional<int64_t> first;
  int64_t expected = 0;
  for (const Element& element : elements_of(inner)) {
    const auto place = places.find(element);
    if (place == places.end()) return std::nullopt;
    if (!first.has_value()) first = expected = place->second;
    if (place->second != expected++) return std::nullopt;
  }
  return first;
}

class ContiguousTest : public ::testing::TestWithParam<int> {};

TEST_P(ContiguousTest, OffsetsAreThoseOfTheElements) {
  const int rank = GetParam();
  const std::vector<Box> outers = all_boxes(rank, rank == 1 ? 6 : rank == 2 ? 3 : 2);
  int num_contiguous = 0;
  for (const Box& outer : outers) {
    for (const Box& inner : outers) {
      const std::optional<int64_t> offset = contiguous_offset(outer, inner);
      ASSERT_EQ(offset, offset_by_search(outer, inner))
          << inner.to_string() << " in " << outer.to_string();
      num_contiguous += offset.has_value() ? 1 : 0;
    }
  }
  EXPECT_GT(num_contiguous, 100);
}
INSTANTIATE_TEST_SUITE_P(Rank, ContiguousTest, ::testing::Values(1, 2, 3));

TEST(BoxTest, ContiguousPartsOfEveryRank) {
  EXPECT_EQ(contiguous_offset(Box{}, Box{}), 0);
  const Box outer = {{4, 0, 0}, {4, 3, 5}};
  EXPECT_EQ(contiguous_offset(outer, Box{{6, 0, 0}, {2, 3, 5}}), 30);
  EXPECT_EQ(contiguous_offset(outer, Box{{6, 1, 2}, {1, 1, 3}}), 37);
  EXPECT_EQ(contiguous_offset(outer, Box{{6, 1, 0}, {2, 1, 5}}), std::nullopt);
  EXPECT_EQ(contiguous_offset(outer, Box{{6, 0}, {1, 3}}), std::nullopt);
  EXPECT_EQ(contiguous_offset(Box{{0, 0}, {kMax, kMax}}, Box{{2, 0}, {1, kMax}}), kMax);
}

TEST(BoxTest, OfRankZeroHoldsOneElement) {
  const Box box;
  EXPECT_EQ(box.num_elements(), 1);
  EXPECT_EQ(box.to_string(), "[]");
  EXPECT_EQ(intersect(box, box), box);
  EXPECT_TRUE(contains(box, box));
  EXPECT_TRUE(subtract(box, box).empty());
  EXPECT_EQ(whole_box({}), box);
}

TEST(BoxTest, AnEmptyBoxLiesInEveryBox) {
  EXPECT_TRUE(contains(Box{{0}, {2}}, Box{{9}, {0}}));
  EXPECT_TRUE(contains(Box{{0}, {0}}, Box{{9}, {0}}));
  EXPECT_FALSE(contains(Box{{0}, {0}}, Box{{0}, {1}}));
}

TEST(BoxTest, Prints) {
  EXPECT_EQ((Box{{2, 0}, {3, 6}}).to_string(), "[2:5, 0:6]");
  EXPECT_EQ((Box{{3}, {0}}).to_string(), "[3:3]");
  EXPECT_EQ(whole_box({8, 0}).to_string(), "[0:8, 0:0]");
}

TEST(ShapeTest, CountsElements) {
  EXPECT_EQ(num_elements({}), 1);
  EXPECT_EQ(num_elements({8, 6}), 48);
  EXPECT_EQ(num_elements({8, 0}), 0);
  EXPECT_EQ(num_elements({kMax}), kMax);
}

TEST(ShapeTest, Prints) {
  EXPECT_EQ(shape_to_string({}), "[]");
  EXPECT_EQ(shape_to_string({8, 6}), "[8, 6]");
}

TEST(ShapeTest, ValidatesSizes) {
  EXPECT_THAT(validate_shape({}), IsOk());
  EXPECT_THAT(validate_shape({0, 8}), IsOk());
  EXPECT_THAT(validate_shape({kMax, 1}), IsOk());
  EXPECT_THAT(validate_shape({kMax, kMax, 0}), IsOk());
  EXPECT_THAT(validate_shape({8, -1}),
              StatusIs(kInvalid, "shape [8, -1] has size -1 in dim 1; a size is 0 or more"));
  EXPECT_THAT(validate_shape({0, -1}), StatusIs(kInvalid));
  EXPECT_THAT(validate_shape({int64_t{1} << 32, int64_t{1} << 31}),
              StatusIs(kInvalid,
                       "shape [4294967296, 2147483648] has more elements than a 64-bit integer "
                       "counts; use smaller sizes"));
}

// Every product of sizes and bytes, at the edge of 64 bits and far beyond: it is exact or refused.
TEST(ShapeTest, ValidatesBytes) {
  const int64_t kTop = kMax / 8;
  EXPECT_THAT(validate_shape({kTop}, DType::kFloat64), IsOk());
  EXPECT_THAT(validate_shape({kTop, kMax, 0}, DType::kFloat64), IsOk());
  EXPECT_THAT(validate_shape({kMax}, DType::kInt8), IsOk());
  EXPECT_THAT(validate_shape({kTop + 1}, DType::kFloat64),
              StatusIs(kInvalid,
                       "shape [1152921504606846976] of f64 has more than 2^63 - 1 bytes; give it "
                       "fewer elements"));
  EXPECT_THAT(validate_shape({int64_t{1} << 31, int64_t{1} << 31}, DType::kFloat16),
              StatusIs(kInvalid));
  EXPECT_THAT(validate_shape({-1}, DType::kInt8), StatusIs(kInvalid));
  EXPECT_THAT(validate_shape({8}, static_cast<DType>(17)), StatusIs(kInvalid));
}

TEST(ShapeTest, CountsOfUncheckedShapesStopAtTheLargest) {
  EXPECT_EQ(num_elements({kMax, 2}), kMax);
  EXPECT_EQ(num_elements({kMax, kMax, 0}), 0);
  EXPECT_EQ(num_elements({-4, -4}), 0);
  EXPECT_EQ(num_bytes({8, 6}, DType::kFloat32), 192);
  EXPECT_EQ(num_bytes({(int64_t{1} << 61) + 8}, DType::kFloat64), kMax);
  EXPECT_EQ(num_bytes({8}, static_cast<DType>(17)), 0);
}

TEST(BoxTest, BoxesOfDifferentRanksShareNothing) {
  const Box line = {{0}, {8}};
  const Box square = {{0, 0}, {8, 8}};
  EXPECT_TRUE(intersect(line, square).is_empty());
  EXPECT_EQ(intersect(line, square).sizes.size(), 2u);
  EXPECT_TRUE(intersect(Box{}, line).is_empty());
  EXPECT_FALSE(contains(square, line));
  EXPECT_EQ(subtract(line, square), std::vector<Box>{line});
}

TEST(BoxTest, FieldsThatDoNotFitAreNoTrap) {
  const Box half = {{}, {4}};
  EXPECT_EQ(half.to_string(), "[?:?]");
  EXPECT_TRUE(intersect(half, half).is_empty());
  const Box far = {{kMax - 1}, {4}};
  EXPECT_EQ(far.to_string(), "[9223372036854775806:9223372036854775807]");
  EXPECT_EQ(intersect(far, far).num_elements(), 1);
  EXPECT_EQ((Box{{kMax}, {kMax}}).num_elements(), kMax);
}

}  // namespace
}  // namespace tessera
