// SPDX-License-Identifier: Apache-2.0
//
// A job under a real srun, with a Slurm of one node. Skipped where Slurm is not installed. It runs
// outside of Bazel's sandbox, whose user namespace denies setgroups() to the daemons.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/testing/launcher_run.h"
#include "tests/launching/slurm_cluster.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using testing::SlurmCluster;

// No variable of ours is needed on one host.
TEST(SlurmTest, ExampleRunsUnderSrun) {
  const std::string why_not = SlurmCluster::why_not();
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  const SlurmCluster cluster;
  LauncherRun run = LauncherRun::program({"srun", "--ntasks=4", "examples/02_multi_client"},
                                         cluster.environment());
  EXPECT_EQ(run.wait(), 0) << run.output() << run.error() << cluster.logs();
  for (int id = 0; id < 4; ++id) {
    EXPECT_THAT(run.output(), HasSubstr(absl::StrCat("client ", id, " of 4 has 1 of 4 devices")));
  }
}

}  // namespace
}  // namespace tessera
