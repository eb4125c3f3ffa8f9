// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <sys/resource.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"

namespace tessera {
namespace {

using Body = absl::AnyInvocable<void()>;

void* run_body(void* argument) {
  const std::unique_ptr<Body> body(static_cast<Body*>(argument));
  (*body)();
  return nullptr;
}

// The first line of a file, empty where it cannot be read.
std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream(path) >> line;
  return line;
}

// The limit of this process's control groups, as in "4096"; empty where there is no limit. Looks in
// the root of the mount too, which is the process's own group inside a container.
std::string group_limit() {
  std::vector<std::string> folders = {"/sys/fs/cgroup", "/sys/fs/cgroup/pids"};
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/path" of version 2, "8:pids:/path" of version 1.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3 || (!parts[1].empty() && parts[1] != "pids")) continue;
    folders.push_back(absl::StrCat(folders[parts[1].empty() ? 0 : 1], parts[2]));
  }
  std::string least;
  uint64_t least_value = 0;
  for (const std::string& folder : folders) {
    uint64_t value = 0;
    const std::string text = first_line(folder + "/pids.max");
    if (!absl::SimpleAtoi(text, &value) || (!least.empty() && value >= least_value)) continue;
    least = text;
    least_value = value;
  }
  return least;
}

// "the user may have 96365 (ulimit -u), the container 4096 (pids.max)".
std::string limits() {
  std::vector<std::string> parts;
  rlimit limit = {};
  if (getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    parts.push_back(absl::StrCat("the user may have ", limit.rlim_cur, " (ulimit -u)"));
  } else {
    parts.push_back("the user may have any number (ulimit -u)");
  }
  if (const std::string group = group_limit(); !group.empty()) {
    parts.push_back(absl::StrCat("the container ", group, " (pids.max)"));
  }
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    parts.push_back(
        absl::StrCat("the address space is ", limit.rlim_cur / 1024, " KiB (ulimit -v)"));
  }
  return absl::StrJoin(parts, ", ");
}

}  // namespace

StatusOr<Thread> start_thread(absl::string_view subject, absl::AnyInvocable<void()> body) {
  auto owned = std::make_unique<Body>(std::move(body));
  pthread_t id;
  const int error = pthread_create(&id, nullptr, run_body, owned.get());
  if (error != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a thread for ", subject, ": ", std::strerror(error),
                     "; of threads ", limits(), "; use fewer devices, or raise the limit"));
  }
  (void)owned.release();  // the thread owns it
  return Thread(id);
}

Status check_threads(absl::string_view subject, int count) {
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  std::vector<Thread> threads;
  Status status;
  for (int i = 0; i < count && status.ok(); ++i) {
    StatusOr<Thread> thread = start_thread(
        absl::StrCat(subject, " (number ", i + 1, " of ", count, ")"), [ended] { ended.wait(); });
    status = thread.status();
    if (thread.ok()) threads.push_back(*std::move(thread));
  }
  end.set_value();
  for (Thread& thread : threads) thread.join();
  return status;
}

Thread& Thread::operator=(Thread&& other) noexcept {
  TESSERA_CHECK(!joinable(), "a running thread is replaced");
  id_.store(other.id_.exchange(0));
  return *this;
}

Thread::~Thread() { TESSERA_CHECK(!joinable(), "a running thread is destroyed"); }

void Thread::join() {
  TESSERA_CHECK(joinable(), "there is no thread to join");
  const int error = pthread_join(id_.load(), nullptr);
  TESSERA_CHECK(error == 0, "a thread joins itself");
  id_.store(0);
}

void Thread::detach() {
  TESSERA_CHECK(joinable(), "there is no thread to detach");
  pthread_detach(id_.exchange(0));
}

}  // namespace tessera
