// SPDX-License-Identifier: Apache-2.0
//
// The launcher by its facts: the real tessera_run, with small shell programs as clients.
//
// Order comes from what processes write, from FIFOs and from pidfds. The `sleep 1000` of a client
// stands for "hangs": no test waits for its end.
#include "job/launcher.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/file_descriptor.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using testing::StatusIs;
using ::testing::UnorderedElementsAre;

constexpr absl::Duration kPatience = absl::Seconds(60);  // of every wait; a failure if it ends
constexpr char kHang[] = "exec sleep 1000";

// A process that is not a child of the test: its end can be waited for, its id is never reused
// while this exists.
class Watched {
 public:
  explicit Watched(pid_t pid) : fd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}
  bool ends_within(absl::Duration limit) const {
    if (!fd_.is_open()) return true;  // It has ended, and was reaped.
    pollfd ready = {fd_.get(), POLLIN, 0};
    return poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(limit))) == 1;
  }

 private:
  FileDescriptor fd_;
};

// One run of tessera_run with its output. Ends it, and so its clients, when it goes out of scope.
class LauncherRun {
 public:
  using Arguments = std::vector<std::string>;

  explicit LauncherRun(const Arguments& arguments, const Arguments& environment = {}) {
    int output[2];
    int error[2];
    EXPECT_EQ(pipe2(output, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(error, O_CLOEXEC), 0);
    std::vector<std::string> command = {"job/tessera_run"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& argument : command) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(output[1], STDOUT_FILENO);
      dup2(error[1], STDERR_FILENO);
      for (const std::string& entry : environment) putenv(const_cast<char*>(entry.c_str()));
      execv(pointers[0], pointers.data());
      _exit(99);
    }
    close(output[1]);
    close(error[1]);
    streams_[0].fd = FileDescriptor(output[0]);
    streams_[1].fd = FileDescriptor(error[0]);
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

  // Reads to the end; the exit code as a shell would say it.
  int wait() {
    read_until([] { return false; });
    EXPECT_TRUE(Watched(pid_).ends_within(kPatience));
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
    const absl::Time deadline = absl::Now() + kPatience;
    while (!is_enough() && (streams_[0].fd.is_open() || streams_[1].fd.is_open())) {
      const auto left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
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

// The pids that clients told with "pid N".
std::map<int, pid_t> client_pids(const LauncherRun& run) {
  std::map<int, pid_t> pids;
  for (const auto& [client, text] : run.told("pid"))
    EXPECT_TRUE(absl::SimpleAtoi(text, &pids[client]));
  return pids;
}

std::string temporary_path(const std::string& name) {
  static int count = 0;
  return absl::StrCat(::testing::TempDir(), "/", name, "_", getpid(), "_", ++count);
}

char process_state(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::stringstream text;
  text << file.rdbuf();
  const size_t end = text.str().rfind(')');
  return end == std::string::npos || end + 2 >= text.str().size() ? '?' : text.str()[end + 2];
}

// For a state that has no event of its own.
bool await_state(pid_t pid, char state) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (process_state(pid) != state && absl::Now() < deadline) poll(nullptr, 0, 1);
  return process_state(pid) == state;
}

// ---- ends

TEST(LauncherTest, AllClientsExitZero) {
  LauncherRun run = LauncherRun::shell({"--clients", "3"}, "echo hello; echo warning >&2");
  EXPECT_EQ(run.wait(), 0);
  EXPECT_THAT(std::vector<std::string>(absl::StrSplit(run.output(), '\n', absl::SkipEmpty())),
              UnorderedElementsAre("[client 0] hello", "[client 1] hello", "[client 2] hello"));
  EXPECT_THAT(
      std::vector<std::string>(absl::StrSplit(run.error(), '\n', absl::SkipEmpty())),
      UnorderedElementsAre("[client 0] warning", "[client 1] warning", "[client 2] warning"));
}

TEST(LauncherTest, FailureStopsTheOthersAndIsToldWithItsLastLines) {
  LauncherRun run = LauncherRun::shell(
      {"--clients", "3"},
      absl::StrCat("if [ $RANK != 2 ]; then ", kHang, "; fi; seq 100 130; echo last >&2; exit 7"));
  EXPECT_EQ(run.wait(), 7);
  EXPECT_THAT(run.error(), HasSubstr("tessera_run: 1 of 3 clients failed; the first was client 2"));
  EXPECT_THAT(run.error(), ContainsRegex("client 2 \\([^,]+, pid [0-9]+\\) exited with code 7, "
                                         "[0-9.]+ s after the start \\([0-9T:.+-]+\\)\n"
                                         "  last 20 lines:\n"));
  EXPECT_THAT(run.error(), AllOf(HasSubstr("    | 130\n"), Not(HasSubstr("    | 110\n"))));
  EXPECT_THAT(run.error(), AllOf(Not(HasSubstr("client 0 (")), Not(HasSubstr("client 1 ("))));
}

TEST(LauncherTest, CrashIsToldByTheNameOfTheSignal) {
  LauncherRun run = LauncherRun::shell(
      {"--clients", "2"}, absl::StrCat("if [ $RANK = 1 ]; then kill -SEGV $$; fi; ", kHang));
  EXPECT_EQ(run.wait(), 128 + SIGSEGV);
  EXPECT_THAT(run.error(), ContainsRegex("client 1 \\([^)]+\\) was killed by SIGSEGV "
                                         "\\(Segmentation fault\\)"));
  EXPECT_THAT(run.error(), HasSubstr("it wrote nothing"));
}

// Fact two_failures. The launcher is stopped while both fail, so it sees both at one time and still
// has to know the order.
TEST(LauncherTest, TwoFailuresAreToldInTheOrderOfTheirTimes) {
  const std::string fifo = temporary_path("go");
  ASSERT_EQ(mkfifo(absl::StrCat(fifo, "1").c_str(), 0600), 0);
  ASSERT_EQ(mkfifo(absl::StrCat(fifo, "3").c_str(), 0600), 0);
  LauncherRun run = LauncherRun::shell(
      {"--clients", "4"}, absl::StrCat("echo pid $$; case $RANK in 1|3) read x < ", fifo,
                                       "$RANK; exit 4$RANK;; esac; ", kHang));
  run.await_lines("pid", 4);
  std::map<int, pid_t> pids = client_pids(run);
  run.send(SIGSTOP);
  ASSERT_TRUE(await_state(run.pid(), 'T'));
  for (const int client : {3, 1}) {
    std::ofstream(absl::StrCat(fifo, client)) << "go\n";
    ASSERT_TRUE(await_state(pids[client], 'Z'));
  }
  run.send(SIGCONT);
  EXPECT_EQ(run.wait(), 43);
  EXPECT_THAT(run.error(), HasSubstr("2 of 4 clients failed; the first was client 3"));
  const size_t third = run.error().find("client 3 (");
  const size_t first = run.error().find("client 1 (");
  ASSERT_NE(first, std::string::npos);
  EXPECT_LT(third, first);
  EXPECT_THAT(run.error(), AllOf(Not(HasSubstr("client 0 (")), Not(HasSubstr("client 2 ("))));
}

TEST(LauncherTest, ClientThatFailsBecauseOfAnotherIsTheSecond) {
  const std::string fifo = temporary_path("alive");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  // `read` ends when client 1 has ended and closed its end of the FIFO.
  LauncherRun run = LauncherRun::shell({"--clients", "2", "--settle", "50s"},
                                       absl::StrCat("if [ $RANK = 1 ]; then exec 5> ", fifo,
                                                    "; exit 5; fi; read x < ", fifo, "; exit 6"));
  EXPECT_EQ(run.wait(), 5);
  EXPECT_THAT(run.error(), HasSubstr("2 of 2 clients failed; the first was client 1"));
  EXPECT_THAT(run.error(), HasSubstr("exited with code 6"));
}

TEST(LauncherTest, ClientThatDoesNotEndIsKilledAfterTheGracePeriod) {
  const std::string fifo = temporary_path("trapped");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  LauncherRun run =
      LauncherRun::shell({"--clients", "2", "--grace", "100ms"},
                         absl::StrCat("if [ $RANK = 1 ]; then read x < ", fifo,
                                      "; exit 9; fi; trap '' TERM; echo go > ", fifo, "; ", kHang));
  EXPECT_EQ(run.wait(), 9);
  EXPECT_THAT(run.error(), HasSubstr("1 of 2 clients failed; the first was client 1"));
  EXPECT_THAT(run.error(), ContainsRegex("client 0 .* had not ended after the request to stop"));
}

TEST(LauncherTest, WhatAClientLeavesBehindEndsWithIt) {
  LauncherRun run = LauncherRun::shell({"--clients", "1"}, "sleep 1000 & echo child $!");
  run.await_lines("child", 1);
  const Watched child(std::stoi(run.told("child")[0]));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_TRUE(child.ends_within(absl::Seconds(10)));
}

// A process that left the group is not ours to kill, and holds the output open for ever.
TEST(LauncherTest, EndsAlthoughAnEscapedProcessHoldsTheOutput) {
  LauncherRun run = LauncherRun::shell(
      {"--clients", "1"}, "setsid sh -c 'echo child $$; exec sleep 1000' & exec sleep 1000");
  run.await_lines("child", 1);
  const pid_t child = std::stoi(run.told("child")[0]);
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
  EXPECT_EQ(kill(child, SIGKILL), 0);
}

// ---- signals

class ForwardedSignalTest : public ::testing::TestWithParam<int> {};

// Fact forwarded_signal.
TEST_P(ForwardedSignalTest, ReachesEachClientAndNobodyIsLeft) {
  // Client 1 ignores the signal; the grandchild ends with the group.
  LauncherRun run =
      LauncherRun::shell({"--clients", "3", "--grace", "300ms"},
                         "trap 'echo got INT; exit 0' INT; trap 'echo got TERM; exit 0' TERM; "
                         "if [ $RANK = 1 ]; then trap '' INT TERM; fi; "
                         "sleep 1000 & echo child $!; echo pid $$; while :; do wait; done");
  run.await_lines("pid", 3);
  std::vector<Watched> watched;
  for (const auto& [client, pid] : client_pids(run)) watched.emplace_back(pid);
  for (const auto& [client, text] : run.told("child")) watched.emplace_back(std::stoi(text));
  ASSERT_THAT(watched, SizeIs(6));
  run.send(GetParam());
  EXPECT_EQ(run.wait(), 128 + GetParam());
  const std::string name = GetParam() == SIGINT ? "INT" : "TERM";
  EXPECT_THAT(run.output(), HasSubstr(absl::StrCat("[client 0] got ", name)));
  EXPECT_THAT(run.output(), HasSubstr(absl::StrCat("[client 2] got ", name)));
  EXPECT_THAT(run.error(), HasSubstr(absl::StrCat("tessera_run: stopped by SIG", name)));
  EXPECT_THAT(run.error(), ContainsRegex("client 1 .* had not ended after the request to stop"));
  EXPECT_THAT(run.error(), Not(HasSubstr("failed")));
  for (const Watched& process : watched) EXPECT_TRUE(process.ends_within(absl::Seconds(10)));
}

INSTANTIATE_TEST_SUITE_P(Signals, ForwardedSignalTest, ::testing::Values(SIGTERM, SIGINT),
                         [](const auto& info) {
                           return info.param == SIGINT ? "sigint" : "sigterm";
                         });

TEST(LauncherTest, SecondSignalKillsAtOnce) {
  LauncherRun run = LauncherRun::shell(
      {"--clients", "2", "--grace", "1h"},
      "trap 'echo got it' TERM; echo ready; while :; do sleep 1000 & wait; done");
  run.await_lines("ready", 2);
  run.send(SIGTERM);
  run.await_lines("got it", 2);
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
}

// Fact launcher_killed.
TEST(LauncherTest, NoClientIsLeftWhenTheLauncherIsKilled) {
  LauncherRun run = LauncherRun::shell({"--clients", "4"}, absl::StrCat("echo pid $$; ", kHang));
  run.await_lines("pid", 4);
  std::vector<Watched> watched;
  for (const auto& [client, pid] : client_pids(run)) watched.emplace_back(pid);
  ASSERT_THAT(watched, SizeIs(4));
  run.send(SIGKILL);
  const absl::Time killed = absl::Now();
  for (const Watched& process : watched) {
    EXPECT_TRUE(process.ends_within(killed + absl::Seconds(1) - absl::Now()));
  }
}

TEST(LauncherTest, SeesASignalWhileItsOutputIsNotRead) {
  LauncherRun run = LauncherRun::shell({"--clients", "2", "--grace", "200ms"},
                                       "echo pid $$ >&2; exec yes an_endless_line");
  run.await_lines("an_endless_line", 1);
  run.send(SIGTERM);
  EXPECT_TRUE(Watched(run.pid()).ends_within(kPatience));
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
}

TEST(LauncherTest, StopsWhenTheReaderOfItsOutputIsGone) {
  LauncherRun run = LauncherRun::shell({"--clients", "2"}, "exec yes");
  run.await_lines("y", 1);
  run.close_output();
  EXPECT_EQ(run.wait(), 128 + SIGPIPE);
  EXPECT_THAT(run.error(), HasSubstr("stopped by SIGPIPE"));
}

// ---- output

// Fact long_line.
TEST(LauncherTest, LongLineIsCompleteAndNotMixedWithOthers) {
  LauncherRun run =
      LauncherRun::shell({"--clients", "2"},
                         "if [ $RANK = 0 ]; then head -c 1048576 /dev/zero | tr '\\0' x; "
                         "else seq 20000; fi");
  EXPECT_EQ(run.wait(), 0);
  const std::string long_line = absl::StrCat("[client 0] ", std::string(1048576, 'x'), "\n");
  const size_t begin = run.output().find(long_line);
  ASSERT_NE(begin, std::string::npos);
  std::string rest = run.output();
  rest.erase(begin, long_line.size());
  int next = 1;
  for (absl::string_view line : absl::StrSplit(rest, '\n', absl::SkipEmpty())) {
    ASSERT_EQ(line, absl::StrCat("[client 1] ", next++));
  }
  EXPECT_EQ(next, 20001);
}

TEST(LauncherTest, OneFileForBothStreamsKeepsLinesWhole) {
  LauncherRun run = LauncherRun::shell(
      {"--clients", "1", "sh", "-c", "exec job/tessera_run \"$@\" 2>&1", "x", "--clients", "3"},
      "seq 3000; seq 3000 >&2");
  EXPECT_EQ(run.wait(), 0);
  std::map<std::string, int> counts;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(run.output(), '\n', absl::SkipEmpty()))) {
    ++counts[line];
  }
  EXPECT_THAT(counts, SizeIs(9000));
  for (const auto& [line, count] : counts) ASSERT_EQ(count, 2) << line;
}

TEST(LauncherTest, LogDirHoldsAFileOfEachClient) {
  const std::string directory = absl::StrCat(temporary_path("logs"), "/deep");
  LauncherRun run = LauncherRun::shell({"--clients", "2", "--log-dir", directory},
                                       "echo out $RANK; printf unterminated");
  EXPECT_EQ(run.wait(), 0);
  for (int client = 0; client < 2; ++client) {
    std::stringstream text;
    text << std::ifstream(absl::StrCat(directory, "/client_", client, ".log")).rdbuf();
    EXPECT_EQ(text.str(), absl::StrCat("out ", client, "\nunterminated\n"));
  }
}

// ---- timeout, restart, status channel

// Fact one_hangs.
TEST(LauncherTest, TimeoutNamesTheClientThatHungWithItsLastLine) {
  LauncherRun run = LauncherRun::shell(
      {"--clients", "4", "--timeout", "2s"},
      absl::StrCat("if [ $RANK = 2 ]; then echo step 811; printf 'step 812'; ", kHang, "; fi"));
  EXPECT_EQ(run.wait(), 124);
  EXPECT_THAT(run.error(),
              HasSubstr("stopped at the timeout of 2s: 1 of 4 clients had not exited"));
  EXPECT_THAT(run.error(), ContainsRegex("client 2 \\([^,]+, pid [0-9]+\\) was still running; its "
                                         "last line was: step 812"));
  EXPECT_THAT(run.error(), Not(HasSubstr("failed")));
}

TEST(LauncherTest, RestartsWithTheSameIdsAndANewToken) {
  LauncherRun run = LauncherRun::shell({"--clients", "2", "--max-restarts", "3"},
                                       "echo attempt $TESSERA_RESTART; echo token $TESSERA_TOKEN; "
                                       "if [ $RANK = 1 ]; then exit $((2 - TESSERA_RESTART)); fi");
  EXPECT_EQ(run.wait(), 0);
  EXPECT_THAT(run.error(),
              AllOf(HasSubstr("tessera_run: restart 1 of 3"),
                    HasSubstr("tessera_run: restart 2 of 3"), Not(HasSubstr("restart 3"))));
  EXPECT_THAT(run.output(), HasSubstr("[client 1] attempt 2"));
  std::set<std::string> tokens;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(run.output(), '\n'))) {
    if (absl::StartsWith(line, "[client 1] token ")) tokens.insert(line);
  }
  EXPECT_THAT(tokens, SizeIs(3));
}

