// SPDX-License-Identifier: Apache-2.0
//
// Jobs inside MPI programs (tessera/mpi.h): the engine on MPI passes the suite for engines, and
// collectives between hosts go by it. Each job runs under mpirun.
//
// MPI cannot tell that a rank is lost: in such cases the suite cuts, and mpirun is told to go on.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/testing/launcher_run.h"
#include "transport/testing/engine_conformance.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// The output of the ranks.
std::string run_ranks(int num_ranks, std::vector<std::string> arguments) {
  std::vector<std::string> command = {"mpirun",
                                      "-n",
                                      absl::StrCat(num_ranks),
                                      "--continuous",
                                      "--mca",
                                      "btl",
                                      "tcp,self",
                                      "--mca",
                                      "btl_tcp_if_include",
                                      "lo",
                                      "tests/mpi/mpi_client"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  LauncherRun run =
      LauncherRun::program(command, {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                     "OMPI_MCA_rmaps_base_oversubscribe=1", "TMPDIR=/tmp"});
  run.wait();
  return absl::StrCat(run.output(), run.error());
}

void expect_ok(const std::string& output, int num_ranks, bool loses_rank_1 = false) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (rank == 1 && loses_rank_1) continue;
    EXPECT_THAT(output, HasSubstr(absl::StrCat("rank ", rank, ": ok")));
  }
}

// Cases that share one mpirun, whose start takes longer than they do.
struct EngineRun {
  std::string name;
  int num_ranks;
  std::vector<std::string> cases;
  bool loses_rank_1 = false;
};

// Cases of two ranks run together, except a case that forks. A loss is lost to the whole run.
std::vector<EngineRun> engine_runs() {
  std::vector<EngineRun> runs = {{"of_two_ranks", 2, {}}};
  for (const transport::EngineCase& c : transport::engine_cases()) {
    const std::string name = c.name;
    if (c.num_clients == 2 && !c.loses_client_1 && name != "fork_beside_connection") {
      runs[0].cases.push_back(name);
    } else {
      runs.push_back({name, c.num_clients, {name}, c.loses_client_1});
    }
  }
  return runs;
}

class MpiEngineTest : public ::testing::TestWithParam<EngineRun> {};

TEST_P(MpiEngineTest, PassesUnderMpirun) {
  const EngineRun& run = GetParam();
  std::vector<std::string> arguments = {run.loses_rank_1 ? "losing" : "engine"};
  arguments.insert(arguments.end(), run.cases.begin(), run.cases.end());
  expect_ok(run_ranks(run.num_ranks, arguments), run.num_ranks, run.loses_rank_1);
}

INSTANTIATE_TEST_SUITE_P(Runs, MpiEngineTest, ::testing::ValuesIn(engine_runs()),
                         [](const auto& info) { return info.param.name; });

class MpiCollectivesTest : public ::testing::TestWithParam<int> {};

TEST_P(MpiCollectivesTest, HoldBetweenTwoHosts) {
  expect_ok(run_ranks(GetParam(), {"collectives"}), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Ranks, MpiCollectivesTest, ::testing::Values(2, 3, 4));

TEST(MpiProgramTest, MayFinalizeBeforeItsClientEnds) { expect_ok(run_ranks(2, {"finalize"}), 2); }

TEST(MpiProgramTest, ClientsOnDifferentEnginesAreTold) {
  const std::string output = run_ranks(1, {"two_engines"});
  expect_ok(output, 1);
  EXPECT_THAT(output, HasSubstr("client 0 has \"ucx\" between hosts, client 1 ("));
  EXPECT_THAT(output, HasSubstr("has \"mpi\"; give all clients of a job one backend"));
}

TEST(MpiProgramTest, IsRefusedWithoutThreads) {
  const std::string output = run_ranks(1, {"refuse"});
  expect_ok(output, 1);
  EXPECT_THAT(output, HasSubstr("FAILED_PRECONDITION: MPI is not initialized; call "
                                "MPI_Init_thread() with MPI_THREAD_MULTIPLE first"));
  EXPECT_THAT(output, HasSubstr("FAILED_PRECONDITION: MPI was initialized for fewer threads than "
                                "MPI_THREAD_MULTIPLE; "));
}

}  // namespace
}  // namespace tessera
