// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/saver_mark.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "checkpoint/names.h"
#include "files/new_file.h"

namespace tessera::checkpoint::internal {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string boot_id() {
  return std::string(absl::StripAsciiWhitespace(read_text("/proc/sys/kernel/random/boot_id")));
}

// The start of a process, empty where it does not run. The name of the program, in brackets, may
// hold blanks; the state follows it, and the start is the 20th word after it. A zombie has ended.
std::string start_of(int64_t pid) {
  const std::string text = read_text(absl::StrCat("/proc/", pid, "/stat"));
  const size_t bracket = text.rfind(')');
  if (bracket == std::string::npos) return "";
  const std::vector<std::string> words =
      absl::StrSplit(text.substr(bracket + 1), ' ', absl::SkipEmpty());
  constexpr size_t kStart = 19;
  if (words.size() <= kStart || words[0] == "Z" || words[0] == "X") return "";
  return words[kStart];
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

}  // namespace

Status write_mark(const std::string& folder, absl::string_view save_id) {
  const std::string path = join_path(folder, mark_name(save_id));
  const std::string text = absl::StrCat("host ", host_name(), "\nboot ", boot_id(), "\npid ",
                                        getpid(), "\nstart ", start_of(getpid()), "\n");
  // The mark appears with its text: a process that ends before that has not begun its save.
  TESSERA_ASSIGN_OR_RETURN(files::NewFile file,
                           files::NewFile::create(path, absl::StrCat(path, kPartialSuffix), 0));
  TESSERA_RETURN_IF_ERROR(file.write(
      0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size())));
  return file.commit(files::NewFile::Replace::kYes);
}

void remove_mark(const std::string& folder, absl::string_view save_id) {
  unlink(join_path(folder, mark_name(save_id)).c_str());
}

bool may_be_writing(const std::string& folder, absl::string_view save_id) {
  const std::string path = join_path(folder, mark_name(save_id));
  if (access(path.c_str(), F_OK) != 0) return false;
  std::string host, boot, start;
  int64_t pid = 0;
  for (const absl::string_view line : absl::StrSplit(read_text(path), '\n')) {
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
