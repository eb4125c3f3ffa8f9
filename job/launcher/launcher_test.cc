// SPDX-License-Identifier: Apache-2.0
//
// The launcher by its facts: the real tessera_run, with small shell programs as clients.
//
// Order comes from what processes write, from FIFOs and from pidfds. The `sleep 1000` of a client
// stands for "hangs": no test waits for its end.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/environment/file_descriptor.h"
#include "job/testing/launcher_run.h"
#include "tests/support/sanitizers.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr char kHang[] = "exec sleep 1000";

// The pids that clients printed as "pid N".
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

std::string temporary_fifo(const std::string& name) {
  std::string path = temporary_path(name);
  EXPECT_EQ(mkfifo(path.c_str(), 0600), 0) << path;
  return path;
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
  const absl::Time deadline = steady_now() + kTestTimeout;
  while (process_state(pid) != state && steady_now() < deadline) poll(nullptr, 0, 1);
  return process_state(pid) == state;
}

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

TEST(LauncherTest, ReportNamesTheClientsThatWereStopped) {
  LauncherRun run = LauncherRun::shell({"--clients", "3"},
                                       absl::StrCat("if [ $RANK = 1 ]; then exit 7; fi; ", kHang));
  EXPECT_EQ(run.wait(), 7);
  EXPECT_THAT(run.error(), HasSubstr("tessera_run: then stopped clients 0, 2\n"));
}

// The kernel may take long to kill a client for its memory; meanwhile the launcher signals it.
TEST(LauncherTest, ClientThatAnotherSenderKillsHasFailed) {
  const std::string fifo = temporary_fifo("ready");
  LauncherRun run = LauncherRun::shell(
      {"--clients", "2", "--settle", "0s"},
      absl::StrCat("if [ $RANK = 0 ]; then read x < ", fifo, "; exit 3; fi; ",
                   "trap 'kill -KILL $$' TERM; echo go > ", fifo, "; while :; do :; done"));
  EXPECT_EQ(run.wait(), 3);
  EXPECT_THAT(run.error(), HasSubstr("2 of 2 clients failed; the first was client 0"));
  EXPECT_THAT(run.error(), ContainsRegex("client 1 .* was killed by SIGKILL"));
}

TEST(LauncherTest, ReportOfOneClientStopsNobody) {
  LauncherRun run({"--clients", "1", "false"});
  EXPECT_EQ(run.wait(), 1);
  EXPECT_THAT(run.error(), Not(HasSubstr("then stopped")));
}

// R3. A supervisor may leave SIGCHLD ignored, which is inherited through exec.
TEST(LauncherTest, FailureIsSeenAlthoughSigchldWasIgnored) {
  LauncherRun run = LauncherRun::shell(
      {"--clients", "1"},
      "trap '' CHLD; exec job/tessera_run --clients 2 sh -c 'exit $((3 + RANK))'");
  EXPECT_THAT(run.wait(), ::testing::AnyOf(3, 4));
  EXPECT_THAT(run.error(), HasSubstr("clients failed; the first was client"));
}

TEST(LauncherTest, CrashIsToldByTheNameOfTheSignal) {
  LauncherRun run = LauncherRun::shell(
      {"--clients", "2"}, absl::StrCat("if [ $RANK = 1 ]; then kill -SEGV $$; fi; ", kHang));
  EXPECT_EQ(run.wait(), 128 + SIGSEGV);
  EXPECT_THAT(run.error(), ContainsRegex("client 1 \\([^)]+\\) was killed by SIGSEGV "
                                         "\\(Segmentation fault\\)"));
  EXPECT_THAT(run.error(), HasSubstr("it wrote nothing"));
}

// Fact two_failures. The launcher is stopped while both fail. It then sees both at once, and must
// still report them in order.
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

// `kill -0` works on a client until the launcher has seen its end and reaped it.
constexpr char kAwaitOther[] = "read other < %s; while kill -0 $other 2> /dev/null; do :; done; ";

TEST(LauncherTest, ClientsThatFailOneAfterTheOtherAreAllTold) {
  const std::string fifo = temporary_fifo("other");
  LauncherRun run =
      LauncherRun::shell({"--clients", "2", "--settle", "50s"},
                         absl::StrCat("if [ $RANK = 1 ]; then echo $$ > ", fifo, "; exit 5; fi; ",
                                      absl::StrReplaceAll(kAwaitOther, {{"%s", fifo}}), "exit 6"));
  EXPECT_EQ(run.wait(), 5);
  EXPECT_THAT(run.error(), HasSubstr("2 of 2 clients failed; the first was client 1"));
  EXPECT_THAT(run.error(), ContainsRegex("client 0 .* exited with code 6"));
}

TEST(LauncherTest, ClientThatLostAPeerIsNotTheCauseThoughItEndsFirst) {
  const std::string fifo = temporary_fifo("other");
  LauncherRun run =
      LauncherRun::shell({"--clients", "2", "--settle", "50s"},
                         absl::StrCat("if [ $RANK = 1 ]; then echo $$ > ", fifo,
                                      "; exec job/testing/launcher_test_client; fi; ",
                                      absl::StrReplaceAll(kAwaitOther, {{"%s", fifo}}), "exit 6"));
  EXPECT_EQ(run.wait(), 6);
  EXPECT_THAT(run.error(), HasSubstr("2 of 2 clients failed; the first was client 0"));
  EXPECT_LT(run.error().find("client 0 ("), run.error().find("client 1 ("));
}

