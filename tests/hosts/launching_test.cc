// SPDX-License-Identifier: Apache-2.0
//
// tessera_run over two hosts, with clients that are a user's program: by --nodes, by --hosts with
// in_host in place of ssh, and --check. An MPI program, by Open MPI's mpirun in the same way.
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/testing/launcher_run.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

std::string temporary(const std::string& name) {
  return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
}

std::string text_of(const std::string& file) {
  std::ifstream in(temporary(file));
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Runs `script` beside two hosts, which each test makes for itself. In it $RUN is tessera_run,
// $CLIENT is launched_client, $MPI_CLIENT is mpi_client where this build has MPI, and $SSH takes a
// host and a command.
class LaunchingOnHostsTest : public ::testing::Test {
 protected:
  void run(const std::string& script) {
    const std::string client =
        std::filesystem::canonical("tests/launching/launched_client").string();
    if (absl::StartsWith(client, "/tmp/")) {
      GTEST_SKIP() << "the build is in /tmp, and hosts have a /tmp of their own";
    }
    const std::filesystem::path mpi = "tests/mpi/mpi_client";
    const std::string mpi_client =
        std::filesystem::exists(mpi) ? std::filesystem::canonical(mpi).string() : "";
    // By its name mpirun takes "ssh" for an agent that knows options.
    const std::string ssh = temporary("agent");
    std::ofstream(ssh) << "#!/bin/sh\n"
                          "case $1 in host-a) k=0 ;; host-b) k=1 ;; esac\n"
                          "shift; exec in_host $k sh -c \"$*\"\n";
    chmod(ssh.c_str(), 0700);
    run_.reset(new LauncherRun(LauncherRun::program(
        {"tests/hosts/make_hosts", "2", "--", "bash", "-c", script},
        {absl::StrCat("RUN=", std::filesystem::canonical("job/tessera_run").string()),
         absl::StrCat("CLIENT=", client), absl::StrCat("MPI_CLIENT=", mpi_client),
         absl::StrCat("SSH=", ssh), absl::StrCat("OUT=", std::getenv("TEST_TMPDIR")),
         "TESSERA_TOKEN=secret", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
         "TMPDIR=/tmp"})));
    code_ = run_->wait();
    if (code_ == 77) GTEST_SKIP() << run_->error();
  }

  std::unique_ptr<LauncherRun> run_;
  int code_ = 0;
};

// Client 3 is killed. The launcher of its host names it as the cause, and the clients of the other
// host as clients that lost it.
TEST_F(LaunchingOnHostsTest, BothNodesNameTheClientThatIsLost) {
  run("node() {\n"
      "  in_host $1 $RUN --clients 2 --nodes 2 --node-id $1 --coordinator host-a:4000 \\\n"
      "    $CLIENT lose_last >$OUT/node_$1 2>&1\n"
      "  echo code $? >>$OUT/node_$1\n"
      "}\n"
      "node 0 & node 1; wait");
  if (IsSkipped()) return;
  EXPECT_THAT(text_of("node_0"), AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("client 3 (host-b, pid"),
                                       HasSubstr("lost"), ContainsRegex("code [1-9][0-9]*\n$")));
  EXPECT_THAT(text_of("node_1"),
              AllOf(HasSubstr("the first was client 3\n"), HasSubstr("client 3 (host-b, pid"),
                    HasSubstr("SIGKILL"), HasSubstr("code 137\n")));
}

TEST_F(LaunchingOnHostsTest, SeveralJobsRunOnTheSameHosts) {
  run("job() {\n"
      "  in_host login $RUN --ssh $SSH --hosts host-a,host-b --clients 2 $CLIENT $2 >$OUT/job_$1 "
      "2>&1\n"
      "  echo code $? >>$OUT/job_$1\n"
      "}\n"
      "job 0 meet & job 1 meet & job 2 lose_last; wait");
  if (IsSkipped()) return;
  for (const char* job : {"job_0", "job_1"}) {
    for (int client = 0; client < 4; ++client) {
      EXPECT_THAT(text_of(job),
                  HasSubstr(absl::StrCat("[client ", client, "] met ", client, " of 4\n")));
    }
    EXPECT_THAT(text_of(job), HasSubstr("code 0\n"));
  }
  EXPECT_THAT(text_of("job_2"),
              AllOf(HasSubstr("[host-b] tessera_run: "), HasSubstr("the first was client 3\n"),
                    HasSubstr(" of 2 hosts failed; the first was host-"),
                    ContainsRegex("code [1-9][0-9]*\n$")));
}

// The loopback interface of a host leads to no other.
TEST_F(LaunchingOnHostsTest, CheckFindsHostsThatDoNotReachEachOther) {
  run("TESSERA_INTERFACE=lo in_host login $RUN --check --ssh $SSH --hosts host-a,host-b");
  if (IsSkipped()) return;
  EXPECT_EQ(code_, 1);
  const std::string& output = run_->output();
  for (const int self : {0, 1}) {
    const char* names[] = {"host-a", "host-b"};
    const std::string line = absl::StrCat("\n\\[client ", self, "\\] found: ");
    const std::string own = absl::StrCat("client ", self, " \\(", names[self], ", pid [0-9]+\\)");
    const std::string other =
        absl::StrCat("client ", 1 - self, " \\(", names[1 - self], ", pid [0-9]+\\)");
    EXPECT_THAT(output, ContainsRegex(absl::StrCat(
                            line, own, " does not reach ", other,
                            " at 127.0.0.1:[0-9]+ from 127.0.0.1: Connection refused; see the "
                            "firewalls of both hosts, and set TESSERA_INTERFACE to the network "
                            "that joins them\n")));
    EXPECT_THAT(output, ContainsRegex(absl::StrCat(line, "no message from ", other,
                                                   "; see what is found there\n")));
    EXPECT_THAT(output, HasSubstr(absl::StrCat("[client ", self, "] 0 of 1 messages have come\n")));
  }
}

// mpi_client.cc describes the ranks.
TEST_F(LaunchingOnHostsTest, MpiProgramsMeetByTheirMpi) {
  run("[ -n \"$MPI_CLIENT\" ] && command -v mpirun >/dev/null ||\n"
      "  { echo 'Open MPI is not installed' >&2; exit 77; }\n"
      "net=10.77.0.0/24\n"
      "in_host login mpirun -n 4 --host host-a:2,host-b:2 --leave-session-attached \\\n"
      "  --mca plm_rsh_agent $SSH --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include $net \\\n"
      "  --mca btl tcp,self --mca btl_tcp_if_include $net $MPI_CLIENT hosts");
  if (IsSkipped()) return;
  EXPECT_EQ(code_, 0) << run_->error();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(run_->output(), HasSubstr(absl::StrCat("rank ", rank, ": ok\n")));
  }
}

}  // namespace
}  // namespace tessera
