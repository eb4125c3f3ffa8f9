// SPDX-License-Identifier: Apache-2.0
#include "job/launcher/coordinator_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/system_call.h"

namespace tessera {
namespace {

// How long the service may take to tell all clients that it is over; it takes a second at most.
constexpr int kEndTimeMs = 5000;

// The child's message once it listens, or cannot: the code of the Status, then its message.
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

// The child's result; DeadlineExceeded if it has not come by `deadline`.
Status read_result(int fd, absl::Time deadline) {
  std::string bytes;
  char buffer[1024];
  ssize_t count;
  do {
    pollfd readable = {fd, POLLIN, 0};
    count = -1;
    if (poll(&readable, 1, poll_timeout_ms(deadline - steady_now())) == 1)
      count = read(fd, buffer, sizeof buffer);
    if (count > 0) bytes.append(buffer, static_cast<size_t>(count));
    if (count < 0 && steady_now() >= deadline) {
      return absl::DeadlineExceededError("the process of the coordinator did not say by then");
    }
  } while (count != 0);
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

// Closes the files of the launcher except `kept_fd`, which is above standard error.
void close_files(int kept_fd) {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  dup2(null, STDOUT_FILENO);
  // If it was closed, another file would get its number, and the log with it.
  if (fcntl(STDERR_FILENO, F_GETFD) < 0) dup2(null, STDERR_FILENO);
  // Not by name: unistd.h has it since glibc 2.34 only. Without it files stay open for a while.
  const auto first = static_cast<unsigned>(STDERR_FILENO) + 1;
  const auto kept = static_cast<unsigned>(kept_fd);
  if (kept > first) syscall(SYS_close_range, first, kept - 1, 0);
  syscall(SYS_close_range, kept + 1, ~0U, 0);
}

[[noreturn]] void serve(int channel, const CoordinatorServerOptions& options, ProcessGroup group) {
  set_signals(group);
  close_files(channel);
  const StatusOr<std::unique_ptr<CoordinatorServer>> server = CoordinatorServer::start(options);
  write_result(channel, server.status());
  if (!server.ok()) _exit(1);
  shutdown(channel, SHUT_WR);
  // The launcher writes a byte when the job is over.
  char byte;
  while (read(channel, &byte, 1) < 0 && errno == EINTR) {
  }
  (*server)->stop();
  _exit(0);
}

// Two connected sockets, neither of which has the number of a standard stream: those may be closed.
Status make_channel(FileDescriptor& of_parent, FileDescriptor& of_child) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return no_resource("a socket for the coordinator");
  const FileDescriptor first(fds[0]);
  const FileDescriptor second(fds[1]);
  of_parent = FileDescriptor(fcntl(first.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  of_child = FileDescriptor(fcntl(second.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  return of_parent.is_open() && of_child.is_open() ? absl::OkStatus()
                                                   : no_resource("a socket for the coordinator");
}

}  // namespace

StatusOr<CoordinatorProcess> CoordinatorProcess::start(const CoordinatorServerOptions& options,
                                                       ProcessGroup group, absl::Duration timeout) {
  const absl::Time deadline = steady_now() + timeout;
  FileDescriptor of_parent;
  FileDescriptor of_child;
  TESSERA_RETURN_IF_ERROR(make_channel(of_parent, of_child));
  TESSERA_ASSIGN_OR_RETURN(Process child,
                           Process::start([&] { serve(of_child.get(), options, group); }));
  CoordinatorProcess process(std::move(child), std::move(of_parent));
  of_child.close();
  const Status started = read_result(process.channel_.get(), deadline);
  if (!absl::IsDeadlineExceeded(started)) {
    TESSERA_RETURN_IF_ERROR(started);
    return process;
  }
  process.process_.kill(SIGKILL);
  return absl::DeadlineExceededError(absl::StrCat(
      "the coordinator did not listen on ", options.address, " within ", format_duration(timeout),
      "; see whether this host finds the address of that name, and whether it is overloaded"));
}

CoordinatorProcess::~CoordinatorProcess() {
  if (process_.is_reaped() || !process_.is_own()) return;
  const char byte = 0;
  pollfd ended = {process_.pidfd(), POLLIN, 0};
  const bool is_asked = send(channel_.get(), &byte, 1, MSG_NOSIGNAL) == 1;
  // The destructor of Process kills it where it does not act.
  if (is_asked && poll(&ended, 1, kEndTimeMs) == 1) process_.reap();
}

std::optional<ExitStatus> CoordinatorProcess::poll_exit() {
  pollfd ended = {process_.pidfd(), POLLIN, 0};
  // Where the kernel has begun to end it, the end is a moment away.
  if (poll(&ended, 1, process_.is_ending() ? -1 : 0) != 1) return std::nullopt;
  return process_.poll_exit();
}

}  // namespace tessera
