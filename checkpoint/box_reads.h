// SPDX-License-Identifier: Apache-2.0
//
// Which bytes of which files hold a box of a tensor, as system calls.
//
//   piece [0:3, 0:4] f32 at 100 of file 0, wanted [0:3, 2:4]
//
//     runs   108:116 -> 0:8    124:132 -> 8:16    140:148 -> 16:24     gaps of 8 bytes
//     reads  join_gap_bytes 7: three of 8 bytes;   8: one, 108:148, with three runs
//
// Internal to checkpoint/. Pure; PieceIndex is immutable and safe to read from any thread.
#ifndef TESSERA_CHECKPOINT_BOX_READS_H_
#define TESSERA_CHECKPOINT_BOX_READS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "checkpoint/info.h"

namespace tessera::checkpoint::internal {

// Bytes that are consecutive in the file and in the row-major memory of the wanted box.
struct BoxRun {
  int file;
  int64_t offset;         // In the file.
  int64_t target_offset;  // In the memory of the wanted box.
  int64_t bytes;

  friend bool operator==(const BoxRun& a, const BoxRun& b) = default;
};

// Bytes of a file that one system call reads: from the first byte of the first of its runs to the
// last byte of the last one.
struct JoinedRead {
  int file;
  int64_t offset;
  int64_t bytes;
  std::vector<BoxRun> runs;  // Ascending by offset, disjoint.

  friend bool operator==(const JoinedRead& a, const JoinedRead& b) = default;
};

// The runs of a joined read are held in memory: a longer read is cut after so many.
inline constexpr size_t kMaxRunsOfRead = size_t{1} << 16;

// The pieces of a tensor, sorted along the dim in which they begin at the most places.
class PieceIndex {
 public:
  // Keeps a pointer to `tensor`, whose pieces must tile its shape.
  explicit PieceIndex(const TensorInfo* tensor);

  const TensorInfo& tensor() const { return *tensor_; }
  // The indices of the pieces that hold an element of `wanted`, ascending by file and offset.
  // Requires a box of the rank of the tensor. O(log pieces), and O(rank) for each piece that has
  // the place of the box in the dim of the index.
  std::vector<int> pieces_of(const Box& wanted) const;

 private:
  const TensorInfo* tensor_;
  int dim_ = 0;
  int64_t longest_ = 0;  // The largest size of a piece in that dim.
  std::vector<int> order_;
};

// Calls read() for each read of `wanted`, ascending by file and offset, until a call fails, and
// returns its error. Runs of one file with a gap of at most `join_gap_bytes` are one read; a gap of
// 0 gives the longest runs of the files. Holds one read at a time, of at most kMaxRunsOfRead runs.
// The read is valid during the call.
Status for_each_read(const PieceIndex& index, DType dtype, const Box& wanted,
                     int64_t join_gap_bytes, absl::FunctionRef<Status(const JoinedRead&)> read);

// The number of reads that for_each_read() makes if none is cut after kMaxRunsOfRead, and their
// bytes. O(rank) for each piece, however many runs there are.
struct ReadTotals {
  int64_t reads = 0;
  int64_t bytes = 0;

  friend bool operator==(const ReadTotals& a, const ReadTotals& b) = default;
};
ReadTotals totals_of_reads(const PieceIndex& index, DType dtype, const Box& wanted,
                           int64_t join_gap_bytes);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_BOX_READS_H_
