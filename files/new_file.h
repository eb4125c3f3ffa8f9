// SPDX-License-Identifier: Apache-2.0
//
// NewFile: a file that appears under its name only when it is whole.
//
//   TESSERA_ASSIGN_OR_RETURN(NewFile file, NewFile::create("a/x", "a/x.partial", bytes.size()));
//   TESSERA_RETURN_IF_ERROR(file.write(0, bytes));
//   TESSERA_RETURN_IF_ERROR(file.sync());
//   TESSERA_RETURN_IF_ERROR(file.commit(NewFile::Replace::kNo));
//   TESSERA_RETURN_IF_ERROR(sync_folder("a"));
//
// Invariants:
//   1. no file is written over: the partial file is a new one (O_EXCL), and its mode is 0666 less
//      the umask;
//   2. the destructor removes the partial file, unless commit() returned OK;
//   3. after a write() or sync() that failed, every later call returns that error: a second fsync
//      would return OK for pages that were lost.
//
// Errors carry the reason of the system and the path: NotFound, PermissionDenied, AlreadyExists,
// and ResourceExhausted where there is no room.
//
// write() is thread-safe for disjoint ranges; other calls are made by one thread at a time.
#ifndef TESSERA_FILES_NEW_FILE_H_
#define TESSERA_FILES_NEW_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "job/environment/file_descriptor.h"

namespace tessera::files {

class NewFile {
 public:
  enum class Replace { kNo, kYes };

  // Creates `partial_path`, which becomes `path`, and reserves `size_bytes` on the disk (0: none).
  static StatusOr<NewFile> create(std::string path, std::string partial_path, int64_t size_bytes);
  // Opens the partial file of another client, which creates, commits and removes it.
  static StatusOr<NewFile> join(std::string path, std::string partial_path);

  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&& other) noexcept;
  ~NewFile();

  // Writes all bytes at `offset`.
  Status write(int64_t offset, absl::Span<const std::byte> bytes);
  // Asks the disk to begin with this range, so that sync() has less to wait for.
  void start_writeback(int64_t offset, int64_t size_bytes);
  // Waits until the disk has the contents.
  Status sync();
  // Renames the partial file. AlreadyExists under kNo where the name is taken.
  Status commit(Replace replace);

 private:
  NewFile(std::string path, std::string partial_path, FileDescriptor descriptor, bool owns)
      : path_(std::move(path)),
        partial_path_(std::move(partial_path)),
        descriptor_(std::move(descriptor)),
        owns_(owns) {}
  // The system's error of errno, which stays.
  Status fail(absl::string_view what);
  Status failure() const;

  struct Failure {
    std::mutex mutex;
    Status status;
  };

  std::string path_;
  std::string partial_path_;
  FileDescriptor descriptor_;
  bool owns_;  // whether the destructor removes the partial file
  std::unique_ptr<Failure> failure_ = std::make_unique<Failure>();
};

// The bytes of a text, for write().
inline absl::Span<const std::byte> bytes_of(absl::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}
// The folder of a path: "a" for "a/b" and "a/b/", "." for "b", "/" for "/b".
std::string folder_of(absl::string_view path);
// Makes the names of a folder durable.
Status sync_folder(const std::string& path);
// Makes a folder and the missing folders above it. Returns the folders that were made, the outer
// ones first; after an error none is left.
StatusOr<std::vector<std::string>> make_folders(const std::string& path);
// The system's error for `path`, by errno: "cannot open \"a/x\": Permission denied".
Status file_error(int error, absl::string_view what, absl::string_view path);

}  // namespace tessera::files

#endif  // TESSERA_FILES_NEW_FILE_H_
