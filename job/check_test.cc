// SPDX-License-Identifier: Apache-2.0
//
// tessera_run --check: on this host, between two hosts, and what it finds.
#include "job/check.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/testing/launcher_run.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CheckTest, EachFindingSaysWhatToDo) {
  const HostFacts good = {.num_cores = 1,
                          .memory_bytes = 1 << 30,
                          .shm_bytes = int64_t{1} << 30,
                          .num_descriptors = 1024,
                          .num_gpus = 0,
                          .ucx_version = "1.13.1"};
  EXPECT_THAT(judge(good, true), ElementsAre());
  HostFacts bad = good;
  bad.shm_bytes = int64_t{64} << 20;
  bad.num_descriptors = 256;
  bad.ucx_version = "";
  EXPECT_THAT(judge(bad, true), ElementsAre(HasSubstr("/dev/shm has 64 MiB free"),
                                            HasSubstr("a process may have 256 descriptors"),
                                            HasSubstr("install libucx0")));
  EXPECT_EQ(judge(bad, false).size(), 2);
}

TEST(CheckTest, SaysWhatThisHostHas) {
  LauncherRun run({"--check"});
  run.wait();
  EXPECT_THAT(run.output(),
              AllOf(ContainsRegex("host .*: [1-9][0-9]* cores, [0-9]+ GiB"), HasSubstr("\nUCX ")));
}

TEST(CheckTest, EveryTwoHostsExchangeAMessage) {
  const std::string ssh = absl::StrCat(::testing::TempDir(), "/check_ssh_", getpid());
  std::ofstream(ssh) << "#!/bin/sh\nexport TESSERA_HOST_ID=\"$1\"\nexec sh -c \"$2\"\n";
  chmod(ssh.c_str(), 0700);
  LauncherRun run({"--check", absl::StrCat("--ssh=", ssh), "--hosts=127.0.0.1,localhost,third"});
  run.wait();
  for (const char* line :
       {"[client 0] a message reached client 1 ", "[client 0] a message reached client 2 ",
        "[client 1] a message reached client 0 ", "[client 2] a message reached client 1 ",
        "[client 0] 2 of 2 messages have come\n", "[client 2] 2 of 2 messages have come\n",
        "[client 1] interface lo (127.0.0.1"}) {
    EXPECT_THAT(run.output(), HasSubstr(line));
  }
}

}  // namespace
}  // namespace tessera