TEST(LauncherTest, ClientThatDoesNotEndIsKilledAfterTheGracePeriod) {
  const std::string fifo = temporary_fifo("trapped");
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

// A process that left the group of its client, and holds the output open, ends with the job.
TEST(LauncherTest, AProcessThatHasASessionOfItsOwnEndsWithTheJob) {
  LauncherRun run =
      LauncherRun::shell({"--clients", "1", "--grace", "100ms"},
                         "setsid sh -c 'echo child $$; exec sleep 1000' & exec sleep 1000");
  run.await_lines("child", 1);
  const Watched child(std::stoi(run.told("child")[0]));
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
  EXPECT_TRUE(child.ends_within(absl::ZeroDuration()));
}

// The parents of such a process have ended, its own children are in other sessions again, and its
// client ends by itself, or begins again.
TEST(LauncherTest, NoDescendantIsLeft) {
  const std::string fifo = temporary_fifo("ready");
  LauncherRun run = LauncherRun::shell(
      {"--clients", "1", "--max-restarts", "1"},
      absl::StrCat("(setsid sh -c 'setsid sh -c \"echo child \\$\\$; echo > ", fifo,
                   "; exec sleep 1000\" & echo child $$; wait' &); read x < ", fifo, "; exit 3"));
  run.await_lines("child", 4);
  EXPECT_EQ(run.wait(), 3);
  EXPECT_THAT(run.error(), HasSubstr("restart 1 of 1"));
  std::istringstream lines(run.output());
  int num_children = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(line, " child ");
    EXPECT_TRUE(Watched(std::stoi(parts.second)).ends_within(absl::ZeroDuration())) << line;
    ++num_children;
  }
  EXPECT_EQ(num_children, 4);
}

// Orphans that end while the job runs are reaped: a client may start many.
TEST(LauncherTest, NoZombieIsLeftWhileTheJobRuns) {
  const std::string fifo = temporary_fifo("end");
  LauncherRun run = LauncherRun::shell(
      {"--clients", "1"},
      absl::StrCat("(setsid sh -c 'echo child $$; read x < ", fifo, "' &); ", kHang));
  run.await_lines("child", 1);
  const pid_t child = std::stoi(run.told("child")[0]);
  std::ofstream(fifo) << "\n";
  const absl::Time deadline = steady_now() + kTestTimeout;
  while (kill(child, 0) == 0 && steady_now() < deadline) poll(nullptr, 0, 1);
  EXPECT_NE(kill(child, 0), 0);
}

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
  const absl::Time killed = steady_now();
  for (const Watched& process : watched) {
    EXPECT_TRUE(process.ends_within(killed + absl::Seconds(1) - steady_now()));
  }
}

// The children of a process, of its main thread.
std::vector<pid_t> children_of(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/task/", pid, "/children"));
  std::vector<pid_t> children;
  for (pid_t child; file >> child;) children.push_back(child);
  return children;
}

// The clients, and the coordinator beside them; with one client there is none.
TEST(LauncherTest, CoordinatorEndsWithTheLauncher) {
  for (const int signal : {SIGKILL, SIGTERM}) {
    LauncherRun run = LauncherRun::shell({"--clients", "2"}, absl::StrCat("echo pid $$; ", kHang));
    run.await_lines("pid", 2);
    std::vector<Watched> watched;
    for (const pid_t child : children_of(run.pid())) watched.emplace_back(child);
    ASSERT_THAT(watched, SizeIs(3));
    run.send(signal);
    EXPECT_EQ(run.wait(), 128 + signal);
    for (const Watched& process : watched) EXPECT_TRUE(process.ends_within(kTestTimeout));
  }
}

TEST(LauncherTest, CoordinatorThatIsKilledIsNamed) {
  LauncherRun run = LauncherRun::shell({"--clients", "2", "--settle", "50s"},
                                       "echo pid $$; read x; exec sleep 1000");
  run.await_lines("pid", 2);
  const std::map<int, pid_t> clients = client_pids(run);
  for (const pid_t child : children_of(run.pid())) {
    const bool is_client = child == clients.at(0) || child == clients.at(1);
    EXPECT_TRUE(is_client || (kill(child, SIGKILL) == 0 && await_state(child, 'Z')));
  }
  for (const auto& [client, pid] : clients) EXPECT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  EXPECT_THAT(run.error(), ContainsRegex("tessera_run: the coordinator \\(pid [0-9]+\\) was killed "
                                         "by SIGKILL \\(Killed\\) before the job was over"));
}

TEST(LauncherTest, SeesASignalWhileItsOutputIsNotRead) {
  LauncherRun run = LauncherRun::shell({"--clients", "2", "--grace", "200ms"},
                                       "echo pid $$ >&2; exec yes an_endless_line");
  run.await_lines("an_endless_line", 1);
  run.send(SIGTERM);
  EXPECT_TRUE(Watched(run.pid()).ends_within(kTestTimeout));
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
}

