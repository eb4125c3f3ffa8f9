// SPDX-License-Identifier: Apache-2.0
#include "files/random_access_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tessera::files {

StatusOr<std::shared_ptr<const RandomAccessFile>> RandomAccessFile::open(const std::string& path,
                                                                         Links links) {
  // The system would take the path only up to the zero.
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot open file ", quoted_whole(path), ": a path has no byte 00"));
  }
  // O_NONBLOCK: without it, opening a pipe would wait for a writer.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (links == Links::kRefuse ? O_NOFOLLOW : 0);
  FileDescriptor descriptor(::open(path.c_str(), flags));
  if (!descriptor.is_open() && errno == ELOOP && links == Links::kRefuse) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read ", quoted_whole(path), ": it is a symbolic link"));
  }
  struct stat info = {};
  if (!descriptor.is_open() || fstat(descriptor.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open file ", quoted_whole(path)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read ", quoted_whole(path), ": it is not a regular file"));
  }
  return std::shared_ptr<const RandomAccessFile>(
      new RandomAccessFile(path, std::move(descriptor), static_cast<int64_t>(info.st_size)));
}

Status RandomAccessFile::read(int64_t offset, absl::Span<std::byte> out) const {
  const StatusOr<size_t> done = read_some(offset, out);
  if (!done.ok()) return with_context(done.status(), absl::StrCat("file ", quoted_whole(path_)));
  if (*done == out.size()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("file ", quoted_whole(path_), ": it has no bytes ",
                                          offset, " to ", offset + static_cast<int64_t>(out.size()),
                                          ": it ends at ", offset + static_cast<int64_t>(*done),
                                          ", and had ", size_, " bytes when it was opened"));
}

StatusOr<size_t> RandomAccessFile::read_some(int64_t offset, absl::Span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = pread(descriptor_.get(), out.data() + done, out.size() - done,
                              static_cast<off_t>(offset + static_cast<int64_t>(done)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, "pread");
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

StatusOr<std::string> RandomAccessFile::read_front(int64_t count) const {
  std::string bytes(static_cast<size_t>(std::min(count, size_)), '\0');
  TESSERA_RETURN_IF_ERROR(
      read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size())));
  return bytes;
}

}  // namespace tessera::files
