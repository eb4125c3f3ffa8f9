// SPDX-License-Identifier: Apache-2.0
//
// TensorReader: whole tensors of a source, in parts that fit into a buffer.
//
//   w, f32 [4, 6], in pieces of columns        a buffer of 48 bytes
//     a a b b c c     file 0: a                  part 0: rows 0 and 1, from 3 reads of 16 bytes
//     a a b b c c     file 1: b                  part 1: rows 2 and 3
//     a a b b c c     file 2: c
//     a a b b c c
//
// A part is a box whose elements are consecutive in the row-major tensor, so what a piece has of it
// is consecutive in its file. The parts of a Fortran array are boxes that are long in the first
// dim, which is the innermost in the file, and in the last dim, which is the innermost in the
// result.
//
// Each block of a checkpoint is compared with its checksum before its first bytes are used. It is
// then read a second time, from the page cache.
//
// Memory: two buffers and a few blocks of a checkpoint. Used by one thread.
#ifndef TESSERA_TOOLS_CKPT_TOOL_TENSOR_READER_H_
#define TESSERA_TOOLS_CKPT_TOOL_TENSOR_READER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "checkpoint/block_reader.h"
#include "checkpoint/box_reader.h"
#include "checkpoint/box_reads.h"
#include "checkpoint/info.h"
#include "checkpoint/source.h"

namespace tessera::ckpt_tool {

class TensorReader {
 public:
  // Requires `buffer_bytes` of 8 or more. `source` must outlive the reader.
  TensorReader(const checkpoint::internal::Source& source, int64_t buffer_bytes);

  using Write = absl::FunctionRef<Status(int64_t offset, absl::Span<const std::byte> bytes)>;
  // Calls write() for the bytes of the row-major, little-endian tensor, each byte once. Bytes of a
  // bool are 0 or 1. Errors are those of write(), and of the files: DataLoss names the file, its
  // block and the tensors in it.
  Status read(const checkpoint::TensorInfo& tensor, DType dtype, Write write);

 private:
  // Compares the blocks that have a byte of the box and were not compared.
  Status verify_box(const checkpoint::internal::PieceIndex& index, DType dtype, const Box& box);
  Status verify_range(int file, int64_t offset, int64_t bytes);

  const checkpoint::internal::Source& source_;
  const int64_t buffer_bytes_;
  checkpoint::internal::BlockReader blocks_;
  checkpoint::internal::BoxReader boxes_;
  std::vector<std::vector<bool>> verified_;  // by file and block
  std::vector<std::byte> buffer_;
};

}  // namespace tessera::ckpt_tool

#endif  // TESSERA_TOOLS_CKPT_TOOL_TENSOR_READER_H_
