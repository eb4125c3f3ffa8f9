// SPDX-License-Identifier: Apache-2.0
#include "job/launcher/process.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/system_call.h"

namespace tessera {

StatusOr<Process> Process::start(absl::FunctionRef<void()> body) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return no_resource("a process");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The parent may have died before prctl: then no process would ever end this one.
    if (getppid() == parent) body();
    _exit(1);
  }
  Process process;
  // Not by name: the sys/pidfd.h of glibc 2.36 lacks extern "C".
  process.pidfd_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  const int error = process.pidfd_.is_open() ? 0 : errno;
  if (error == ESRCH) return process;
  process.pid_.value = pid;
  process.owner_ = parent;
  if (error != 0) return failed_call(kPidfdOpen, error, no_resource("a pidfd"));
  return process;
}

Process::~Process() {
  if (is_reaped() || !is_own()) return;
  kill(SIGKILL);
  reap();
}

bool Process::is_own() const { return getpid() == owner_; }

void Process::kill(int signal) {
  if (is_reaped()) return;
  if (pidfd_.is_open()) {
    syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0);
  } else {
    ::kill(pid_.value, signal);
  }
}

std::optional<ExitStatus> Process::poll_exit() {
  if (is_reaped()) return std::nullopt;
  siginfo_t info = {};
  if (waitid(P_PID, pid_.value, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
    // The id may belong to another process by now.
    pid_.value = 0;
    return ExitStatus::unknown();
  }
  if (info.si_pid == 0) return std::nullopt;
  if (info.si_code == CLD_EXITED) return ExitStatus{.code = info.si_status};
  return ExitStatus{.signal = info.si_status};
}

ExitStatus Process::reap() {
  if (is_reaped()) return ExitStatus::unknown();
  int status = 0;
  pid_t reaped;
  do {
    reaped = waitpid(pid_.value, &status, 0);
  } while (reaped < 0 && errno == EINTR);
  const bool is_known = reaped == std::exchange(pid_.value, 0);
  pidfd_.close();
  return is_known ? ExitStatus::of_wait(status) : ExitStatus::unknown();
}

}  // namespace tessera