TEST(LauncherTest, GivesUpAfterTheLastRestart) {
  LauncherRun run = LauncherRun::shell({"--clients", "1", "--max-restarts", "1"},
                                       "exit $((3 + TESSERA_RESTART))");
  EXPECT_EQ(run.wait(), 4);
  EXPECT_THAT(run.error(), HasSubstr("exited with code 3"));
}

TEST(LauncherTest, ReportHoldsTheFirstStatusOfTheClient) {
  LauncherRun run({"--clients", "2", "job/launcher_test_client"});
  EXPECT_EQ(run.wait(), 8);
  EXPECT_THAT(run.error(), HasSubstr("  error: UNAVAILABLE: lost client 7\n  last 1 line:\n"
                                     "    | reported\n"));
  EXPECT_THAT(run.error(), Not(HasSubstr("consequence")));
}

// ---- environment

// Fact ranks_for_others.
TEST(LauncherTest, ClientsFindTheirRanks) {
  LauncherRun run({"--clients", "2", "--devices-per-client=3", "sh", "-c",
                   "echo ids $TESSERA_CLIENT_ID $TESSERA_NUM_CLIENTS $TESSERA_LOCAL_DEVICES $RANK "
                   "$LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE; "
                   "echo address $TESSERA_COORDINATOR $MASTER_ADDR $MASTER_PORT; "
                   "echo token $TESSERA_TOKEN; echo arguments $*",
                   "sh", "--clients", "7", "--help"});
  EXPECT_EQ(run.wait(), 0);
  EXPECT_THAT(run.told("ids"),
              ElementsAre(std::make_pair(0, "0 2 3 0 0 2 2"), std::make_pair(1, "1 2 3 1 1 2 2")));
  std::map<int, std::string> addresses = run.told("address");
  EXPECT_THAT(addresses[0], ::testing::MatchesRegex("127.0.0.1:[0-9]+ 127.0.0.1 [0-9]+"));
  EXPECT_EQ(addresses[0], addresses[1]);
  std::map<int, std::string> tokens = run.told("token");
  EXPECT_THAT(tokens[0], ::testing::MatchesRegex("[0-9a-f]+"));
  EXPECT_THAT(tokens[0], SizeIs(32));
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_EQ(run.told("arguments")[0], "--clients 7 --help");
}

