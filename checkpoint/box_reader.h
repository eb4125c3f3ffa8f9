// SPDX-License-Identifier: Apache-2.0
//
// read_box: fills memory with a box of a tensor in files.
//
// A run of many bytes is read straight into its place. Short runs are read together into a buffer
// of 4 MiB at most, and copied from there. Internal to checkpoint/.
#ifndef TESSERA_CHECKPOINT_BOX_READER_H_
#define TESSERA_CHECKPOINT_BOX_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "checkpoint/block_reader.h"
#include "checkpoint/box_reads.h"
#include "checkpoint/source.h"
#include "files/random_access_file.h"

namespace tessera::checkpoint::internal {

// Reads boxes of the tensors of one source. Used by one thread.
class BoxReader {
 public:
  // `source` and `blocks` must outlive the reader.
  BoxReader(const Source& source, BlockReader& blocks, int64_t join_gap_bytes)
      : source_(source), blocks_(blocks), join_gap_bytes_(join_gap_bytes) {}

  // Announces the box to the BlockReader.
  void want(const PieceIndex& index, DType dtype, const Box& box);
  // `out` has the bytes of the box, row-major. Bytes of a bool become 0 or 1.
  Status read(const PieceIndex& index, DType dtype, const Box& box, std::byte* out);

 private:
  // Reads the runs of one joined read.
  Status read_joined(const JoinedRead& read, std::byte* out);

  const Source& source_;
  BlockReader& blocks_;
  const int64_t join_gap_bytes_;
  std::vector<std::byte> buffer_;
  std::shared_ptr<const files::RandomAccessFile> npy_;  // null until it is read
};

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_BOX_READER_H_
