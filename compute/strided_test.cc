// SPDX-License-Identifier: Apache-2.0
//
// Merged index spaces against all elements one by one, and the labels of products.
#include "compute/strided.h"

#include <cstdint>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "compute/contraction.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace tessera::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using List = std::vector<int64_t>;

// The offsets of all elements in the order of their indices.
List offsets_of(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides) {
  List offsets = {0};
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    List next;
    for (const int64_t offset : offsets) {
      for (int64_t i = 0; i < sizes[dim]; ++i) next.push_back(offset + i * strides[dim]);
    }
    offsets = next;
  }
  return offsets;
}

TEST(MergedSpaceTest, DenseArraysAreOneDim) {
  const List sizes = {4, 3, 1, 8};
  const MergedSpace merged(sizes, {dense_strides(sizes)});
  EXPECT_THAT(merged.sizes(), ElementsAre(96));
  EXPECT_THAT(merged.strides(0), ElementsAre(1));
}

TEST(MergedSpaceTest, ARowThatIsBroadcastKeepsADim) {
  const List sizes = {4, 3, 8};
  const List row = {0, 0, 1};
  const MergedSpace merged(sizes, {dense_strides(sizes), row});
  EXPECT_EQ(merged.num_arrays(), 2u);
  EXPECT_THAT(merged.sizes(), ElementsAre(12, 8));
  EXPECT_THAT(merged.strides(0), ElementsAre(8, 1));
  EXPECT_THAT(merged.strides(1), ElementsAre(0, 1));
}

TEST(MergedSpaceTest, OneElementHasNoDims) {
  EXPECT_THAT(MergedSpace({}, {List()}).sizes(), IsEmpty());
  EXPECT_THAT(MergedSpace(List{1, 1}, {List{5, 7}}).sizes(), IsEmpty());
}

// All sizes up to 3 in 3 dims, with two arrays of random strides: elements keep their order, and no
// two neighbouring dims are left that could be merged.
TEST(MergedSpaceTest, ElementsKeepTheirOrder) {
  std::mt19937 random(1);
  const int64_t values[] = {-2, 0, 1, 2, 3, 6, 9};
  int checked = 0;
  for (int64_t number = 0; number < 4 * 4 * 4 * 200; ++number) {
    const List sizes = {number % 4, number / 4 % 4, number / 16 % 4};
    List strides[2];
    for (List& list : strides) {
      for (int dim = 0; dim < 3; ++dim) list.push_back(values[random() % 7]);
    }
    const MergedSpace merged(sizes, {strides[0], strides[1]});
    for (size_t k = 0; k < 2; ++k) {
      ASSERT_EQ(offsets_of(merged.sizes(), merged.strides(k)), offsets_of(sizes, strides[k]));
    }
    for (size_t dim = 1; dim < merged.sizes().size(); ++dim) {
      const int64_t size = merged.sizes()[dim];
      ASSERT_NE(size, 1);
      ASSERT_FALSE(merged.strides(0)[dim - 1] == merged.strides(0)[dim] * size &&
                   merged.strides(1)[dim - 1] == merged.strides(1)[dim] * size);
    }
    checked += merged.sizes().size() < 3 ? 1 : 0;
  }
  EXPECT_GT(checked, 500);  // Some were merged.
}

TEST(ContractionTest, LabelsByWhatTheyAre) {
  const Labels of_a = {7, -1, 3, 5};
  const Labels of_b = {5, 7, 9};
  const Labels of_result = {9, 7, 3};
  const List a_sizes = {2, 1, 3, 4};
  const List b_sizes = {4, 2, 6};
  const Labelled a = {nullptr, a_sizes, of_a};
  const Labelled b = {nullptr, b_sizes, of_b};
  const ContractionLabels labels = ContractionLabels::create(a, b, of_result);
  EXPECT_THAT(labels.batch, ElementsAre(7));
  EXPECT_THAT(labels.rows, ElementsAre(3));
  EXPECT_THAT(labels.columns, ElementsAre(9));
  EXPECT_THAT(labels.summed, ElementsAre(5));
  const Labels order = joined(labels.batch, labels.rows, labels.summed);
  EXPECT_THAT(order, ElementsAre(7, 3, 5));
  EXPECT_THAT(by_label(of_a, a_sizes, order), ElementsAre(2, 3, 4));
}

}  // namespace
}  // namespace tessera::kernels