TEST(LauncherTest, SecondHostContinuesTheIds) {
  LauncherRun run({"--clients", "2", "--nodes", "3", "--node-id", "1", "--coordinator",
                   "[::1]:4000", "sh", "-c",
                   "echo ids $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $TESSERA_COORDINATOR "
                   "$MASTER_ADDR $MASTER_PORT $TESSERA_TOKEN"},
                  {"TESSERA_TOKEN=secret"});
  EXPECT_EQ(run.wait(), 0);
  EXPECT_THAT(run.told("ids"),
              ElementsAre(std::make_pair(2, "2 0 6 2 [::1]:4000 ::1 4000 secret"),
                          std::make_pair(3, "3 1 6 2 [::1]:4000 ::1 4000 secret")));
}

// The ports are held while the job runs, and yet a client can serve at them.
TEST(LauncherTest, ClientCanServeAtTheAddresses) {
  LauncherRun run = LauncherRun::shell(
      {"--clients", "1"},
      absl::StrCat("echo ports ${TESSERA_COORDINATOR#*:} $MASTER_PORT; ", kHang));
  run.await_lines("ports", 1);
  const std::vector<std::string> ports = absl::StrSplit(run.told("ports")[0], ' ');
  ASSERT_THAT(ports, SizeIs(2));
  EXPECT_NE(ports[0], ports[1]);
  for (const int option : {0, SO_REUSEADDR, SO_REUSEPORT}) {
    for (const std::string& port : ports) {
      FileDescriptor server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const int on = 1;
      if (option != 0) setsockopt(server.get(), SOL_SOCKET, option, &on, sizeof(on));
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(std::stoi(port)));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      const int bound = bind(server.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
      EXPECT_EQ(bound == 0, option != 0) << port << " option " << option;
      if (bound == 0) {
        EXPECT_EQ(listen(server.get(), 1), 0) << std::strerror(errno);
      }
    }
  }
}

