// SPDX-License-Identifier: Apache-2.0
//
// InputFile: a file that is read at offsets, in small parts. FileParts: finds which of several
// files has an element.
//
// A file is expected not to change while it is used. A file that has become shorter is DataLoss.
#ifndef TESSERA_INPUT_INPUT_FILE_H_
#define TESSERA_INPUT_INPUT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "files/random_access_file.h"

namespace tessera::input {

// Thread-safe.
//
// Reads at most a page apart are answered from a block in memory, so that a small record does not
// take a system call. Other reads, as of a shuffled data set, go to the system.
//
// - The threads of a map read near each other, and so does a client that needs some rows of a
//   batch.
// - A block has the size of the run of near reads before it, at least a page. So every page of it
//   is near a record that was asked for.
class InputFile {
 public:
  // Fails with the system's reason and the path, such as NotFound, or with InvalidArgument for a
  // path that is not a file.
  static StatusOr<std::shared_ptr<const InputFile>> open(const std::string& path);

  const files::RandomAccessFile& file() const { return *file_; }
  const std::string& path() const { return file_->path(); }
  int64_t size() const { return file_->size(); }
  // Fills `out` from the bytes at `offset`. On an error calls `name`, whose result names the bytes
  // in the message: "record 5".
  Status read(int64_t offset, absl::Span<std::byte> out,
              absl::FunctionRef<std::string()> name) const;
  // The first `count` bytes, or all bytes of a shorter file.
  StatusOr<std::string> read_front(int64_t count) const { return file_->read_front(count); }
  // InvalidArgument with the path before the message.
  Status error(absl::string_view message) const;

 private:
  explicit InputFile(std::shared_ptr<const files::RandomAccessFile> file)
      : file_(std::move(file)) {}

  // Reads from the block, if it has the bytes or this read is near the last read. Else returns
  // false.
  bool read_block(int64_t offset, absl::Span<std::byte> out) const;

  const std::shared_ptr<const files::RandomAccessFile> file_;

  mutable std::mutex mutex_;  // guards the members below
  mutable std::vector<std::byte> block_;
  mutable int64_t block_offset_ = 0;
  mutable int64_t next_offset_ = std::numeric_limits<int64_t>::max();  // where the last read ended
  mutable int64_t run_bytes_ = 0;  // total of the latest run of near reads
};

// Finds the file and the place of an element, where file k has counts[k] elements.
class FileParts {
 public:
  explicit FileParts(absl::Span<const int64_t> counts);

  int64_t size() const { return starts_.back(); }
  struct Place {
    size_t file;
    int64_t index;  // in the file
  };
  // Requires 0 <= index < size().
  Place find(int64_t index) const;

 private:
  std::vector<int64_t> starts_;  // the first element of each file, then the total
};

// Opens all files; InvalidArgument for an empty list.
StatusOr<std::vector<std::shared_ptr<const InputFile>>> open_files(
    absl::Span<const std::string> paths);

// The contribution of files to a data set's hash. Equal for equal sizes and equal names without
// folders.
uint64_t hash_of_files(absl::string_view kind,
                       absl::Span<const std::shared_ptr<const InputFile>> files);

}  // namespace tessera::input

#endif  // TESSERA_INPUT_INPUT_FILE_H_
