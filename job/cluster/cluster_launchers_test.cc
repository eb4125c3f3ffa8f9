// SPDX-License-Identifier: Apache-2.0
//
// torchrun, Open MPI, Hydra and PMIx: rows of tests/facts/cluster.md, and the other messages.
#include <string>
#include <utility>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/cluster/cluster.h"
#include "job/testing/cluster_cases.h"
#include "job/testing/variables.h"
#include "tests/support/matchers.h"

namespace tessera::cluster {
namespace {

using testing::expect_cluster;
using ::testing::HasSubstr;
using testing::lookup_of;
using testing::StatusIs;
using ::testing::ValuesIn;
using testing::Variables;
using testing::with;
using testing::without;

using Resolver = StatusOr<Cluster> (*)(const EnvironmentLookup&);

const Variables kTorchrun = {{"RANK", "1"},        {"WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"},
                             {"LOCAL_RANK", "1"},  {"LOCAL_WORLD_SIZE", "2"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "1661665281"}};
const Variables kTwoHosts = {{"OMPI_COMM_WORLD_RANK", "3"},
                             {"OMPI_COMM_WORLD_SIZE", "4"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kHydra = {{"PMI_RANK", "1"},
                          {"PMI_SIZE", "2"},
                          {"MPI_LOCALRANKID", "1"},
                          {"MPI_LOCALNRANKS", "2"},
                          {"TESSERA_COORDINATOR", "h:1"}};
const Variables kPmix = {{"PMIX_RANK", "1"},
                         {"PMIX_NAMESPACE", "x"},
                         {"TESSERA_NUM_CLIENTS", "2"},
                         {"TESSERA_COORDINATOR", "h:1"}};

struct LauncherCase {
  const char* name;
  Resolver resolver;
  Variables variables;
  std::string expected;
};

constexpr char kAgentStore[] = "TORCHELASTIC_USE_AGENT_STORE";

// clang-format off
const LauncherCase kLauncherCases[] = {
    {"torchrun", torchrun, kTorchrun, "client 1 of 2 at h:29500; local 1 of 2"},
    {"torchrun_agent_store", torchrun, with(kTorchrun, kAgentStore, "True"),
     "client 1 of 2 at h:29501; local 1 of 2"},
    {"torchrun_agent_store_off", torchrun, with(kTorchrun, kAgentStore, "False"),
     "client 1 of 2 at h:29500; local 1 of 2"},
    {"torchrun_last_port", torchrun, with(with(kTorchrun, "MASTER_PORT", "65535"), kAgentStore, "True"),
     "client 1 of 2 at h:65534; local 1 of 2"},
    {"torchrun_address_wins", torchrun, with(kTorchrun, "TESSERA_COORDINATOR", "k:1"),
     "client 1 of 2 at k:1; local 1 of 2"},
    // Its attempt is in the name of the job: environment_test, JobsAndAttemptsHaveNames.
    {"torchrun_restart", torchrun, with(kTorchrun, "TORCHELASTIC_RESTART_COUNT", "2"),
     "client 1 of 2 at h:29500; local 1 of 2"},
    {"torchrun_rank_missing", torchrun, without(kTorchrun, "RANK"), "refused: RANK is not set, but other variables of the torchrun form are; set it (0 to the number of clients - 1), or unset the others"},
    {"torchrun_port_missing", torchrun, without(kTorchrun, "MASTER_PORT"), "refused: MASTER_PORT is not set, but other variables of the torchrun form are; set it (1 to 65535), or unset the others"},
    {"torchrun_rank_is_size", torchrun, with(kTorchrun, "RANK", "2"), "refused: RANK is \"2\"; it must be a whole number from 0 to 1"},
    {"torchrun_port_range", torchrun, with(kTorchrun, "MASTER_PORT", "70000"), "refused: MASTER_PORT is \"70000\"; it must be a whole number from 1 to 65535"},
    {"torchrun_one", torchrun,
     {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}},
     "client 0 of 1 at h:1"},
    {"open_mpi_one_host", open_mpi, kOpenMpi, "client 1 of 2 at 127.0.0.1:65387; local 1 of 2"},
    {"open_mpi_five", open_mpi, with(kOpenMpi, "PMIX_NAMESPACE", "prterun-host-2913@1"),
     "client 1 of 2 at 127.0.0.1:62979; local 1 of 2"},
    {"open_mpi_two_hosts", open_mpi, kTwoHosts, "refused: TESSERA_COORDINATOR is not set, and nothing that Open MPI sets names the job and the host of client 0 of 4; set TESSERA_COORDINATOR to host:port of client 0 for all clients (mpirun -x TESSERA_COORDINATOR)"},
    {"open_mpi_with_address", open_mpi, with(kTwoHosts, "TESSERA_COORDINATOR", "h:1"),
     "client 3 of 4 at h:1; local 1 of 2"},
    {"open_mpi_size_missing", open_mpi, {{"OMPI_COMM_WORLD_RANK", "0"}}, "refused: OMPI_COMM_WORLD_SIZE is not set, but other variables of the Open MPI form are; set it (1 to 1000000), or unset the others"},
    {"hydra", hydra, kHydra, "client 1 of 2 at h:1; local 1 of 2"},
    {"hydra_without_address", hydra, without(kHydra, "TESSERA_COORDINATOR"), "refused: TESSERA_COORDINATOR is not set, and nothing that Hydra sets names the job and the host of client 0 of 2; set TESSERA_COORDINATOR to host:port of client 0 for all clients (mpiexec -genvlist TESSERA_COORDINATOR)"},
    {"hydra_size_missing", hydra, {{"PMI_RANK", "0"}, {"TESSERA_COORDINATOR", "h:1"}}, "refused: PMI_SIZE is not set, but other variables of the Hydra form are; set it (1 to 1000000), or unset the others"},
    {"pmix", pmix, kPmix, "client 1 of 2 at h:1"},
    {"pmix_no_size", pmix, without(kPmix, "TESSERA_NUM_CLIENTS"), "refused: TESSERA_NUM_CLIENTS is not set, and the environment of PMIx has no number of clients; set it for all clients"},
    {"pmix_rank_range", pmix, with(kPmix, "PMIX_RANK", "4294967295"), "refused: PMIX_RANK is \"4294967295\", which is not a rank; it must be a whole number from 0 to the number of clients - 1"},
    // No rows of the page.
    {"torchrun_bad_host", torchrun, with(kTorchrun, "MASTER_ADDR", ""), "refused: MASTER_ADDR gives the coordinator's address \":29500\"; it must be HOST:PORT, as in host-a:4000"},
    {"torchrun_bad_address", torchrun, with(kTorchrun, "TESSERA_COORDINATOR", "k"), "refused: TESSERA_COORDINATOR gives the coordinator's address \"k\"; it must be HOST:PORT, as in host-a:4000"},
    {"torchrun_local_rank", torchrun, with(kTorchrun, "LOCAL_RANK", "2"), "refused: LOCAL_RANK is \"2\"; it must be a whole number from 0 to 1"},
    {"torchrun_local_size", torchrun, with(kTorchrun, "LOCAL_WORLD_SIZE", "x"), "refused: LOCAL_WORLD_SIZE is \"x\"; it must be a whole number from 1 to 1000000"},
    {"open_mpi_one_client", open_mpi, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
     "client 0 of 1, no coordinator"},
    {"hydra_one_client", hydra, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}, "client 0 of 1, no coordinator"},
    {"pmix_rank_is_size", pmix, with(kPmix, "PMIX_RANK", "2"), "refused: PMIX_RANK is \"2\"; it must be a whole number from 0 to 1"},
    {"pmix_without_address", pmix, without(kPmix, "TESSERA_COORDINATOR"), "refused: TESSERA_COORDINATOR is not set, and nothing that PMIx sets names the job and the host of client 0 of 2; set TESSERA_COORDINATOR to host:port of client 0 for all clients"},
};
// clang-format on

class LauncherClusterTest : public ::testing::TestWithParam<LauncherCase> {};
INSTANTIATE_TEST_SUITE_P(Facts, LauncherClusterTest, ValuesIn(kLauncherCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(LauncherClusterTest, IsRead) {
  const StatusOr<Cluster> cluster = GetParam().resolver(lookup_of(GetParam().variables));
  expect_cluster(cluster, GetParam().expected);
  if (!cluster.ok()) return;
  EXPECT_TRUE(cluster->spec.jobs.empty());
  EXPECT_EQ(cluster->task_type, "");
  EXPECT_FALSE(cluster->task_id.has_value());
}

struct OutsideCase {
  const char* name;
  Resolver resolver;
  const char* message;
};

// Under no launcher; row open_mpi_singleton, and the same of the others.
const OutsideCase kOutside[] = {
    {"open_mpi_singleton", open_mpi,
     "this process is not under mpirun: none of OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE is set; "
     "start it with mpirun, or use another resolver"},
    {"torchrun", torchrun,
     "this process is not under torchrun: none of MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE is "
     "set; start it with torchrun, or use another resolver"},
    {"hydra", hydra,
     "this process is not under mpiexec: none of PMI_RANK, PMI_SIZE is set; start it with mpiexec, "
     "or use another resolver"},
    {"pmix", pmix,
     "this process is not under a launcher with PMIx: none of PMIX_RANK is set; start it with a "
     "launcher with PMIx, or use another resolver"},
};

class OutsideTest : public ::testing::TestWithParam<OutsideCase> {};
INSTANTIATE_TEST_SUITE_P(Launchers, OutsideTest, ValuesIn(kOutside),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(OutsideTest, IsAFailedPrecondition) {
  EXPECT_THAT(GetParam().resolver(lookup_of({})),
              StatusIs(absl::StatusCode::kFailedPrecondition, GetParam().message));
}

// A std::function that is empty is called by none of the resolvers.
TEST(ClusterLaunchersTest, AnEmptyLookup) {
  const std::pair<const char*, Resolver> resolvers[] = {
      {"tf_config", tf_config},
      {"slurm", [](const EnvironmentLookup& lookup) { return slurm(lookup); }},
      {"torchrun", torchrun},
      {"open_mpi", open_mpi},
      {"hydra", hydra},
      {"pmix", pmix}};
  for (const auto& [name, resolver] : resolvers) {
    SCOPED_TRACE(name);
    EXPECT_THAT(resolver(EnvironmentLookup()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(": the lookup of variables is empty; give a function, such as "
                                   "std::getenv")));
  }
}

}  // namespace
}  // namespace tessera::cluster
