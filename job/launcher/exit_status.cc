// SPDX-License-Identifier: Apache-2.0
#include "job/launcher/exit_status.h"

#include <sched.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera {

namespace {

// Whether a thread has a SIGKILL to act on. Whatever ends a process, the kernel gives one to each
// of its threads; a thread may be gone before another one has run. `folder` is its place in /proc.
bool has_pending_kill(const std::string& folder) {
  std::ifstream file(absl::StrCat(folder, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "SigPnd:") && !absl::StartsWith(line, "ShdPnd:")) continue;
    const uint64_t mask = std::strtoull(line.c_str() + 7, nullptr, 16);
    if ((mask & (uint64_t{1} << (SIGKILL - 1))) != 0) return true;
  }
  return false;
}

bool is_thread_ending(const std::string& folder) {
  constexpr uint64_t kExitingFlag = 0x4;  // PF_EXITING of linux/sched.h
  std::ifstream file(absl::StrCat(folder, "/stat"));
  std::string text;
  std::getline(file, text);
  // "tid (name) state ppid pgrp session tty tpgid flags ...": a name may hold blanks and brackets.
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string skipped;
  for (int i = 0; i < 6; ++i) fields >> skipped;
  uint64_t flags = 0;
  fields >> flags;
  return (flags & kExitingFlag) != 0;
}

enum class Ending { kNone, kSome, kAll };
// Which threads of the process end. A thread that is listed and then gone has ended.
Ending ending_threads(const std::string& threads) {
  std::error_code error;
  bool any = false;
  bool all = true;
  for (const auto& thread : std::filesystem::directory_iterator(threads, error)) {
    const std::string folder = thread.path().string();
    if (has_pending_kill(folder)) return Ending::kAll;
    const bool is_ending = is_thread_ending(folder) || !std::filesystem::exists(folder, error);
    any |= is_ending;
    all &= is_ending;
  }
  return !any ? Ending::kNone : all ? Ending::kAll : Ending::kSome;
}

}  // namespace

ExitStatus ExitStatus::of_wait(int wait_status) {
  if (WIFSIGNALED(wait_status)) return {.signal = WTERMSIG(wait_status)};
  return {.code = WEXITSTATUS(wait_status)};
}

int ExitStatus::shell_code() const {
  if (!is_known) return 1;
  return signal == 0 ? code : 128 + signal;
}

std::string ExitStatus::to_string() const {
  if (!is_known) return "ended, and the kernel no longer knows how";
  if (signal == 0) return absl::StrCat("exited with code ", code);
  const char* name = sigabbrev_np(signal);
  if (name == nullptr) return absl::StrCat("was killed by signal ", signal);
  return absl::StrCat("was killed by SIG", name, " (", sigdescr_np(signal), ")");
}

// Looks at all threads: the main thread may end by pthread_exit(), and leave the process to the
// others. For a moment, a thread that has taken its SIGKILL does not say yet that it exits, and
// looks like a thread that goes on: where other threads end it is looked at again.
bool is_process_ending(pid_t pid) {
  constexpr int kLooks = 100;
  const std::string threads = absl::StrCat("/proc/", pid, "/task");
  Ending ending = ending_threads(threads);
  for (int look = 1; look < kLooks && ending == Ending::kSome; ++look) {
    sched_yield();
    ending = ending_threads(threads);
  }
  return ending == Ending::kAll;
}

}  // namespace tessera
