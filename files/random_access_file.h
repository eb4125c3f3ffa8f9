// SPDX-License-Identifier: Apache-2.0
//
// RandomAccessFile: a regular file that is read at offsets.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto file, RandomAccessFile::open("x.safetensors"));
//   std::vector<std::byte> bytes(8);
//   TESSERA_RETURN_IF_ERROR(file->read(0, absl::MakeSpan(bytes)));
//
// A file is expected not to change while it is open. size() is the size at open; a file that has
// become shorter since then is DataLoss. Nothing is cached here: each read is a system call.
#ifndef TESSERA_FILES_RANDOM_ACCESS_FILE_H_
#define TESSERA_FILES_RANDOM_ACCESS_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "base/status.h"
#include "job/environment/file_descriptor.h"

namespace tessera::files {

// What open() does with a path whose last part is a symbolic link.
enum class Links {
  kFollow,
  kRefuse,  // O_NOFOLLOW: for names that another file gives
};

// Thread-safe. Owns one descriptor, which closes with the object.
class RandomAccessFile {
 public:
  // Returns at once for any path: a pipe is not waited for. Errors name the path:
  //
  // - the system's, such as NotFound and PermissionDenied: "cannot open file "x": ...";
  // - InvalidArgument for a folder, a pipe, a device, and for a link under kRefuse.
  static StatusOr<std::shared_ptr<const RandomAccessFile>> open(const std::string& path,
                                                                Links links = Links::kFollow);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }

  // Fills `out` from the bytes at `offset`, which is 0 or more. Errors name the path: the system's,
  // or DataLoss where the file ends before the bytes do.
  Status read(int64_t offset, absl::Span<std::byte> out) const;
  // Reads as many bytes of `out` as the file has at `offset`, and returns their number. Fails with
  // the system's error, without the path.
  StatusOr<size_t> read_some(int64_t offset, absl::Span<std::byte> out) const;
  // The first `count` bytes, or all of a file that had fewer when it was opened. Errors as read().
  StatusOr<std::string> read_front(int64_t count) const;

 private:
  RandomAccessFile(std::string path, FileDescriptor descriptor, int64_t size)
      : path_(std::move(path)), descriptor_(std::move(descriptor)), size_(size) {}

  const std::string path_;
  const FileDescriptor descriptor_;
  const int64_t size_;
};

}  // namespace tessera::files

#endif  // TESSERA_FILES_RANDOM_ACCESS_FILE_H_
