// SPDX-License-Identifier: Apache-2.0
//
// Fork, exec, process groups and pidfds behind ChildProcess.
#include "job/launcher/child_process.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/system_call.h"
#include "base/text.h"
#include "job/launcher/status_channel.h"

namespace tessera {
namespace {

struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;
};

StatusOr<Pipe> make_pipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return no_resource("a pipe");
  return Pipe{FileDescriptor(fds[0]), FileDescriptor(fds[1])};
}

StatusOr<Pipe> make_status_channel() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return no_resource("a socket");
  }
  return Pipe{FileDescriptor(fds[0]), FileDescriptor(fds[1])};
}

// The data that the child needs between fork and exec, where nothing may be allocated.
struct ExecPlan {
  std::vector<std::string> paths;  // of the program, in the order in which they are tried
  std::vector<char*> arguments;
  std::vector<char*> environment;
  int input_fd = -1;
  int output_fd = -1;
  int error_fd = -1;
  int status_fd = -1;
  int exec_error_fd = -1;
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// Where the program may be: as given where it has a slash, else in the folders of PATH.
std::vector<std::string> paths_of(const std::string& program) {
  if (program.find('/') != std::string::npos) return {program};
  const char* folders = std::getenv("PATH");
  std::vector<std::string> paths;
  for (absl::string_view folder :
       absl::StrSplit(folders == nullptr ? "/bin:/usr/bin" : folders, ':')) {
    paths.push_back(absl::StrCat(folder, folder.empty() ? "" : "/", program));
  }
  return paths;
}

// Execs the program; returns why that failed. Unlike execvp(3) it does not hand a file that is no
// program to a shell: a damaged program would run as a script.
int try_exec(const ExecPlan& plan) {
  int error = ENOENT;
  for (const std::string& path : plan.paths) {
    execve(path.c_str(), plan.arguments.data(), plan.environment.data());
    if (errno == EACCES) error = EACCES;
    if (errno != EACCES && errno != ENOENT && errno != ENOTDIR) return errno;
  }
  return error;
}

// Runs in the child; async-signal-safe calls only.
[[noreturn]] void exec_child(const ExecPlan& plan) {
  setpgid(0, 0);
  struct sigaction default_action = {};
  default_action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) {
    // nohup stays in force.
    struct sigaction old_action = {};
    const bool keeps_ignoring = signal == SIGHUP && sigaction(signal, nullptr, &old_action) == 0 &&
                                old_action.sa_handler == SIG_IGN;
    if (!keeps_ignoring) sigaction(signal, &default_action, nullptr);
  }
  sigset_t no_signals;
  sigemptyset(&no_signals);
  sigprocmask(SIG_SETMASK, &no_signals, nullptr);

  const bool connected =
      dup2(plan.input_fd, STDIN_FILENO) >= 0 && dup2(plan.output_fd, STDOUT_FILENO) >= 0 &&
      dup2(plan.error_fd, STDERR_FILENO) >= 0 && fcntl(plan.status_fd, F_SETFD, 0) == 0;
  const int error = connected ? try_exec(plan) : errno;
  (void)!write(plan.exec_error_fd, &error, sizeof(error));
  _exit(127);
}

}  // namespace

StatusOr<ChildProcess> ChildProcess::start(const std::vector<std::string>& command,
                                           const std::vector<std::string>& environment,
                                           const std::string& input_text) {
  FileDescriptor source(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!source.is_open()) return no_resource("a descriptor of /dev/null");
  FileDescriptor input;
  if (!input_text.empty()) {
    TESSERA_ASSIGN_OR_RETURN(Pipe pipe, make_pipe());
    const auto size = static_cast<ssize_t>(input_text.size());
    fcntl(pipe.write_end.get(), F_SETFL, O_NONBLOCK);
    if (write(pipe.write_end.get(), input_text.data(), input_text.size()) != size) {
      return no_resource("a pipe for its input");
    }
    source = std::move(pipe.read_end);
    input = std::move(pipe.write_end);
  }
  TESSERA_ASSIGN_OR_RETURN(Pipe output, make_pipe());
  TESSERA_ASSIGN_OR_RETURN(Pipe error, make_pipe());
  TESSERA_ASSIGN_OR_RETURN(Pipe exec_error, make_pipe());
  TESSERA_ASSIGN_OR_RETURN(Pipe status, make_status_channel());
  // Only the launcher's ends: a client expects ordinary, blocking output.
  fcntl(output.read_end.get(), F_SETFL, O_NONBLOCK);
  fcntl(error.read_end.get(), F_SETFL, O_NONBLOCK);

  std::vector<std::string> all_variables = environment;
  all_variables.push_back(absl::StrCat(kStatusFdVariable, "=", status.write_end.get()));
  const ExecPlan plan = {
      .paths = paths_of(command[0]),
      .arguments = pointers(command),
      .environment = pointers(all_variables),
      .input_fd = source.get(),
      .output_fd = output.write_end.get(),
      .error_fd = error.write_end.get(),
      .status_fd = status.write_end.get(),
      .exec_error_fd = exec_error.write_end.get(),
  };
  TESSERA_ASSIGN_OR_RETURN(Process process, Process::start([&plan] { exec_child(plan); }));
  ChildProcess child(std::move(process));
  // Also here: the launcher may signal the group before the child has run at all.
  if (!child.is_reaped()) setpgid(child.pid(), child.pid());
  child.input_ = std::move(input);
  child.output_ = std::move(output.read_end);
  child.error_ = std::move(error.read_end);
  child.status_ = std::move(status.read_end);
  child.exec_error_ = std::move(exec_error.read_end);
  return child;
}

ChildProcess::~ChildProcess() { kill_and_reap(); }

Status ChildProcess::await_exec(const std::string& program) {
  int error = 0;
  ssize_t size;
  do {
    size = read(exec_error_.get(), &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  exec_error_.close();
  if (size != sizeof(error)) return absl::OkStatus();

  const std::string what =
      absl::StrCat("program ", in_quotes(program), " cannot be started: ", std::strerror(error));
  if (error == ENOEXEC) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, "; it should be a program of this machine, or a script that begins with #!"));
  }
  if (error != ENOENT && error != ENOTDIR) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, "; it should be a file that this user may execute"));
  }
  if (access(program.c_str(), F_OK) == 0 && program.find('/') != std::string::npos) {
    return absl::NotFoundError(
        absl::StrCat(what, "; the file is there, but the interpreter that it names is not"));
  }
  return absl::NotFoundError(
      absl::StrCat(what, "; give the path of a program, or a name that is on PATH"));
}

void ChildProcess::signal_group(int signal) {
  if (!is_reaped()) kill(-pid(), signal);
}

void ChildProcess::kill_and_reap() {
  signal_group(SIGKILL);
  process_.reap();
}

}  // namespace tessera
