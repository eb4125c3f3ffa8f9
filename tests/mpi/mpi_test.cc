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
#include "collectives/network/testing/engine_conformance.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/testing/launcher_run.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// What the ranks print.
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

class MpiEngineTest : public ::testing::TestWithParam<network::EngineCase> {};

TEST_P(MpiEngineTest, PassesUnderMpirun) {
  const network::EngineCase& c = GetParam();
  std::vector<std::string> arguments = {"engine", c.name};
  if (c.loses_client_1) arguments.push_back("loses_a_rank");
  expect_ok(run_ranks(c.num_clients, arguments), c.num_clients, c.loses_client_1);
}

INSTANTIATE_TEST_SUITE_P(Cases, MpiEngineTest, ::testing::ValuesIn(network::engine_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

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
