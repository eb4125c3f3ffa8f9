// SPDX-License-Identifier: Apache-2.0
//
// InputFile: a file that is read at offsets, and InputFiles: the records of several, one after
// another.
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
#include "job/environment/file_descriptor.h"

namespace tessera::input {

// Thread-safe. Has one descriptor.
//
// Reads near each other in the file, at most a page from one to the next, are answered from a
// block, so that a small record does not take a system call. The threads of a map read so, and a
// client that has some of the rows of a batch. A block is a page, or as large as the run that was
// read before it: every page of it is near a record that was asked for. Reads in another order, as
// of a shuffled data set, go to the system.
class InputFile {
 public:
  // The system's reason with the path, such as NotFound; InvalidArgument for a path that is no
  // file.
  static StatusOr<std::shared_ptr<const InputFile>> open(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  // Fills `out` from the bytes at `offset`. `name` is called on an error, and names them: "record
  // 5".
  Status read(int64_t offset, absl::Span<std::byte> out,
              absl::FunctionRef<std::string()> name) const;
  // The first `count` bytes, and fewer of a file that is shorter.
  StatusOr<std::string> read_front(int64_t count) const;
  // InvalidArgument with the path before the message.
  Status error(absl::string_view message) const;

 private:
  InputFile(std::string path, FileDescriptor descriptor, int64_t size)
      : path_(std::move(path)), descriptor_(std::move(descriptor)), size_(size) {}

  // Reads as many bytes as are there, up to the size of `out`; the system's error.
  StatusOr<size_t> read_some(int64_t offset, absl::Span<std::byte> out) const;
  // Reads by the block, if it has the bytes or this read is near the last one. False: neither.
  bool read_block(int64_t offset, absl::Span<std::byte> out) const;

  const std::string path_;
  const FileDescriptor descriptor_;
  const int64_t size_;

  mutable std::mutex mutex_;  // guards the members below
  mutable std::vector<std::byte> block_;
  mutable int64_t block_offset_ = 0;
  mutable int64_t next_offset_ = std::numeric_limits<int64_t>::max();  // where the last read ended
  mutable int64_t run_bytes_ = 0;  // of the reads up to it that were near each other
};

// Which file has an element, when file k has counts[k].
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
  std::vector<int64_t> starts_;  // of each file, and the end of the last
};

// Opens all files; InvalidArgument for an empty list.
StatusOr<std::vector<std::shared_ptr<const InputFile>>> open_files(
    absl::Span<const std::string> paths);

// The part of a data set's hash that its files give: equal for equal names (without folders) and
// sizes.
uint64_t hash_of_files(absl::string_view kind,
                       absl::Span<const std::shared_ptr<const InputFile>> files);

}  // namespace tessera::input

#endif  // TESSERA_INPUT_INPUT_FILE_H_