TEST(LauncherTest, StopsWhenTheReaderOfItsOutputIsGone) {
  LauncherRun run = LauncherRun::shell({"--clients", "2"}, "exec yes");
  run.await_lines("y", 1);
  run.close_output();
  EXPECT_EQ(run.wait(), 128 + SIGPIPE);
  EXPECT_THAT(run.error(), HasSubstr("stopped by SIGPIPE"));
}

TEST(LauncherTest, SaysThatTheDiskOfItsOutputIsFull) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "there is no /dev/full";
  // While the clients run, and when they have ended.
  for (const std::string client : {"yes", "echo hello"}) {
    LauncherRun run = LauncherRun::program(
        {"sh", "-c", absl::StrCat("exec job/tessera_run --clients 2 ", client, " > /dev/full")});
    EXPECT_EQ(run.wait(), 1);
    EXPECT_THAT(run.error(),
                HasSubstr("tessera_run: stopped: the standard output of tessera_run cannot be "
                          "written: No space left on device; make room there, or send the output "
                          "elsewhere\n"));
  }
}

// gRPC waits for a thread that it could not start, for ever and without a word: its threads are
// tried first. The free address space decides where the coordinator ends.
TEST(LauncherTest, ASmallAddressSpaceIsAnErrorAtOnce) {
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizer needs a large address space";
  for (int limit_kib = 150'000; limit_kib <= 700'000; limit_kib += 50'000) {
    LauncherRun run = LauncherRun::program(
        {"sh", "-c",
         absl::StrCat("ulimit -v ", limit_kib, "; exec job/tessera_run --clients 2 true")});
    const int code = run.wait();
    const std::string error = run.error();
    EXPECT_TRUE(code == 0 || (code == 1 && absl::StrContains(error, "KiB (ulimit -v)")))
        << limit_kib << ": " << code << ": " << error;
  }
}

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
  LauncherRun run({"--clients", "2", "job/testing/launcher_test_client"});
  EXPECT_EQ(run.wait(), 8);
  EXPECT_THAT(run.error(), HasSubstr("  error: UNAVAILABLE: lost client 7\n  last 1 line:\n"
                                     "    | reported\n"));
  EXPECT_THAT(run.error(), Not(HasSubstr("consequence")));
}

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

TEST(LauncherTest, OneClientIsToldOfNoHostedCoordinator) {
  constexpr char kTell[] = "echo hosted ${TESSERA_HOSTED_COORDINATOR-unset}";
  LauncherRun one({"--clients", "1", "sh", "-c", kTell}, {"TESSERA_HOSTED_COORDINATOR=h:1"});
  EXPECT_EQ(one.wait(), 0);
  EXPECT_EQ(one.told("hosted")[0], "unset");
  LauncherRun two({"--clients", "2", "sh", "-c", kTell});
  EXPECT_EQ(two.wait(), 0);
  EXPECT_THAT(two.told("hosted")[0], ::testing::MatchesRegex("127.0.0.1:[0-9]+"));
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

TEST(LauncherTest, NodesOfALargeJobHaveRelays) {
  const auto relay_of = [](const char* node, const char* relay_above) {
    LauncherRun run(
        {"--clients", "2", "--nodes", "3", "--node-id", node, "--coordinator", "[::1]:4000",
         "--relay-above", relay_above, "sh", "-c", "echo relay ${TESSERA_COORDINATOR_RELAY-unset}"},
        {"TESSERA_TOKEN=secret", "TESSERA_COORDINATOR_RELAY=of:1"});
    EXPECT_EQ(run.wait(), 0);
    return run.told("relay")[2];
  };
  EXPECT_THAT(relay_of("1", "5"), ::testing::MatchesRegex("127.0.0.1:[0-9]+"));
  EXPECT_EQ(relay_of("1", "6"), "unset");
}

// The port for other libraries is held while the job runs, and yet a client can serve at it. That
// of the coordinator is served already.
TEST(LauncherTest, ClientCanServeAtTheMasterAddress) {
  LauncherRun run = LauncherRun::shell(
      {"--clients", "1"},
      absl::StrCat("echo ports ${TESSERA_COORDINATOR#*:} $MASTER_PORT; ", kHang));
  run.await_lines("ports", 1);
  const std::vector<std::string> ports = absl::StrSplit(run.told("ports")[0], ' ');
  ASSERT_THAT(ports, SizeIs(2));
  EXPECT_NE(ports[0], ports[1]);
  for (const int option : {0, SO_REUSEADDR, SO_REUSEPORT}) {
    FileDescriptor server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (option != 0) setsockopt(server.get(), SOL_SOCKET, option, &on, sizeof(on));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(ports[1])));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int bound = bind(server.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
    EXPECT_EQ(bound == 0, option != 0) << ports[1] << " option " << option;
    if (bound == 0) {
      EXPECT_EQ(listen(server.get(), 1), 0) << std::strerror(errno);
    }
  }
}

}  // namespace
}  // namespace tessera
