// SPDX-License-Identifier: Apache-2.0
//
// DataWriter: writes a file from its first byte to its last, and computes the checksum of each
// block on the way.
//
//   append(header)   append_box(shard of w, box)   append_box(shard of b, box)   finish()
//
// Bytes that are consecutive in a shard go from there to the disk in chunks of 1 MiB: checksum,
// write, and the disk begins with the chunk before. Short runs are gathered in a buffer of 1 MiB.
// Used by one thread. Internal to checkpoint/.
#ifndef TESSERA_CHECKPOINT_DATA_WRITER_H_
#define TESSERA_CHECKPOINT_DATA_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/shape.h"
#include "base/status.h"
#include "checkpoint/checksum.h"
#include "files/new_file.h"

namespace tessera::checkpoint::internal {

class DataWriter {
 public:
  // Called after each chunk with its size; its error ends the write.
  using AfterChunk = std::function<Status(int64_t bytes)>;

  // `file` must outlive the writer.
  DataWriter(files::NewFile& file, AfterChunk after_chunk);

  Status append(absl::Span<const std::byte> bytes);
  // The part `box` of memory that holds `outer`, both row-major.
  Status append_box(const std::byte* data, const Box& outer, const Box& box, int64_t element_bytes);
  // Writes what is left. Returns the checksums of the blocks.
  StatusOr<std::vector<uint64_t>> finish();

 private:
  Status flush();
  Status write_chunk(absl::Span<const std::byte> bytes);
  void add_to_checksums(absl::Span<const std::byte> bytes);

  files::NewFile& file_;
  const AfterChunk after_chunk_;
  std::vector<std::byte> buffer_;
  int64_t offset_ = 0;    // of the next chunk
  int64_t previous_ = 0;  // bytes of the chunk before
  Checksum64 checksum_;   // of the block so far
  std::vector<uint64_t> checksums_;
};

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_DATA_WRITER_H_
