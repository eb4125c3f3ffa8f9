// SPDX-License-Identifier: Apache-2.0
//
// One child: its end, its group, and the refusals of exec.
#include "job/launcher/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/launcher/exit_status.h"
#include "job/launcher/status_channel.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr int kPatienceMs = 60000;

StatusOr<ChildProcess> start_shell(const std::string& script) {
  return ChildProcess::start({"sh", "-c", script}, {"PATH=/usr/bin:/bin"});
}

ExitStatus await_end(ChildProcess& child) {
  pollfd ended = {child.pidfd(), POLLIN, 0};
  EXPECT_EQ(poll(&ended, 1, kPatienceMs), 1);
  return child.poll_exit().value_or(ExitStatus{.code = -1});
}

TEST(ChildProcessTest, EndIsTheCodeOrTheSignal) {
  TESSERA_ASSERT_OK_AND_ASSIGN(ChildProcess code, start_shell("exit 3"));
  EXPECT_THAT(code.await_exec("sh"), IsOk());
  EXPECT_EQ(await_end(code).to_string(), "exited with code 3");
  EXPECT_EQ(await_end(code).shell_code(), 3);
  TESSERA_ASSERT_OK_AND_ASSIGN(ChildProcess crash, start_shell("kill -ABRT $$"));
  EXPECT_EQ(await_end(crash).to_string(), "was killed by SIGABRT (Aborted)");
  EXPECT_EQ(await_end(crash).shell_code(), 128 + SIGABRT);
}

TEST(ChildProcessTest, IsEndingFromTheEndUntilItIsReaped) {
  TESSERA_ASSERT_OK_AND_ASSIGN(ChildProcess child, start_shell("exec sleep 1000"));
  // Under TSan the fork has a thread of its own, which ends where the program begins.
  EXPECT_THAT(child.await_exec("sh"), IsOk());
  EXPECT_FALSE(child.is_ending());
  EXPECT_FALSE(child.poll_exit().has_value());
  child.signal_group(SIGTERM);
  EXPECT_EQ(await_end(child).signal, SIGTERM);
  EXPECT_TRUE(child.is_ending());
  EXPECT_FALSE(child.is_reaped());
  child.kill_and_reap();
  EXPECT_TRUE(child.is_reaped());
  EXPECT_FALSE(child.is_ending());
  EXPECT_FALSE(child.poll_exit().has_value());
}

// Its other threads are the process then.
TEST(ChildProcessTest, EndOfTheMainThreadAloneIsNoEnd) {
  const pid_t child = fork();
  if (child == 0) {
    std::thread([] { pause(); }).detach();
    syscall(SYS_exit, 0);  // as pthread_exit(), but without an exception
  }
  const std::string stat = absl::StrCat("/proc/", child, "/stat");
  const auto is_main_thread_gone = [&] {
    std::ifstream file(stat);
    std::string text;
    std::getline(file, text);
    return absl::StrContains(text, ") Z ");
  };
  // Nothing else tells of the end of a thread of another process.
  for (int i = 0; i < kPatienceMs && !is_main_thread_gone(); ++i) poll(nullptr, 0, 1);
  ASSERT_TRUE(is_main_thread_gone());
  EXPECT_FALSE(is_process_ending(child));
  kill(child, SIGKILL);
  EXPECT_TRUE(is_process_ending(child));
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

// Threads of the child go while its threads are looked at one by one.
TEST(ChildProcessTest, AProcessThatHasBegunToEndIsEndingUntilItIsReaped) {
  constexpr int kRounds = 100;
  constexpr int kThreads = 30;
  for (int round = 0; round < kRounds; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      for (int i = 0; i < kThreads; ++i) std::thread([] { pause(); }).detach();
      std::_Exit(0);
    }
    const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
    bool has_begun = false;
    for (pollfd ended = {pidfd, POLLIN, 0}; poll(&ended, 1, 0) == 0;) {
      const bool is_ending = is_process_ending(child);
      ASSERT_TRUE(is_ending || !has_begun) << "round " << round;
      has_begun = is_ending;
    }
    EXPECT_TRUE(is_process_ending(child));
    close(pidfd);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
  }
}

TEST(ChildProcessTest, DestructorEndsTheChild) {
  pid_t pid = 0;
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(ChildProcess child, start_shell("exec sleep 1000"));
    pid = child.pid();
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_EQ(kill(pid, 0), -1);
}

// The path of a file that this user may execute.
std::string executable_file(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name, "_", getpid());
  std::ofstream(path) << text;
  EXPECT_EQ(chmod(path.c_str(), 0700), 0) << path;
  return path;
}

TEST(ChildProcessTest, ProgramWithoutItsInterpreterIsNamed) {
  const std::string path = executable_file("script", "#!/no/such/interpreter\n");
  TESSERA_ASSERT_OK_AND_ASSIGN(ChildProcess child, ChildProcess::start({path}, {}));
  EXPECT_THAT(child.await_exec(path),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("the file is there, but the interpreter that it names is not")));
}

// execvp(3) would hand such a file to a shell, which takes the bytes for commands.
TEST(ChildProcessTest, FileThatIsNoProgramIsRefused) {
  const std::string path = executable_file("bytes", "exit 0\n");
  TESSERA_ASSERT_OK_AND_ASSIGN(ChildProcess child, ChildProcess::start({path}, {}));
  EXPECT_THAT(child.await_exec(path),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("cannot be started: Exec format error; it should be a program of "
                                 "this machine, or a script that begins with #!")));
}

// The kernel reaps the children of a process that ignores SIGCHLD, and forgets how they ended.
TEST(ChildProcessTest, EndThatTheKernelForgotIsNoSuccess) {
  // The child ends when the parent has opened the pipe, so that its pidfd is there before.
  const std::string path = ::testing::TempDir() + "/gate_" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto former = signal(SIGCHLD, SIG_IGN);
  TESSERA_ASSERT_OK_AND_ASSIGN(ChildProcess child, start_shell("read line < " + path));
  const int gate = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(gate, 0);
  close(gate);
  const ExitStatus end = await_end(child);
  EXPECT_FALSE(end.ok());
  EXPECT_EQ(end.shell_code(), 1);
  EXPECT_EQ(end.to_string(), "ended, and the kernel no longer knows how");
  signal(SIGCHLD, former);
  unlink(path.c_str());
}

// A descriptor that is not a status channel is left alone, whatever its number.
TEST(StatusChannelTest, OtherDescriptorsAreLeftAlone) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  setenv(kStatusFdVariable, std::to_string(fds[1]).c_str(), 1);
  report_fatal_status(absl::InternalError("not for this pipe"));
  setenv(kStatusFdVariable, "three", 1);
  report_fatal_status(absl::InternalError("not for this pipe"));
  close(fds[1]);
  char byte;
  EXPECT_EQ(read(fds[0], &byte, 1), 0);
  close(fds[0]);
}

}  // namespace
}  // namespace tessera