// ---- refusals

struct RefusalCase {
  const char* name;
  std::vector<std::string> arguments;
  int exit_code;
  const char* message;  // a regular expression
};

void PrintTo(const RefusalCase& row, std::ostream* out) { *out << row.name; }

class RefusalTest : public ::testing::TestWithParam<RefusalCase> {};

TEST_P(RefusalTest, SaysWhatIsWrong) {
  unsetenv("TESSERA_TOKEN");
  LauncherRun run(GetParam().arguments);
  EXPECT_EQ(run.wait(), GetParam().exit_code);
  EXPECT_EQ(run.output(), "");
  EXPECT_THAT(run.error(),
              ContainsRegex(absl::StrCat("^tessera_run: ", GetParam().message, "\n$")));
}

const RefusalCase kRefusals[] = {
    {"no_such_name",
     {"--clients", "2", "no_such_program"},
     127,
     "program \"no_such_program\" cannot be started: No such file or directory; give the path of "
     "a program, or a name that is on PATH"},
    {"no_such_path",
     {"--clients", "2", "./no/such"},
     127,
     "program \"./no/such\" cannot be started: No such file or directory; give .*"},
    {"not_executable",
     {"--clients", "2", "/proc/self/status"},
     126,
     "program \"/proc/self/status\" cannot be started: Permission denied; it should be a file "
     "that this user may execute"},
    {"directory",
     {"--clients", "2", "/proc"},
     126,
     "program \"/proc\" cannot be started: Permission denied; it should be .*"},
    {"nothing",
     {},
     2,
     "--clients is 0; it should be at least 1, as in tessera_run --clients 4 ./train"},
    {"no_program",
     {"--clients", "2"},
     2,
     "no program is given; put it after the flags, as in tessera_run --clients 4 ./train"},
    {"no_value", {"--clients"}, 2, "--clients has no value; it should be a whole number"},
    {"not_a_number",
     {"--clients=two", "true"},
     2,
     "--clients is \"two\"; it should be a whole number"},
    {"not_a_time",
     {"--clients=2", "--timeout", "10", "true"},
     2,
     "--timeout is \"10\"; it should be a time such as 90s, 10m or 1h30m"},
    {"unknown_flag",
     {"--client", "2", "true"},
     2,
     "there is no flag \"--client\"; see tessera_run --help, and put the flags of the program "
     "after the program"},
    {"log_dir_is_a_file",
     {"--clients=1", "--log-dir=/proc/self/status", "true"},
     2,
     "--log-dir is \"/proc/self/status\", .* cannot be made: .*"},
    {"no_token",
     {"--clients=1", "--nodes=2", "--coordinator=a:1", "true"},
     2,
     "TESSERA_TOKEN is not set; with --nodes 2 it should hold one random text, the same on every "
     "host"},
};

