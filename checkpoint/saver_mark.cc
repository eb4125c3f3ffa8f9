// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/saver_mark.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "checkpoint/names.h"
#include "files/new_file.h"
#include "job/environment/host.h"

namespace tessera::checkpoint::internal {
namespace {

constexpr size_t kMostBytes = 4096;  // of a mark

// The start of a process, empty where it does not run. The name of the program, in brackets, may
// hold blanks; the state follows it, and the start is the 20th word after it. A zombie has ended.
std::string start_of(int64_t pid) {
  std::ostringstream file;
  file << std::ifstream(absl::StrCat("/proc/", pid, "/stat")).rdbuf();
  const std::string text = file.str();
  const size_t bracket = text.rfind(')');
  if (bracket == std::string::npos) return "";
  const std::vector<std::string> words =
      absl::StrSplit(text.substr(bracket + 1), ' ', absl::SkipEmpty());
  constexpr size_t kStart = 19;
  if (words.size() <= kStart || words[0] == "Z" || words[0] == "X") return "";
  return words[kStart];
}

}  // namespace

StatusOr<FileDescriptor> write_mark(const std::string& folder, absl::string_view save_id) {
  const std::string path = join_path(folder, mark_name(save_id));
  const std::string text = absl::StrCat("host ", host_name(), "\nboot ", boot_id(), "\npid ",
                                        getpid(), "\nstart ", start_of(getpid()), "\n");
  // A mark without its text would be that of another host, for ever.
  TESSERA_ASSIGN_OR_RETURN(files::NewFile file,
                           files::NewFile::create(path, absl::StrCat(path, kPartialSuffix), 0));
  TESSERA_RETURN_IF_ERROR(file.write(0, files::bytes_of(text)));
  TESSERA_RETURN_IF_ERROR(file.commit(files::NewFile::Replace::kNo));
  FileDescriptor mark(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  // Without the lock the pid tells.
  if (mark.is_open()) static_cast<void>(flock(mark.get(), LOCK_EX | LOCK_NB));
  return mark;
}

void remove_mark(const std::string& folder, absl::string_view save_id) {
  unlink(join_path(folder, mark_name(save_id)).c_str());
}

bool may_be_writing(const std::string& folder, absl::string_view save_id) {
  const std::string path = join_path(folder, mark_name(save_id));
  const FileDescriptor mark(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!mark.is_open()) return errno != ENOENT;
  if (flock(mark.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) return true;
  char text[kMostBytes];
  const ssize_t size = pread(mark.get(), text, sizeof(text), 0);
  std::string host, boot, start;
  int64_t pid = 0;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(text, std::max<ssize_t>(size, 0)), '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words.size() != 2) continue;
    if (words[0] == "host") host = words[1];
    if (words[0] == "boot") boot = words[1];
    if (words[0] == "start") start = words[1];
    if (words[0] == "pid" && !absl::SimpleAtoi(words[1], &pid)) return true;
  }
  if (host != host_name()) return true;
  if (boot != boot_id()) return false;
  return start_of(pid) == start;
}

}  // namespace tessera::checkpoint::internal
