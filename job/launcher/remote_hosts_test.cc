// SPDX-License-Identifier: Apache-2.0
//
// tessera_run --hosts, with a script in place of ssh that runs the command here, as another host.
#include "job/launcher/remote_hosts.h"

#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/testing/launcher_run.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing::StatusIs;

// Takes a host and a command as ssh does. The host "refused" is not reached.
std::string make_ssh() {
  const std::string path = absl::StrCat(::testing::TempDir(), "/ssh_", getpid());
  std::ofstream(path) << "#!/bin/sh\n"
                         "[ \"$1\" != refused ] || { echo 'Connection refused' >&2; exit 255; }\n"
                         "export TESSERA_HOST_ID=\"$1\"\n"
                         "exec sh -c \"$2\"\n";
  chmod(path.c_str(), 0700);
  return path;
}

// Two clients on each of two hosts run `script`.
LauncherRun::Arguments on_two_hosts(const std::string& script,
                                    const std::string& hosts = "127.0.0.1,user@localhost") {
  return {"--clients", "2", "--hosts", hosts, "sh", "-c", script};
}
LauncherRun::Arguments with_ssh() { return {absl::StrCat("TESSERA_SSH=", make_ssh())}; }

constexpr char kHang[] = "exec sleep 1000";

TEST(RemoteHostsTest, ClientsOfAllHostsAreOneJob) {
  LauncherRun::Arguments environment = with_ssh();
  environment.insert(environment.end(),
                     {"TESSERA_TOKEN=secret's", "UCX_LOG_LEVEL=a b", "TESSERA_CLIENT_ID=9"});
  LauncherRun run(
      on_two_hosts("echo is $LOCAL_RANK of $LOCAL_WORLD_SIZE of $WORLD_SIZE on $TESSERA_HOST_ID "
                   "$TESSERA_TOKEN $UCX_LOG_LEVEL; echo at $TESSERA_COORDINATOR; echo in $(pwd); "
                   "echo bad >&2"),
      environment);
  EXPECT_EQ(run.wait(), 0) << run.error();
  auto is = run.told("is");
  EXPECT_EQ(is[0], "0 of 2 of 4 on 127.0.0.1 secret's a b");
  EXPECT_EQ(is[3], "1 of 2 of 4 on user@localhost secret's a b");
  EXPECT_EQ(is.size(), 4);
  auto at = run.told("at");
  EXPECT_THAT(at[0], ContainsRegex("^127.0.0.1:[23][0-9]{4}$"));
  EXPECT_EQ(at[0], at[3]);
  EXPECT_EQ(run.told("in")[0], std::filesystem::current_path().string());
  EXPECT_THAT(run.error(), HasSubstr("[client 2] bad\n"));
}

TEST(RemoteHostsTest, FailureOnOneHostEndsAll) {
  LauncherRun run(on_two_hosts(absl::StrCat("[ $RANK != 3 ] || exit 7; ", kHang)), with_ssh());
  EXPECT_EQ(run.wait(), 7);
  EXPECT_THAT(run.error(),
              AllOf(HasSubstr("[user@localhost] tessera_run: 1 of 2 clients failed; the first was "
                              "client 3\n"),
                    HasSubstr("\ntessera_run: 1 of 2 hosts failed; the first was user@localhost\n"
                              "the job on user@localhost (ssh pid "),
                    HasSubstr("[127.0.0.1] tessera_run: stopped by SIGTERM\n")));
}

TEST(RemoteHostsTest, HostThatSshDoesNotReachEndsAll) {
  LauncherRun run(on_two_hosts(kHang, "127.0.0.1,refused"), with_ssh());
  EXPECT_EQ(run.wait(), 255);
  EXPECT_THAT(run.error(),
              AllOf(HasSubstr("[refused] Connection refused\n"),
                    HasSubstr("1 of 2 hosts failed; the first was refused\n"),
                    HasSubstr("exited with code 255"), HasSubstr("    | Connection refused\n")));
}

TEST(RemoteHostsTest, SignalReachesTheClientsOfAllHosts) {
  LauncherRun run(on_two_hosts("trap 'kill $!; echo got it; exit 0' INT; echo ready; "
                               "sleep 1000 & wait"),
                  with_ssh());
  run.await_lines("ready", 4);
  run.send(SIGINT);
  EXPECT_EQ(run.wait(), 128 + SIGINT);
  EXPECT_EQ(run.told("got").size(), 4) << run.output();
}

