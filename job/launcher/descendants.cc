// SPDX-License-Identifier: Apache-2.0
#include "job/launcher/descendants.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// A process that forks faster than it is killed is left after so many rounds.
constexpr int kMostRounds = 1000;

struct Child {
  pid_t pid;
  bool has_ended;
};

std::vector<Child> list_children() {
  std::vector<Child> children;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc"), closedir);
  if (folder == nullptr) return children;
  while (const dirent* const entry = readdir(folder.get())) {
    pid_t pid;
    if (!absl::SimpleAtoi(entry->d_name, &pid)) continue;
    std::string text;
    std::getline(std::ifstream(absl::StrCat("/proc/", pid, "/stat")), text);
    // "pid (name) state parent ...", where the name may have any characters.
    const size_t end_of_name = text.rfind(')');
    char state;
    pid_t parent;
    if (end_of_name == std::string::npos ||
        std::sscanf(text.c_str() + end_of_name + 1, " %c %d", &state, &parent) != 2) {
      continue;
    }
    if (parent == getpid()) children.push_back({pid, state == 'Z'});
  }
  return children;
}

std::vector<Child> list_orphans(absl::Span<const pid_t> known) {
  std::vector<Child> children = list_children();
  std::erase_if(children, [&](const Child& child) {
    return std::find(known.begin(), known.end(), child.pid) != known.end();
  });
  return children;
}

void reap(pid_t pid) {
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

void adopt_descendants() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

void reap_orphans(absl::Span<const pid_t> known) {
  for (const Child& orphan : list_orphans(known)) {
    if (orphan.has_ended) reap(orphan.pid);
  }
}

void kill_orphans(absl::Span<const pid_t> known) {
  for (int round = 0; round < kMostRounds; ++round) {
    const std::vector<Child> orphans = list_orphans(known);
    if (orphans.empty()) return;
    for (const Child& orphan : orphans) kill(orphan.pid, SIGKILL);
    for (const Child& orphan : orphans) reap(orphan.pid);
  }
}

}  // namespace tessera
