// SPDX-License-Identifier: Apache-2.0
//
// Boxes that devices write: the rows of tests/facts/checkpoint.md, which are in
// testdata/writers.tsv, and every layout on meshes of up to 8 devices.
#include "checkpoint/writers.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/reduce_op.h"
#include "checkpoint/testing/saved.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "relayout/testing/small_relayouts.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"

namespace tessera::checkpoint::internal {
namespace {

using checkpoint::testing::boxes_text;
using checkpoint::testing::parse_dtype;
using checkpoint::testing::parse_layout;
using checkpoint::testing::parse_shape;
using checkpoint::testing::read_table;
using checkpoint::testing::saved_info;
using tessera::testing::kSanitized;
using tessera::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> sorted_parts(absl::string_view text) {
  std::vector<std::string> parts = absl::StrSplit(text, "; ");
  std::sort(parts.begin(), parts.end());
  return parts;
}

TEST(WritersTest, RowsOfTheFacts) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto rows, read_table("writers.tsv", 8));
  EXPECT_EQ(rows.size(), 20u);
  for (const std::vector<std::string>& row : rows) {
    SCOPED_TRACE(row[0]);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, parse_layout(row[1], row[2]));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Shape shape, parse_shape(row[3]));
    TESSERA_ASSERT_OK_AND_ASSIGN(const DType dtype, parse_dtype(row[4]));
    int64_t min_split_bytes = 0;
    ASSERT_TRUE(absl::SimpleAtoi(row[6], &min_split_bytes));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Info info,
                                 saved_info(layout, shape, dtype, row[5], min_split_bytes));
    EXPECT_EQ(sorted_parts(boxes_text(info)), sorted_parts(row[7]));
  }
}

TEST(WritersTest, TotalsOfAModel) {
  struct Weight {
    const char* name;
    const char* layout;
    Shape shape;
  };
  const Weight kLayer[] = {
      {"qkv", "[-, model]", {768, 2304}},
      {"up", "[-, model]", {768, 3072}},
      {"out", "[model, -]", {768, 768}},
      {"down", "[model, -]", {3072, 768}},
      {"ln", "[-]", {768}},
      {"bias", "[model]", {3072}},
  };
  std::vector<Weight> weights = {{"embed", "[-, -]", {50257, 768}}};
  std::vector<std::string> names = {"embed"};
  for (int layer = 0; layer < 12; ++layer) {
    for (const Weight& weight : kLayer) {
      weights.push_back(weight);
      names.push_back(absl::StrCat("h", layer < 10 ? "0" : "", layer, ".", weight.name));
    }
  }
  std::vector<int64_t> bytes(8);
  for (size_t i = 0; i < weights.size(); ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout,
                                 parse_layout("{data=4, model=2}", weights[i].layout));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const std::vector<WrittenBox> written,
        written_boxes(layout, weights[i].shape, DType::kFloat32, names[i], 65536));
    for (const WrittenBox& write : written) bytes[write.device] += write.box.num_elements() * 4;
  }
  EXPECT_THAT(bytes, ElementsAre(61784064, 61784064, 61774848, 61768704, 61799424, 61802496,
                                 61799424, 61799424));
}

TEST(WritersTest, RefusesBadArguments) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, parse_layout("{x=2}", "[x, -]"));
  const auto written = [&](const Shape& shape, int64_t min_split_bytes) {
    return written_boxes(layout, shape, DType::kFloat32, "w", min_split_bytes);
  };
  EXPECT_THAT(written({4}, 0), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("layout [x, -] has 2 dims, shape [4] has 1")));
  EXPECT_THAT(written({4, -1}, 0), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(written({int64_t{1} << 40, int64_t{1} << 22}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(written({4, 4}, -1), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("min_split_bytes is -1; it must be")));
}

// Each element is written once, by a device that holds it, and a device writes one box at most.
// The shares of a box differ by one slice at most where it is cut along a long dim.
void check_writers(const Layout& layout, const Shape& shape, absl::string_view name,
                   int64_t min_split_bytes) {
  SCOPED_TRACE(absl::StrCat(layout.to_string_with_mesh(), ", ", shape_to_string(shape), ", ", name,
                            ", ", min_split_bytes));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<WrittenBox> written,
                               written_boxes(layout, shape, DType::kUint8, name, min_split_bytes));
  std::map<std::vector<int64_t>, int> writes;
  size_t next = 0;
  for (int64_t position = 0; position < layout.mesh().size(); ++position) {
    const std::optional<Box> box =
        written_box(layout, shape, DType::kUint8, name, min_split_bytes, position);
    if (!box.has_value()) continue;
    ASSERT_LT(next, written.size());
    EXPECT_EQ(written[next], (WrittenBox{position, *layout.mesh().device_at(position), *box}));
    ++next;
    EXPECT_FALSE(box->is_empty());
    EXPECT_TRUE(contains(layout.box(shape, position), *box));
    std::vector<int64_t> index = box->offsets;
    for (int64_t n = box->num_elements(); n > 0; --n) {
      ++writes[index];
      for (size_t d = index.size(); d-- > 0;) {
        if (++index[d] < box->offsets[d] + box->sizes[d]) break;
        index[d] = box->offsets[d];
      }
    }
  }
  EXPECT_EQ(next, written.size());
  EXPECT_EQ(static_cast<int64_t>(writes.size()), num_elements(shape));
  for (const auto& [index, count] : writes) EXPECT_EQ(count, 1) << shape_to_string(index);
}

TEST(WritersTest, EveryLayoutOfSmallMeshesIsWrittenOnce) {
  const std::vector<Shape> kShapes = {{}, {1}, {3}, {7}, {8}, {0}, {5, 3}, {2, 8}, {0, 4}, {3, 1}};
  int checked = 0;
  for (const Mesh& mesh : tessera::testing::small_meshes(3, kSanitized ? 4 : 8)) {
    for (int rank = 0; rank <= 2; ++rank) {
      for (const Layout& layout : tessera::testing::every_layout(mesh, rank, {ReduceOp::kSum})) {
        for (const Shape& shape : kShapes) {
          if (static_cast<int>(shape.size()) != rank) continue;
          // Names with different h, and boxes that are cut or not.
          check_writers(layout, shape, checked % 2 == 0 ? "t0" : "t2", checked % 3 == 0 ? 4 : 0);
          if (HasFailure()) return;
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, kSanitized ? 500 : 10000);
}

}  // namespace
}  // namespace tessera::checkpoint::internal
