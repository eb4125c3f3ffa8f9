// SPDX-License-Identifier: Apache-2.0
//
// Runs and reads of boxes, executed on bytes: from the pieces of every saved layout of small meshes
// to the boxes of every layout, each wanted element arrives once.
#include "checkpoint/box_reads.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/testing/saved.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "mesh/mesh.h"
#include "relayout/testing/small_relayouts.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seed.h"

namespace tessera::checkpoint::internal {
namespace {

using checkpoint::testing::bytes_of_box;
using checkpoint::testing::kDataBegin;
using checkpoint::testing::saved_info;
using tessera::testing::every_layout;
using tessera::testing::kSanitized;
using tessera::testing::small_meshes;
using tessera::testing::StatusIs;
using ::testing::ElementsAre;

// One file per piece, as its bytes from kDataBegin on.
std::vector<std::string> files_of(const TensorInfo& tensor, int64_t element_bytes) {
  std::vector<std::string> files;
  for (const Piece& piece : tensor.pieces) {
    files.push_back(bytes_of_box(tensor.shape, piece.box, element_bytes));
  }
  return files;
}

// Executes the reads of the box. Each wanted byte is written once, with its value.
void check_reads(const PieceIndex& index, const std::vector<std::string>& files, DType dtype,
                 const Box& wanted, int64_t join_gap_bytes) {
  const std::string expected = bytes_of_box(index.tensor().shape, wanted, dtype_size(dtype));
  std::string actual(expected.size(), '\0');
  std::vector<int> writes(expected.size());
  ReadTotals totals;
  int file = -1;
  int64_t end = std::numeric_limits<int64_t>::min() / 2;
  const auto execute = [&](const JoinedRead& read) {
    // Reads ascend, and are apart by more than the gap.
    EXPECT_TRUE(read.file > file || read.offset - end > join_gap_bytes);
    EXPECT_GE(read.file, file);
    EXPECT_EQ(read.offset, read.runs.front().offset);
    EXPECT_EQ(read.offset + read.bytes, read.runs.back().offset + read.runs.back().bytes);
    int64_t covered = read.offset;
    for (const BoxRun& run : read.runs) {
      EXPECT_EQ(run.file, read.file);
      EXPECT_GE(run.offset, covered);
      EXPECT_LE(run.offset - covered, join_gap_bytes);
      covered = run.offset + run.bytes;
      for (int64_t i = 0; i < run.bytes; ++i) {
        actual[run.target_offset + i] = files[run.file][run.offset + i - kDataBegin];
        ++writes[run.target_offset + i];
      }
    }
    file = read.file;
    end = read.offset + read.bytes;
    ++totals.reads;
    totals.bytes += read.bytes;
    return absl::OkStatus();
  };
  EXPECT_EQ(for_each_read(index, dtype, wanted, join_gap_bytes, execute), absl::OkStatus());
  EXPECT_EQ(actual, expected);
  EXPECT_EQ(writes, std::vector<int>(expected.size(), 1));
  EXPECT_EQ(totals_of_reads(index, dtype, wanted, join_gap_bytes), totals);
}

TEST(BoxReadsTest, EveryBoxFromEverySavedLayout) {
  const std::vector<Shape> kShapes = {{},     {1},    {3},    {7},    {8},       {0},
                                      {5, 3}, {2, 8}, {0, 4}, {9, 7}, {3, 4, 5}, {2, 1, 3}};
  int64_t checked = 0;
  for (const Shape& shape : kShapes) {
    // Different tilings and different boxes, by their text: most layouts share theirs.
    std::map<std::string, TensorInfo> saved;
    std::set<std::string> texts;
    std::vector<Box> boxes;
    const int rank = static_cast<int>(shape.size());
    const int max_devices = kSanitized ? 4 : rank == 3 ? 6 : 8;
    for (const Mesh& mesh : small_meshes(3, max_devices)) {
      for (const Layout& layout : every_layout(mesh, rank, {})) {
        for (const int64_t min_split_bytes : {int64_t{0}, int64_t{1} << 16}) {
          const Info info = *saved_info(layout, shape, DType::kInt8, "t1", min_split_bytes);
          std::string text;
          for (const Piece& piece : info.tensors[0].pieces) text += piece.box.to_string();
          saved.emplace(text, info.tensors[0]);
        }
        for (int64_t position = 0; position < mesh.size(); ++position) {
          const Box box = layout.box(shape, position);
          if (texts.insert(box.to_string()).second) boxes.push_back(box);
        }
      }
    }
    for (const auto& [text, tensor] : saved) {
      const DType dtype = checked % 2 == 0 ? DType::kInt8 : DType::kFloat16;
      const PieceIndex index(&tensor);
      const std::vector<std::string> files = files_of(tensor, dtype_size(dtype));
      for (const Box& wanted : boxes) {
        SCOPED_TRACE(absl::StrCat(text, " to ", wanted.to_string()));
        for (const int64_t gap : {0, 1, 5}) check_reads(index, files, dtype, wanted, gap);
        if (HasFailure()) return;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, kSanitized ? 500 : 8000);
}

std::vector<JoinedRead> reads_of(const TensorInfo& tensor, DType dtype, const Box& wanted,
                                 int64_t join_gap_bytes) {
  std::vector<JoinedRead> reads;
  const auto keep = [&](const JoinedRead& read) {
    reads.push_back(read);
    return absl::OkStatus();
  };
  EXPECT_EQ(for_each_read(PieceIndex(&tensor), dtype, wanted, join_gap_bytes, keep),
            absl::OkStatus());
  return reads;
}

TEST(BoxReadsTest, RunsJoinAcrossGaps) {
  const TensorInfo tensor = {"w", "f32", {3, 4}, "", {{{{0, 0}, {3, 4}}, 0, 100}}};
  const Box wanted = {{0, 2}, {3, 2}};
  const std::vector<BoxRun> runs = {{0, 108, 0, 8}, {0, 124, 8, 8}, {0, 140, 16, 8}};
  EXPECT_THAT(reads_of(tensor, DType::kFloat32, wanted, 7),
              ElementsAre(JoinedRead{0, 108, 8, {runs[0]}}, JoinedRead{0, 124, 8, {runs[1]}},
                          JoinedRead{0, 140, 8, {runs[2]}}));
  EXPECT_THAT(reads_of(tensor, DType::kFloat32, wanted, 8),
              ElementsAre(JoinedRead{0, 108, 40, runs}));
}

// A file of another tool may hold several pieces of a tensor: reads join across them.
TEST(BoxReadsTest, PiecesOfOneFileJoin) {
  const TensorInfo tensor = {
      "w", "u8", {6}, "", {{{{4}, {2}}, 0, 20}, {{{0}, {2}}, 0, 10}, {{{2}, {2}}, 1, 12}}};
  const Box whole = {{0}, {6}};
  const std::vector<BoxRun> runs = {{0, 10, 0, 2}, {0, 20, 4, 2}, {1, 12, 2, 2}};
  EXPECT_THAT(
      reads_of(tensor, DType::kUint8, whole, 8),
      ElementsAre(JoinedRead{0, 10, 12, {runs[0], runs[1]}}, JoinedRead{1, 12, 2, {runs[2]}}));
  EXPECT_THAT(reads_of(tensor, DType::kUint8, whole, 7),
              ElementsAre(JoinedRead{0, 10, 2, {runs[0]}}, JoinedRead{0, 20, 2, {runs[1]}},
                          JoinedRead{1, 12, 2, {runs[2]}}));
  EXPECT_EQ(totals_of_reads(PieceIndex(&tensor), DType::kUint8, whole, 8), (ReadTotals{2, 14}));
  EXPECT_EQ(totals_of_reads(PieceIndex(&tensor), DType::kUint8, whole, 7), (ReadTotals{3, 6}));
}

TEST(BoxReadsTest, LongReadsAreCut) {
  const int64_t rows = 3 * static_cast<int64_t>(kMaxRunsOfRead) / 2;
  const TensorInfo tensor = {"w", "u8", {rows, 2}, "", {{{{0, 0}, {rows, 2}}, 0, 0}}};
  std::vector<size_t> runs;
  const auto count = [&](const JoinedRead& read) {
    runs.push_back(read.runs.size());
    return absl::OkStatus();
  };
  const Box column = {{0, 1}, {rows, 1}};
  EXPECT_EQ(for_each_read(PieceIndex(&tensor), DType::kUint8, column, 1, count), absl::OkStatus());
  EXPECT_THAT(runs, ElementsAre(kMaxRunsOfRead, kMaxRunsOfRead / 2));
}

TEST(BoxReadsTest, AnErrorEndsTheReads) {
  const TensorInfo tensor = {"w", "u8", {4, 4}, "", {{{{0, 0}, {4, 4}}, 0, 0}}};
  int reads = 0;
  const auto fail = [&](const JoinedRead&) {
    ++reads;
    return reads == 2 ? absl::DataLossError("cut") : absl::OkStatus();
  };
  const Box column = {{0, 1}, {4, 1}};
  EXPECT_THAT(for_each_read(PieceIndex(&tensor), DType::kUint8, column, 0, fail),
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(reads, 2);
}

// The index finds the pieces that a look at all of them finds.
TEST(BoxReadsTest, PiecesOfRandomTilings) {
  std::mt19937_64 random(tessera::testing::test_seed());
  for (int trial = 0; trial < 300; ++trial) {
    // Columns of different widths, each cut into rows at its own places.
    TensorInfo tensor = {"w", "u8", {20, 20}, "", {}};
    for (int64_t column = 0; column < 20;) {
      const int64_t width = std::min<int64_t>(20 - column, 1 + static_cast<int64_t>(random() % 7));
      for (int64_t row = 0; row < 20;) {
        const int64_t height = std::min<int64_t>(20 - row, 1 + static_cast<int64_t>(random() % 9));
        tensor.pieces.push_back(
            {{{row, column}, {height, width}}, static_cast<int>(random() % 3), row * 20 + column});
        row += height;
      }
      column += width;
    }
    const PieceIndex index(&tensor);
    for (int query = 0; query < 20; ++query) {
      Box wanted = whole_box(tensor.shape);
      for (int d = 0; d < 2; ++d) {
        wanted.offsets[d] = static_cast<int64_t>(random() % 20);
        wanted.sizes[d] = static_cast<int64_t>(random() % (21 - wanted.offsets[d]));
      }
      std::set<int> expected;
      for (size_t i = 0; i < tensor.pieces.size(); ++i) {
        if (!intersect(tensor.pieces[i].box, wanted).is_empty())
          expected.insert(static_cast<int>(i));
      }
      const std::vector<int> found = index.pieces_of(wanted);
      EXPECT_EQ(std::set<int>(found.begin(), found.end()), expected);
      EXPECT_EQ(found.size(), expected.size());
      for (size_t i = 1; i < found.size(); ++i) {
        const Piece& a = tensor.pieces[found[i - 1]];
        const Piece& b = tensor.pieces[found[i]];
        EXPECT_LE(std::make_pair(a.file, a.offset), std::make_pair(b.file, b.offset));
      }
    }
  }
}

}  // namespace
}  // namespace tessera::checkpoint::internal
