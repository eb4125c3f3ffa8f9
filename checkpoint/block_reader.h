// SPDX-License-Identifier: Apache-2.0
//
// BlockReader: reads ranges of a source's files, and compares the checksums of blocks that are read
// whole.
//
//   file      | header | w           | b   | u                |
//   blocks    0                1                2
//   wanted    ~~~~~~~~~ w ~~~~~~~ b ~~~~~                         block 0 is read whole, 1 is not
//
// A block that is inside of one range is compared while the bytes pass to their place. A block that
// is whole only by several ranges, such as a block of many small tensors, is read into memory, and
// the ranges are copied from there; so each byte is read once, if the ranges are read in about the
// order of the file. Headers count as read.
//
// Files are opened when they are needed. Where too many are open, the file that was opened first is
// closed: a checkpoint may have more files than a process may open. The header of a file of a
// checkpoint must agree with the manifest. Used by one thread. Internal to checkpoint/.
#ifndef TESSERA_CHECKPOINT_BLOCK_READER_H_
#define TESSERA_CHECKPOINT_BLOCK_READER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "checkpoint/checksum.h"
#include "checkpoint/options.h"
#include "checkpoint/source.h"
#include "files/random_access_file.h"
#include "files/safetensors.h"

namespace tessera::checkpoint::internal {

class BlockReader {
 public:
  static constexpr size_t kMostOpenFiles = 256;

  // `source` must outlive the reader. `most_open_files`: 1 or more.
  BlockReader(const Source& source, RestoreOptions::Verify verify,
              size_t most_open_files = kMostOpenFiles)
      : source_(source),
        verifies_(source.is_checkpoint && verify != RestoreOptions::Verify::kNone),
        most_open_files_(most_open_files) {}

  // Whether read() compares checksums.
  bool verifies() const { return verifies_; }
  // Announces a range that will be read. All ranges are announced before the first is read. Has no
  // effect unless verifies().
  void want(int file, int64_t offset, int64_t bytes);
  // DataLoss names file, block, and the tensors in it.
  Status read(int file, int64_t offset, absl::Span<std::byte> out);
  // Reads a block and compares its checksum, whatever the header says. Requires a checkpoint.
  Status verify_block(int file, int64_t block);
  // Compares the header with the manifest. Requires a checkpoint.
  Status verify_header(int file);

 private:
  using BlockKey = std::pair<int, int64_t>;  // file and block
  struct OpenFile {
    std::shared_ptr<const files::RandomAccessFile> file;  // null: closed
    int64_t header_bytes = 0;                             // 0: the header was not read
  };
  struct PieceOfFile {
    int tensor;
    int piece;
  };
  struct Cached {
    BlockKey key;
    std::vector<std::byte> bytes;
  };

  enum class Header { kIgnore, kCheck };
  // Valid until the next call.
  StatusOr<const OpenFile*> open(int file, Header header);
  // DataLoss names both where a tensor has another dtype, shape or place, or another save wrote the
  // file.
  Status check_header(int file, const files::SafetensorsHeader& header, const std::string& path);
  int64_t block_bytes(int file, int64_t block) const;
  bool is_wanted_whole(const OpenFile& opened, int file, int64_t block) const;
  // Reads a whole block to `out` and compares it.
  Status read_block(const OpenFile& opened, int file, int64_t block, absl::Span<std::byte> out);
  StatusOr<const Cached*> cached_block(const OpenFile& opened, int file, int64_t block);
  Status compare(int file, int64_t block, uint64_t found) const;

  const Source& source_;
  const bool verifies_;
  const size_t most_open_files_;
  std::map<int, OpenFile> files_;
  std::deque<int> open_;                          // in the order in which they were opened
  std::vector<std::vector<PieceOfFile>> pieces_;  // by file; empty until the first header
  std::map<BlockKey, int64_t> wanted_;            // bytes, by block
  std::list<Cached> cache_;                       // the latest first
  Checksum64 checksum_;
};

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_BLOCK_READER_H_
