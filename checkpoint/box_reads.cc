// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/box_reads.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "files/box_runs.h"

namespace tessera::checkpoint::internal {
namespace {

// The runs of the piece, at their places in its file.
void for_each_run_of_piece(const Piece& piece, int64_t element_bytes, const Box& wanted,
                           absl::FunctionRef<void(const BoxRun&)> run) {
  files::for_each_run(piece.box, wanted, wanted, element_bytes,
                      [&](int64_t piece_offset, int64_t target_offset, int64_t bytes) {
                        run({piece.file, piece.offset + piece_offset, target_offset, bytes});
                      });
}

// Joins runs that come in ascending order.
class RunJoiner {
 public:
  RunJoiner(int64_t join_gap_bytes, absl::FunctionRef<Status(const JoinedRead&)> read)
      : join_gap_bytes_(join_gap_bytes), read_(read) {}

  void add(const BoxRun& run) {
    const int64_t end = next_.offset + next_.bytes;
    const bool joins = !next_.runs.empty() && next_.runs.size() < kMaxRunsOfRead &&
                       run.file == next_.file && run.offset - end <= join_gap_bytes_;
    if (!joins) {
      pass_on();
      next_.file = run.file;
      next_.offset = run.offset;
    }
    next_.bytes = run.offset + run.bytes - next_.offset;
    next_.runs.push_back(run);
  }

  // After the last run. Returns the first error of a read.
  Status finish() {
    pass_on();
    return status_;
  }

  bool failed() const { return !status_.ok(); }

 private:
  void pass_on() {
    if (!next_.runs.empty() && status_.ok()) status_ = read_(next_);
    next_.runs.clear();
  }

  const int64_t join_gap_bytes_;
  const absl::FunctionRef<Status(const JoinedRead&)> read_;
  JoinedRead next_ = {0, 0, 0, {}};
  Status status_;
};

// The reads of one piece, as numbers.
struct PieceTotals {
  int64_t begin;  // The first byte of the first read.
  int64_t end;    // After the last byte of the last read.
  ReadTotals totals;
};

// Gaps grow from the minor dim up: the gap between two rows includes the gaps in a row. So the
// blocks that are read as one are those of the minor dims, up to the first gap that is too large.
PieceTotals totals_of_piece(const Piece& piece, int64_t element_bytes, const Box& wanted,
                            int64_t join_gap_bytes) {
  const Box common = intersect(piece.box, wanted);
  int64_t begin = piece.offset;
  int64_t stride = element_bytes;  // From one index of the dim to the next.
  int64_t extent = element_bytes;  // From the first byte to the last, of the dims below.
  int64_t reads = 1;
  int64_t bytes_of_read = element_bytes;
  for (size_t d = common.sizes.size(); d-- > 0;) {
    const int64_t size = common.sizes[d];
    begin += (common.offsets[d] - piece.box.offsets[d]) * stride;
    const bool joins = size == 1 || stride - extent <= join_gap_bytes;
    extent += (size - 1) * stride;
    if (joins && reads == 1) {
      bytes_of_read = extent;
    } else {
      reads *= size;
    }
    stride *= piece.box.sizes[d];
  }
  return {begin, begin + extent, {reads, reads * bytes_of_read}};
}

}  // namespace

PieceIndex::PieceIndex(const TensorInfo* tensor) : tensor_(tensor) {
  const std::vector<Piece>& pieces = tensor->pieces;
  size_t most = 0;
  for (size_t d = 0; d < tensor->shape.size(); ++d) {
    absl::flat_hash_set<int64_t> begins;
    for (const Piece& piece : pieces) begins.insert(piece.box.offsets[d]);
    if (begins.size() <= most) continue;
    most = begins.size();
    dim_ = static_cast<int>(d);
  }
  order_.resize(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) order_[i] = static_cast<int>(i);
  if (tensor->shape.empty()) return;
  for (const Piece& piece : pieces) longest_ = std::max(longest_, piece.box.sizes[dim_]);
  std::sort(order_.begin(), order_.end(), [&](int a, int b) {
    return std::tie(pieces[a].box.offsets[dim_], a) < std::tie(pieces[b].box.offsets[dim_], b);
  });
}

std::vector<int> PieceIndex::pieces_of(const Box& wanted) const {
  const std::vector<Piece>& pieces = tensor_->pieces;
  std::vector<int> result;
  if (wanted.is_empty()) return result;
  auto next = order_.begin();
  auto end = order_.end();
  if (!wanted.sizes.empty()) {
    const auto begins_before = [&](int piece, int64_t place) {
      return pieces[piece].box.offsets[dim_] < place;
    };
    const int64_t first = wanted.offsets[dim_];
    next = std::lower_bound(next, end, first - longest_ + 1, begins_before);
    end = std::lower_bound(next, end, first + wanted.sizes[dim_], begins_before);
  }
  for (; next != end; ++next) {
    if (!intersect(pieces[*next].box, wanted).is_empty()) result.push_back(*next);
  }
  std::sort(result.begin(), result.end(), [&](int a, int b) {
    return std::tie(pieces[a].file, pieces[a].offset) < std::tie(pieces[b].file, pieces[b].offset);
  });
  return result;
}

Status for_each_read(const PieceIndex& index, DType dtype, const Box& wanted,
                     int64_t join_gap_bytes, absl::FunctionRef<Status(const JoinedRead&)> read) {
  RunJoiner joiner(join_gap_bytes, read);
  for (const int piece : index.pieces_of(wanted)) {
    if (joiner.failed()) break;
    for_each_run_of_piece(index.tensor().pieces[piece], dtype_size(dtype), wanted,
                          [&](const BoxRun& run) {
                            if (!joiner.failed()) joiner.add(run);
                          });
  }
  return joiner.finish();
}

ReadTotals totals_of_reads(const PieceIndex& index, DType dtype, const Box& wanted,
                           int64_t join_gap_bytes) {
  ReadTotals totals;
  int file = -1;
  int64_t end = 0;
  for (const int number : index.pieces_of(wanted)) {
    const Piece& piece = index.tensor().pieces[number];
    const PieceTotals next = totals_of_piece(piece, dtype_size(dtype), wanted, join_gap_bytes);
    totals.reads += next.totals.reads;
    totals.bytes += next.totals.bytes;
    if (piece.file == file && next.begin - end <= join_gap_bytes) {
      --totals.reads;
      totals.bytes += next.begin - end;
    }
    file = piece.file;
    end = next.end;
  }
  return totals;
}

}  // namespace tessera::checkpoint::internal
