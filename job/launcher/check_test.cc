// SPDX-License-Identifier: Apache-2.0
//
// tessera_run --check: on this host, between two hosts, and its findings.
#include "job/launcher/check.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/environment/interface.h"
#include "job/testing/launcher_run.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

HostFacts good_facts() {
  return {.num_cores = 64,
          .memory_bytes = uint64_t{500} << 20,
          .shm_bytes = int64_t{1000} << 20,
          .num_descriptors = 1024,
          .ucx_version = "1.13.1",
          .interfaces = std::vector<NetworkInterface>{
              {.name = "lo", .addresses = {"127.0.0.1"}, .is_loopback = true},
              {.name = "eth0", .addresses = {"10.1.0.7", "fd77::1"}},
              {.name = "ib0", .addresses = {}, .is_up = false}}};
}

TEST(CheckTest, SaysWhatIsThere) {
  HostFacts facts = good_facts();
  EXPECT_EQ(describe(facts, "host-a"),
            "host host-a: 64 cores, 500 MiB of memory, 1000 MiB of /dev/shm, 1024 descriptors, "
            "0 GPUs\n"
            "transports: shared memory inside the host, UCX 1.13.1\n"
            "interfaces: lo (127.0.0.1), eth0 (10.1.0.7, fd77::1), ib0 (no address, down)\n");
  facts.ucx_version = "";
  facts.num_gpus = 2;
  facts.nccl_version = "2.18.3";
  facts.interfaces = absl::InternalError("no interfaces");
  EXPECT_THAT(describe(facts, "host-a"),
              EndsWith(" 2 GPUs\ntransports: shared memory inside the host, NCCL 2.18.3\n"));
}

TEST(CheckTest, EachFindingSaysWhatToDo) {
  EXPECT_THAT(judge(good_facts(), true), ElementsAre());
  HostFacts bad = good_facts();
  bad.shm_bytes = int64_t{64} << 20;
  bad.num_descriptors = 256;
  bad.ucx_version = "";
  bad.num_gpus = 2;
  bad.interfaces = absl::InternalError("cannot list the network interfaces: why");
  EXPECT_THAT(
      judge(bad, true),
      ElementsAre("/dev/shm has 64 MiB free, too few for NCCL between 2 GPUs; mount it larger",
                  "a process may have 256 descriptors, too few for many clients; raise "
                  "`ulimit -n`",
                  "libucp.so.0 cannot be loaded; install libucx0, which moves the bytes",
                  "libnccl.so.2 cannot be loaded; several GPUs need it, install libnccl2",
                  "cannot list the network interfaces: why"));
  EXPECT_EQ(judge(bad, false).size(), 4);
  // Only NCCL takes it: a container has 64 MiB.
  HostFacts container = good_facts();
  container.shm_bytes = int64_t{64} << 20;
  container.num_gpus = 0;
  EXPECT_THAT(judge(container, true), ElementsAre());
}

TEST(CheckTest, MissingMessagesAreFound) {
  EXPECT_THAT(judge(MessagesHere{.num_sent = 2, .num_received = 2}), ElementsAre());
  EXPECT_THAT(
      judge(MessagesHere{
          .num_sent = 2, .num_received = 1, .silent = {"client 3 (host-b, pid 4711)"}}),
      ElementsAre("no message from client 3 (host-b, pid 4711); see what is found there",
                  "1 of 2 messages were sent and did not come; a firewall between the hosts may "
                  "answer for this one"));
}

// The exit code is 1 with a finding, and 0 without.
TEST(CheckTest, ChecksThisHostAlone) {
  LauncherRun run({"--check"});
  const bool is_good = judge(find_host_facts(), false).empty();
  EXPECT_EQ(run.wait(), is_good ? 0 : 1);
  EXPECT_THAT(run.output(), AllOf(ContainsRegex("^host .*: [1-9][0-9]* cores, [1-9][0-9]* MiB of "
                                                "memory, "),
                                  HasSubstr("\ntransports: shared memory inside the host"),
                                  HasSubstr("\ninterfaces: lo (127.0.0.1")));
  if (is_good) {
    EXPECT_THAT(run.output(), EndsWith("\nno finding\n"));
  }
}

TEST(CheckTest, EndsWithOneWhereSomethingIsFound) {
  LauncherRun few =
      LauncherRun::program({"sh", "-c", "ulimit -n 256; exec job/tessera_run --check"});
  EXPECT_EQ(few.wait(), 1);
  EXPECT_THAT(few.output(), HasSubstr("\nfound: a process may have 256 descriptors"));
  LauncherRun half({"--check"}, {"TESSERA_CLIENT_ID=1"});
  EXPECT_EQ(half.wait(), 1);
  EXPECT_THAT(half.output(), HasSubstr("\nfound: TESSERA_NUM_CLIENTS is not set, but"));
}

// For the findings of hosts that do not reach each other see //tests/hosts:launching_test.
TEST(CheckTest, EveryTwoHostsExchangeAMessage) {
  const std::string ssh = absl::StrCat(::testing::TempDir(), "/check_ssh_", getpid());
  std::ofstream(ssh) << "#!/bin/sh\nexport TESSERA_HOST_ID=\"$1\"\nexec sh -c \"$2\"\n";
  chmod(ssh.c_str(), 0700);
  LauncherRun run({absl::StrCat("--ssh=", ssh), "--hosts=127.0.0.1,localhost,third", "--check"});
  EXPECT_EQ(run.wait(), judge(find_host_facts(), true).empty() ? 0 : 1) << run.output();
  for (const char* line :
       {"[client 0] a message reached client 1 ", "[client 0] a message reached client 2 ",
        "[client 1] a message reached client 0 ", "[client 2] a message reached client 1 ",
        "[client 0] 2 of 2 messages have come\n", "[client 2] 2 of 2 messages have come\n",
        "[client 1] uses interface lo (127.0.0.1"}) {
    EXPECT_THAT(run.output(), HasSubstr(line));
  }
}

}  // namespace
}  // namespace tessera