TEST(RemoteHostsTest, NoClientIsLeftWhenTheLauncherIsKilled) {
  LauncherRun run(on_two_hosts("echo pid $$; exec sleep 1000"), with_ssh());
  run.await_lines("pid", 4);
  std::vector<Watched> clients;
  for (const auto& [client, text] : run.told("pid")) {
    pid_t pid = 0;
    ASSERT_TRUE(absl::SimpleAtoi(text, &pid));
    clients.emplace_back(pid);
  }
  run.send(SIGKILL);
  for (const Watched& client : clients) EXPECT_TRUE(client.ends_within(kTestTimeout));
}

TEST(RemoteHostsTest, ProgramInPlaceOfSshMustBeThere) {
  LauncherRun run({"--clients=1", "--ssh=./no_such_ssh -x", "--hosts=a", "true"});
  EXPECT_EQ(run.wait(), 127);
  EXPECT_THAT(run.error(), HasSubstr("program \"./no_such_ssh -x\" cannot be started"));
}

TEST(RemoteHostsTest, TokenIsInNoCommandLine) {
  setenv("TESSERA_TOKEN", "secret", 1);
  LauncherOptions options;
  options.num_clients = 1;
  options.hosts = {"user@host-a", "host-b"};
  options.ssh = "ssh -p 22";
  options.command = {"./it's", "--x"};
  const StatusOr<RemoteJob> job = RemoteJob::create(options);
  unsetenv("TESSERA_TOKEN");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->coordinator, ContainsRegex("^host-a:[23][0-9]{4}$"));
  const std::vector<std::string> command = job->command(options, 1);
  ASSERT_EQ(command.size(), 5);
  EXPECT_EQ(command[2], "22");
  EXPECT_EQ(command[3], "host-b");
  EXPECT_THAT(command[4], AllOf(HasSubstr(" '--node-id=1' "), HasSubstr(" './it'\\''s' '--x'"),
                                Not(HasSubstr("secret"))));
  EXPECT_THAT(job->input, HasSubstr("TESSERA_TOKEN=secret"));
}

// Random ports of as many jobs would have hardly any chance to differ.
TEST(RemoteHostsTest, JobsStartedHereHaveDifferentPorts) {
  LauncherOptions options;
  options.hosts = {"host-a"};
  std::vector<RemoteJob> jobs;
  std::set<std::string> addresses;
  for (int i = 0; i < 300; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(RemoteJob job, RemoteJob::create(options));
    addresses.insert(job.coordinator);
    jobs.push_back(std::move(job));
  }
  EXPECT_EQ(addresses.size(), jobs.size());
  EXPECT_THAT(*addresses.begin(), StartsWith("host-a:2"));
}

TEST(RemoteHostsTest, EnvironmentMustFitAndBeWhole) {
  LauncherOptions options;
  options.hosts = {"a"};
  setenv("UCX_LONG", std::string(70000, 'x').c_str(), 1);
  EXPECT_THAT(RemoteJob::create(options),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("passes on at most 61440")));
  unsetenv("UCX_LONG");
  LauncherRun run({"--from-launcher=true", "--clients=1", "true"});
  EXPECT_EQ(run.wait(), 2);
  EXPECT_THAT(run.error(), HasSubstr("standard input ended before the environment did"));
}

TEST(RemoteHostsTest, CoordinatorAtALoopbackNameIsRefused) {
  LauncherOptions options;
  options.num_nodes = 2;
  options.coordinator = "host-a:4000";
  EXPECT_THAT(check_coordinator_name(options, "127.0.1.1"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--coordinator is host-a:4000; it should be a name"),
                             HasSubstr("\"host-a\" leads to 127.0.1.1"), HasSubstr("/etc/hosts"))));
  EXPECT_EQ(check_coordinator_name(options, "10.1.0.7"), absl::OkStatus());
  options.coordinator = "localhost:4000";  // on purpose
  EXPECT_EQ(check_coordinator_name(options, "127.0.0.1"), absl::OkStatus());
  options.coordinator = "127.0.0.1:4000";
  EXPECT_EQ(check_coordinator_name(options, "127.0.0.1"), absl::OkStatus());
  options.coordinator = "host-a:4000";
  options.node_id = 1;
  EXPECT_EQ(check_coordinator_name(options, "::1"), absl::OkStatus());
}

}  // namespace
}  // namespace tessera
