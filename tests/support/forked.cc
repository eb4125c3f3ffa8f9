// SPDX-License-Identifier: Apache-2.0
#include "tests/support/forked.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace tessera::testing {
namespace {

// A forked child that reports a Status through a pipe.
struct Child {
  pid_t pid;
  int report;
};

Child start_child(const std::function<Status()>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    const Status status = body();
    const std::string report =
        std::string(1, static_cast<char>(status.code())) + std::string(status.message());
    (void)!write(ends[1], report.data(), report.size());
    std::fflush(nullptr);
    _exit(0);
  }
  close(ends[1]);
  return {pid, ends[0]};
}

Status wait_for_child(Child child, absl::Time end) {
  std::string report;
  bool expired = false;
  while (true) {
    pollfd waiting = {child.report, POLLIN, 0};
    const int left_ms = static_cast<int>(absl::ToInt64Milliseconds(end - steady_now()));
    expired = left_ms <= 0 || poll(&waiting, 1, left_ms) == 0;
    char buffer[4096];
    const ssize_t count = expired ? 0 : read(child.report, buffer, sizeof buffer);
    if (count <= 0) break;
    report.append(buffer, static_cast<size_t>(count));
  }
  close(child.report);
  // The group: clients that are processes of their own die with it.
  kill(-child.pid, SIGKILL);
  int wait_status = 0;
  waitpid(child.pid, &wait_status, 0);
  if (expired) return absl::AbortedError("the job did not end in time, and was killed");
  if (!report.empty()) {
    return Status(static_cast<absl::StatusCode>(report[0]), report.substr(1));
  }
  return absl::AbortedError(
      WIFSIGNALED(wait_status)
          ? absl::StrCat("the job died of signal ", strsignal(WTERMSIG(wait_status)))
          : absl::StrCat("the job exited early with code ", WEXITSTATUS(wait_status)));
}

}  // namespace

Status run_isolated(absl::Duration deadline, const std::function<Status()>& body) {
  return wait_for_child(start_child(body), steady_now() + deadline);
}

std::vector<Status> run_forked(int num_children, absl::Duration deadline,
                               const std::function<Status(int child)>& body) {
  std::vector<Child> children;
  for (int i = 0; i < num_children; ++i) {
    children.push_back(start_child([&] { return body(i); }));
  }
  const absl::Time end = steady_now() + deadline;
  std::vector<Status> result;
  for (const Child& child : children) result.push_back(wait_for_child(child, end));
  return result;
}

}  // namespace tessera::testing
