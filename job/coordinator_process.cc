// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

Status no_resource(absl::string_view what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot make ", what, " for the coordinator: ", std::strerror(errno)));
}

// What the child writes once it listens, or cannot: the code of the Status, then its message.
void write_result(int fd, const Status& status) {
  const auto code = static_cast<int32_t>(status.code());
  std::string bytes(reinterpret_cast<const char*>(&code), sizeof code);
  bytes.append(status.message().data(), status.message().size());
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = write(fd, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno != EINTR) return;
    if (count > 0) done += static_cast<size_t>(count);
  }
}

Status read_result(int fd) {
  std::string bytes;
  char buffer[1024];
  ssize_t count;
  while ((count = read(fd, buffer, sizeof buffer)) != 0) {
    if (count < 0 && errno != EINTR) break;
    if (count > 0) bytes.append(buffer, static_cast<size_t>(count));
  }
  int32_t code = 0;
  if (bytes.size() < sizeof code) {
    return absl::UnavailableError("the process of the coordinator ended before it listened");
  }
  std::memcpy(&code, bytes.data(), sizeof code);
  return Status(static_cast<absl::StatusCode>(code), bytes.substr(sizeof code));
}

// Which signals reach this process.
void set_signals(ProcessGroup group) {
  sigset_t blocked;
  sigset_t of_caller;
  sigfillset(&blocked);
  sigprocmask(SIG_SETMASK, nullptr, &of_caller);
  if (group == ProcessGroup::kOwn) {
    setpgid(0, 0);
  } else {
    for (const int stop : {SIGTSTP, SIGTTIN, SIGTTOU}) {
      if (sigismember(&of_caller, stop) == 0) sigdelset(&blocked, stop);
      // A handler of the caller's program is not for this process.
      struct sigaction action = {};
      if (sigaction(stop, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
      action = {};
      action.sa_handler = SIG_DFL;
      sigaction(stop, &action, nullptr);
    }
  }
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
}

// Leaves the files of the launcher.
void close_files(int kept_fd) {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  dup2(null, STDOUT_FILENO);
  // Not by name: unistd.h has it since glibc 2.34 only. Without it files stay open for a while.
  const auto first = static_cast<unsigned>(STDERR_FILENO) + 1;
  const auto kept = static_cast<unsigned>(kept_fd);
  if (kept > first) syscall(SYS_close_range, first, kept - 1, 0);
  syscall(SYS_close_range, kept + 1, ~0U, 0);
}

[[noreturn]] void serve(int result_fd, const CoordinatorServerOptions& options,
                        ProcessGroup group) {
  set_signals(group);
  close_files(result_fd);
  const StatusOr<std::unique_ptr<CoordinatorServer>> server = CoordinatorServer::start(options);
  write_result(result_fd, server.status());
  close(result_fd);
  if (!server.ok()) _exit(1);
  // The launcher ends this process by SIGKILL.
  while (true) pause();
}

}  // namespace

StatusOr<CoordinatorProcess> CoordinatorProcess::start(const CoordinatorServerOptions& options,
                                                       ProcessGroup group) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return no_resource("a pipe");
  const FileDescriptor read_end(fds[0]);
  FileDescriptor write_end(fds[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return no_resource("a process");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The launcher may have died before prctl: then nothing would ever end this process.
    if (getppid() != parent) _exit(1);
    serve(write_end.get(), options, group);
  }
  write_end.close();
  CoordinatorProcess process;
  process.pid_.value = pid;
  process.owner_ = parent;
  process.pidfd_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process.pidfd_.is_open()) {
    kill(pid, SIGKILL);
    return no_resource("a pidfd");
  }
  TESSERA_RETURN_IF_ERROR(read_result(read_end.get()));
  return process;
}

CoordinatorProcess::~CoordinatorProcess() {
  if (pid_.value == 0 || getpid() != owner_) return;
  if (pidfd_.is_open()) syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  while (waitpid(pid_.value, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<ExitStatus> CoordinatorProcess::poll_exit() {
  pollfd ended = {pidfd_.get(), POLLIN, 0};
  // Where the kernel has begun to end it, the end is a moment away.
  if (poll(&ended, 1, is_process_ending(pid_.value) ? -1 : 0) != 1) return std::nullopt;
  siginfo_t info = {};
  if (waitid(P_PID, pid_.value, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
    return ExitStatus::unknown();
  }
  return info.si_code == CLD_EXITED ? ExitStatus{.code = info.si_status}
                                    : ExitStatus{.signal = info.si_status};
}

}  // namespace tessera
