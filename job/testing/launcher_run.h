// SPDX-License-Identifier: Apache-2.0
//
// LauncherRun: one run of the real tessera_run, or of another launcher, in a test, with its output
// and the ends of processes.
//
//   LauncherRun run = LauncherRun::shell({"--clients", "2"}, "echo ready; exec sleep 1000");
//   run.await_lines("ready", 2);
//   run.send(SIGTERM);
//   EXPECT_EQ(run.wait(), 128 + SIGTERM);
#ifndef TESSERA_JOB_TESTING_LAUNCHER_RUN_H_
#define TESSERA_JOB_TESTING_LAUNCHER_RUN_H_

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gtest/gtest.h"
#include "job/environment/file_descriptor.h"

namespace tessera {

inline constexpr absl::Duration kTestTimeout =
    absl::Seconds(60);  // of every wait; a failure if it ends
// A process that is not a child of the test: the test can wait for its end, and its id is never
// reused while this object exists.
class Watched {
 public:
  explicit Watched(pid_t pid)
      : fd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))),
        is_reaped_(!fd_.is_open() && errno == ESRCH) {}
  bool ends_within(absl::Duration limit) const {
    if (!fd_.is_open()) return is_reaped_;
    pollfd ready = {fd_.get(), POLLIN, 0};
    return poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(limit))) == 1;
  }

 private:
  FileDescriptor fd_;
  bool is_reaped_;
};

// One run of tessera_run with its output. Ends it, and so its clients, when it goes out of scope.
class LauncherRun {
 public:
  using Arguments = std::vector<std::string>;

  explicit LauncherRun(const Arguments& arguments, const Arguments& environment = {})
      : LauncherRun(arguments, environment, "job/tessera_run") {}

  // Any program, found on PATH: `command` and its arguments.
  static LauncherRun program(const Arguments& command, const Arguments& environment = {}) {
    return LauncherRun({command.begin() + 1, command.end()}, environment, command[0]);
  }

  // Client K runs `script` in sh.
  static LauncherRun shell(const Arguments& flags, const std::string& script) {
    Arguments arguments = flags;
    arguments.insert(arguments.end(), {"sh", "-c", script});
    return LauncherRun(arguments);
  }

  ~LauncherRun() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  LauncherRun(const Arguments& arguments, const Arguments& environment,
              const std::string& program) {
    int output[2];
    int error[2];
    EXPECT_EQ(pipe2(output, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(error, O_CLOEXEC), 0);
    std::vector<std::string> command = {program};
    command.insert(command.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& argument : command) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(output[1], STDOUT_FILENO);
      dup2(error[1], STDERR_FILENO);
      for (const std::string& entry : environment) putenv(const_cast<char*>(entry.c_str()));
      execvp(pointers[0], pointers.data());
      _exit(99);
    }
    close(output[1]);
    close(error[1]);
    streams_[0].fd = FileDescriptor(output[0]);
    streams_[1].fd = FileDescriptor(error[0]);
  }

 public:
  LauncherRun(const LauncherRun&) = delete;

  void send(int signal) const { kill(pid_, signal); }
  pid_t pid() const { return pid_; }
  const std::string& output() const { return streams_[0].text; }
  const std::string& error() const { return streams_[1].text; }

  // Reads until `count` lines of standard output have `text`.
  void await_lines(const std::string& text, int count) {
    const auto has_all = [&] {
      int found = 0;
      for (absl::string_view line : absl::StrSplit(output(), '\n')) {
        found += absl::StrContains(line, text) ? 1 : 0;
      }
      return found >= count;
    };
    read_until(has_all);
    EXPECT_TRUE(has_all()) << "no " << count << " lines with \"" << text << "\" in\n" << output();
  }

  // Reads to the end; returns the exit code as in a shell.
  int wait() {
    read_until([] { return false; });
    EXPECT_TRUE(Watched(pid_).ends_within(kTestTimeout));
    int status = 0;
    if (waitpid(std::exchange(pid_, 0), &status, 0) <= 0) return -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  void close_output() { streams_[0].fd.close(); }

  // The rest of each line of standard output that starts with "[client K] word ", by K.
  std::map<int, std::string> told(const std::string& word) const {
    std::map<int, std::string> result;
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(output(), '\n'))) {
      int client = 0;
      const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(' ', 3));
      if (parts.size() < 4 || parts[0] != "[client" || parts[2] != word) continue;
      EXPECT_TRUE(absl::SimpleAtoi(parts[1].substr(0, parts[1].size() - 1), &client)) << line;
      result[client] = parts[3];
    }
    return result;
  }

 private:
  struct Stream {
    FileDescriptor fd;
    std::string text;
  };

  void read_until(const std::function<bool()>& is_enough) {
    const absl::Time deadline = steady_now() + kTestTimeout;
    while (!is_enough() && (streams_[0].fd.is_open() || streams_[1].fd.is_open())) {
      const auto left_ms = absl::ToInt64Milliseconds(deadline - steady_now());
      pollfd fds[] = {{streams_[0].fd.get(), POLLIN, 0}, {streams_[1].fd.get(), POLLIN, 0}};
      if (left_ms <= 0 || poll(fds, 2, static_cast<int>(left_ms)) <= 0) {
        ADD_FAILURE() << "no end within the patience of the test\n" << output() << error();
        return;
      }
      for (int i = 0; i < 2; ++i) {
        if (fds[i].revents == 0) continue;
        char bytes[65536];
        const ssize_t size = read(streams_[i].fd.get(), bytes, sizeof(bytes));
        if (size > 0) streams_[i].text.append(bytes, static_cast<size_t>(size));
        if (size <= 0) streams_[i].fd.close();
      }
    }
  }

  pid_t pid_ = 0;
  Stream streams_[2];
};

}  // namespace tessera

#endif  // TESSERA_JOB_TESTING_LAUNCHER_RUN_H_
