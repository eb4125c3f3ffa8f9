// SPDX-License-Identifier: Apache-2.0
#include "tools/ckpt_tool/new_folder.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "checkpoint/names.h"
#include "files/new_file.h"

namespace tessera::ckpt_tool {
namespace {

constexpr mode_t kFolderMode = 0777;  // less the umask

// Renames a folder. A file system without the flag of renameat2() still refuses a name that is
// taken by anything but an empty folder.
int rename_folder(const std::string& from, const std::string& to) {
  if (syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
    return 0;
  }
  if (errno != EINVAL && errno != ENOSYS) return errno;
  return rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

}  // namespace

StatusOr<NewFolder> NewFolder::create(std::string path, std::string partial_path) {
  if (mkdir(partial_path.c_str(), kFolderMode) != 0) {
    return files::file_error(errno, "cannot make folder", partial_path);
  }
  return NewFolder(std::move(path), std::move(partial_path));
}

NewFolder::NewFolder(NewFolder&& other) noexcept
    : path_(std::move(other.path_)),
      partial_path_(std::move(other.partial_path_)),
      owns_(std::exchange(other.owns_, false)) {}

NewFolder::~NewFolder() {
  if (!owns_) return;
  const StatusOr<std::vector<std::string>> names = checkpoint::internal::names_in(partial_path_);
  if (names.ok()) {
    for (const std::string& name : *names) {
      unlink(checkpoint::internal::join_path(partial_path_, name).c_str());
    }
  }
  rmdir(partial_path_.c_str());
}

Status NewFolder::commit() {
  TESSERA_RETURN_IF_ERROR(files::sync_folder(partial_path_));
  const int error = rename_folder(partial_path_, path_);
  if (error != 0) return files::file_error(error, "cannot rename a folder to", path_);
  owns_ = false;
  return absl::OkStatus();
}

}  // namespace tessera::ckpt_tool
