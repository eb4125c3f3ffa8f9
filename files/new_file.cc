// SPDX-License-Identifier: Apache-2.0
#include "files/new_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tessera::files {
namespace {

constexpr mode_t kFileMode = 0666;  // less the umask
constexpr mode_t kFolderMode = 0777;
constexpr size_t kMostBytesOfWrite = size_t{1} << 30;

absl::string_view without_last_slashes(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path;
}

// Renames, or fails with EEXIST where the new name is taken. A file system without the flag of
// renameat2() has hard links; one without links (on a remote object store) has no call that fails
// where a file appears in this instant. An error says that the new name is not there.
int rename_to_free_name(const std::string& from, const std::string& to) {
  if (syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
    return 0;
  }
  if (errno != EINVAL && errno != ENOSYS) return errno;
  if (link(from.c_str(), to.c_str()) == 0) {
    unlink(from.c_str());
    return 0;
  }
  if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS) return errno;
  struct stat found = {};
  if (lstat(to.c_str(), &found) == 0) return EEXIST;
  return rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

}  // namespace

Status file_error(int error, absl::string_view what, absl::string_view path) {
  const std::string message = absl::StrCat(what, " ", quoted_whole(path), ": ", strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(message);
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case EEXIST:
    case ENOTEMPTY:
      return absl::AlreadyExistsError(message);
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(message);
    case EIO:
      return absl::DataLossError(message);
    default:
      return absl::UnknownError(message);
  }
}

StatusOr<NewFile> NewFile::create(std::string path, std::string partial_path, int64_t size_bytes) {
  FileDescriptor descriptor(
      open(partial_path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kFileMode));
  if (!descriptor.is_open()) return file_error(errno, "cannot create file", partial_path);
  NewFile file(std::move(path), std::move(partial_path), std::move(descriptor), /*owns=*/true);
  if (size_bytes == 0) return file;
  int error;
  do {
    error = fallocate(file.descriptor_.get(), 0, 0, size_bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  // A file system that cannot reserve room gives the error in write().
  if (error == 0 || error == EOPNOTSUPP || error == ENOSYS) return file;
  return file_error(error, absl::StrCat("no room for the ", size_bytes, " bytes of file"),
                    file.partial_path_);
}

StatusOr<NewFile> NewFile::join(std::string path, std::string partial_path) {
  FileDescriptor descriptor(open(partial_path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!descriptor.is_open()) return file_error(errno, "cannot open file", partial_path);
  return NewFile(std::move(path), std::move(partial_path), std::move(descriptor), /*owns=*/false);
}

NewFile& NewFile::operator=(NewFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(partial_path_, other.partial_path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(owns_, other.owns_);
  std::swap(failure_, other.failure_);
  return *this;
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      partial_path_(std::move(other.partial_path_)),
      descriptor_(std::move(other.descriptor_)),
      owns_(std::exchange(other.owns_, false)),
      failure_(std::move(other.failure_)) {}

NewFile::~NewFile() {
  if (owns_) unlink(partial_path_.c_str());
}

Status NewFile::fail(absl::string_view what) {
  const Status error = file_error(errno, what, partial_path_);
  std::lock_guard<std::mutex> lock(failure_->mutex);
  failure_->status.Update(error);
  return failure_->status;
}

Status NewFile::failure() const {
  std::lock_guard<std::mutex> lock(failure_->mutex);
  return failure_->status;
}

Status NewFile::write(int64_t offset, absl::Span<const std::byte> bytes) {
  TESSERA_RETURN_IF_ERROR(failure());
  while (!bytes.empty()) {
    const ssize_t count =
        pwrite(descriptor_.get(), bytes.data(), std::min(bytes.size(), kMostBytesOfWrite), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail("cannot write file");
    offset += count;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

void NewFile::start_writeback(int64_t offset, int64_t size_bytes) {
  // An error of the disk is reported by sync().
  sync_file_range(descriptor_.get(), offset, size_bytes, SYNC_FILE_RANGE_WRITE);
}

Status NewFile::sync() {
  TESSERA_RETURN_IF_ERROR(failure());
  return fsync(descriptor_.get()) == 0 ? absl::OkStatus() : fail("cannot sync file");
}

Status NewFile::commit(Replace replace) {
  TESSERA_RETURN_IF_ERROR(failure());
  const int error = replace == Replace::kNo
                        ? rename_to_free_name(partial_path_, path_)
                        : (rename(partial_path_.c_str(), path_.c_str()) == 0 ? 0 : errno);
  if (error != 0) return file_error(error, "cannot rename a file to", path_);
  owns_ = false;
  return absl::OkStatus();
}

std::string folder_of(absl::string_view path) {
  path = without_last_slashes(path);
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return ".";
  return std::string(slash == 0 ? "/" : path.substr(0, slash));
}

Status sync_folder(const std::string& path) {
  const FileDescriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open()) return file_error(errno, "cannot open folder", path);
  return fsync(folder.get()) == 0 ? absl::OkStatus()
                                  : file_error(errno, "cannot sync folder", path);
}

StatusOr<std::vector<std::string>> make_folders(const std::string& path) {
  std::vector<std::string> made;
  // From the path upwards to the first folder that is there, then downwards.
  std::vector<std::string> missing;
  for (std::string folder(without_last_slashes(path));; folder = folder_of(folder)) {
    if (mkdir(folder.c_str(), kFolderMode) == 0) {
      made.push_back(folder);
      break;
    }
    if (errno == EEXIST) {
      struct stat found = {};
      if (stat(folder.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) break;
      return file_error(ENOTDIR, "cannot make folder", folder);
    }
    if (errno != ENOENT || folder == folder_of(folder)) {
      return file_error(errno, "cannot make folder", folder);
    }
    missing.push_back(folder);
  }
  while (!missing.empty()) {
    const std::string& folder = missing.back();
    if (mkdir(folder.c_str(), kFolderMode) == 0) {
      made.push_back(folder);
    } else if (errno != EEXIST) {
      const Status status = file_error(errno, "cannot make folder", folder);
      for (auto each = made.rbegin(); each != made.rend(); ++each) rmdir(each->c_str());
      return status;
    }
    missing.pop_back();
  }
  return made;
}

}  // namespace tessera::files