INSTANTIATE_TEST_SUITE_P(Rows, RefusalTest, ::testing::ValuesIn(kRefusals),
                         [](const auto& info) { return info.param.name; });

LauncherOptions with(const std::function<void(LauncherOptions&)>& change) {
  LauncherOptions options;
  options.num_clients = 4;
  options.command = {"true"};
  change(options);
  return options;
}

TEST(LauncherOptionsTest, RefusesEachBadValue) {
  struct Row {
    const char* message;
    std::function<void(LauncherOptions&)> change;
  };
  const Row rows[] = {
      {"--clients is -1; it should be at least 1", [](auto& o) { o.num_clients = -1; }},
      {"--devices-per-client is 0; it should be at least 1",
       [](auto& o) { o.devices_per_client = 0; }},
      {"--max-restarts is -1; it should be at least 0", [](auto& o) { o.max_restarts = -1; }},
      {"--timeout is 0; it should be a positive time such as 90s or 10m",
       [](auto& o) { o.timeout = absl::ZeroDuration(); }},
      {"--grace is -1s; it should be a positive time",
       [](auto& o) { o.grace = -absl::Seconds(1); }},
      {"--settle is -1s; it should be a positive time",
       [](auto& o) { o.settle = -absl::Seconds(1); }},
      {"--nodes is 0; it should be at least 1", [](auto& o) { o.num_nodes = 0; }},
      {"--node-id is 2; it should be from 0 to 1 with --nodes 2",
       [](auto& o) { o.num_nodes = o.node_id = 2; }},
      {"--nodes is 2000000000; it should be fewer with --clients 4",
       [](auto& o) { o.num_nodes = 2000000000; }},
      {"--coordinator is not given; with --nodes 2 it should be HOST:PORT",
       [](auto& o) { o.num_nodes = 2; }},
      {"--max-restarts is 1; it should be 0 with --nodes",
       [](auto& o) {
         o.num_nodes = 2;
         o.coordinator = "a:1";
         o.max_restarts = 1;
       }},
      {"--coordinator is \"a\"; it should be HOST:PORT", [](auto& o) { o.coordinator = "a"; }},
      {"--coordinator is \"a:65536\"; it should be HOST:PORT",
       [](auto& o) { o.coordinator = "a:65536"; }},
      {"no program is given", [](auto& o) { o.command.clear(); }},
  };
  for (const Row& row : rows) {
    EXPECT_THAT(with(row.change).validate(),
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(row.message)));
  }
  EXPECT_THAT(with([](auto&) {}).validate(), IsOk());
}

TEST(LauncherTest, HelpListsEveryFlag) {
  LauncherRun run({"--help"});
  EXPECT_EQ(run.wait(), 0);
  for (const char* flag :
       {"--clients N", "--devices-per-client D", "--timeout TIME", "--max-restarts R",
        "--log-dir DIR", "--grace TIME  (5s)", "--settle TIME", "--nodes M", "--node-id K",
        "--coordinator HOST:PORT"}) {
    EXPECT_THAT(run.output(), HasSubstr(flag));
  }
}

}  // namespace
}  // namespace tessera
