// SPDX-License-Identifier: Apache-2.0
//
// Steps of Slurm and the clusters that they are: rows of tests/facts/cluster.md, and the other
// messages.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/cluster/cluster.h"
#include "job/testing/cluster_cases.h"
#include "job/testing/variables.h"
#include "tests/support/matchers.h"

namespace tessera::cluster {
namespace {

using testing::expect_cluster;
using testing::lookup_of;
using testing::StatusIs;
using ::testing::ValuesIn;
using testing::Variables;
using testing::with;
using testing::without;

template <class Case>
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

// Task "1 of 2" on `nodes` with `counts` tasks, in step 7.0 or in step `id`; "" leaves the id out.
Variables step(const std::string& task, const std::string& nodes, const std::string& counts,
               const std::string& id = "7.0") {
  const std::pair<std::string, std::string> rank_and_size = absl::StrSplit(task, " of ");
  Variables variables = {{"SLURM_PROCID", rank_and_size.first},
                         {"SLURM_STEP_NUM_TASKS", rank_and_size.second},
                         {"SLURM_STEP_NODELIST", nodes},
                         {"SLURM_STEP_TASKS_PER_NODE", counts}};
  if (id.empty()) return variables;
  const std::pair<std::string, std::string> job_and_step = absl::StrSplit(id, '.');
  variables["SLURM_JOB_ID"] = job_and_step.first;
  variables["SLURM_STEP_ID"] = job_and_step.second;
  return variables;
}

Variables dealt(const std::string& distribution, Variables variables) {
  return with(std::move(variables), "SLURM_DISTRIBUTION", distribution);
}

Variables with_address(const std::string& address, Variables variables) {
  return with(std::move(variables), "TESSERA_COORDINATOR", address);
}

struct SlurmCase {
  const char* name;
  Variables variables;
  std::string expected;
  std::string addresses = {};  // of the tasks, by rank; "" where the page gives none
  SlurmOptions options = {};
};

// clang-format off
const SlurmCase kSlurmCases[] = {
    {"slurm_two_nodes_0", step("0 of 2", "n[1-2]", "1(x2)", "1000.0"),
     "client 0 of 2 at n1:62440; local 0 of 1"},
    {"slurm_two_nodes_1", step("1 of 2", "n[1-2]", "1(x2)", "1000.0"),
     "client 1 of 2 at n1:62440; local 0 of 1",
     "worker 0 n1:62440, worker 1 n2:62440"},
    {"slurm_two_by_two", step("3 of 4", "n[1-2]", "2(x2)", "1000.0"),
     "client 3 of 4 at n1:62440; local 1 of 2",
     "worker 0 n1:62440, worker 1 n1:62441, worker 2 n2:62440, worker 3 n2:62441"},
    {"slurm_uneven_nodes", step("2 of 3", "n[1-2]", "2,1", "1000.0"),
     "client 2 of 3 at n1:62440; local 0 of 1",
     "worker 0 n1:62440, worker 1 n1:62441, worker 2 n2:62440"},
    {"slurm_second_step", step("0 of 2", "n[1-2]", "1(x2)", "1000.1"),
     "client 0 of 2 at n1:62697; local 0 of 1"},
    {"slurm_wraps", step("1 of 2", "n1", "2", "8191.0"),
     "client 1 of 2 at n1:65535; local 1 of 2",
     "worker 0 n1:65535, worker 1 n1:61440"},
    {"slurm_large_job_id", step("0 of 1", "n1", "1", "4294967295.0"),
     "client 0 of 1 at n1:65535; local 0 of 1"},
    {"slurm_nodes_not_sorted", step("0 of 2", "n1,m5", "1(x2)"),
     "client 0 of 2 at n1:61447; local 0 of 1"},
    {"slurm_n9_n10", step("0 of 3", "n[9-10]", "2,1"),
     "client 0 of 3 at n9:61447; local 0 of 2",
     "worker 0 n9:61447, worker 1 n9:61448, worker 2 n10:61447"},
    {"slurm_cyclic", dealt("cyclic", step("1 of 4", "n[1-2]", "2(x2)")),
     "client 1 of 4 at n1:61447; local 0 of 2",
     "worker 0 n1:61447, worker 1 n2:61447, worker 2 n1:61448, worker 3 n2:61448"},
    {"slurm_cyclic_uneven", dealt("cyclic", step("2 of 3", "n[1-2]", "2,1")),
     "client 2 of 3 at n1:61447; local 1 of 2",
     "worker 0 n1:61447, worker 1 n2:61447, worker 2 n1:61448"},
    {"slurm_plane_2", with(dealt("plane", step("2 of 6", "n[1-2]", "3(x2)")), "SLURM_DIST_PLANESIZE", "2"),
     "client 2 of 6 at n1:61447; local 0 of 3",
     "worker 0 n1:61447, worker 1 n1:61448, worker 2 n2:61447, worker 3 n2:61448, worker 4 n1:61449, worker 5 n2:61449"},
    {"slurm_block_cyclic", dealt("block", step("1 of 4", "n[1-2]", "2(x2)")),
     "client 1 of 4 at n1:61447; local 1 of 2"},
    {"slurm_port_base", step("1 of 2", "n1", "2"),
     "client 1 of 2 at n1:12345; local 1 of 2",
     "worker 0 n1:12345, worker 1 n1:12346", {.port_base = 12345}},
    {"slurm_racks", step("3 of 4", "rack[1-2]node[1-2]", "1(x4)"),
     "client 3 of 4 at rack1node1:61447; local 0 of 1",
     "worker 0 rack1node1:61447, worker 1 rack1node2:61447, worker 2 rack2node1:61447, worker 3 rack2node2:61447"},
    {"slurm_many", step("511 of 512", "c[001-064]", "8(x64)", "123456.0"),
     "client 511 of 512 at c001:62016; local 7 of 8"},
    {"slurm_jobs_ps_worker", step("2 of 3", "n[1-3]", "1(x3)"),
     "client 2 of 3 at n1:61447; local 0 of 1",
     "worker 0 n1:61447, worker 1 n2:61447, ps 0 n3:61447", {.jobs = {{"worker", 2}, {"ps", 1}}}},
    {"slurm_jobs_chief", step("0 of 3", "n[1-3]", "1(x3)"),
     "client 0 of 3 at n1:61447; local 0 of 1",
     "chief 0 n1:61447, worker 0 n2:61447, ps 0 n3:61447", {.jobs = {{"chief", 1}, {"worker", 1}, {"ps", 1}}}},
    {"slurm_jobs_too_many", step("0 of 2", "n[1-2]", "1(x2)"),
     "refused: the tasks of jobs are 5 in all, those of the step of srun are 2; give every task a job",
     "", {.jobs = {{"worker", 5}}}},
    {"slurm_jobs_too_few", step("0 of 2", "n[1-2]", "1(x2)"),
     "refused: the tasks of jobs are 1 in all, those of the step of srun are 2; give every task a job",
     "", {.jobs = {{"worker", 1}}}},
    {"slurm_no_step", {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_NODELIST", "n[1-4]"}},
     "refused: SLURM_STEP_NUM_TASKS is not set: this process is not in a step of Slurm, as a batch script is not; start the program with srun"},
    {"slurm_procid_missing", without(step("0 of 2", "n[1-2]", "1(x2)"), "SLURM_PROCID"),
     "refused: SLURM_PROCID is not set, but other variables of the Slurm step form are; set it (0 to the number of clients - 1), or unset the others"},
    {"slurm_nodelist_missing", without(step("0 of 1", "n1", "1"), "SLURM_STEP_NODELIST"),
     "refused: SLURM_STEP_NODELIST is not set; srun sets it to the nodes"},
    {"slurm_tasks_missing", without(step("0 of 1", "n1", "1"), "SLURM_STEP_TASKS_PER_NODE"),
     "refused: SLURM_STEP_TASKS_PER_NODE is not set; srun sets it to the tasks of each node"},
    {"slurm_job_id_missing", step("0 of 2", "n[1-2]", "1(x2)", ""),
     "refused: SLURM_JOB_ID is not set; it must be a whole number, from which the ports are made; set it, or SlurmOptions::port_base"},
    {"slurm_procid_too_large", step("7 of 2", "n[1-2]", "1(x2)", ""),
     "refused: SLURM_PROCID is \"7\"; it must be a whole number from 0 to 1"},
    {"slurm_procid_word", step("abc of 2", "n[1-2]", "1(x2)", ""),
     "refused: SLURM_PROCID is \"abc\"; it must be a whole number from 0 to 1"},
    {"slurm_fewer_counts", step("0 of 3", "n[1-3]", "1(x2)", ""),
     "refused: SLURM_STEP_NODELIST \"n[1-3]\" has 3 nodes, SLURM_STEP_TASKS_PER_NODE \"1(x2)\" has 2 counts; srun sets both for one step"},
    {"slurm_more_counts", step("0 of 2", "n[1-2]", "1(x3)", ""),
     "refused: SLURM_STEP_NODELIST \"n[1-2]\" has 2 nodes, SLURM_STEP_TASKS_PER_NODE \"1(x3)\" has 3 counts; srun sets both for one step"},
    {"slurm_sum_differs", step("0 of 5", "n[1-2]", "2(x2)", ""),
     "refused: SLURM_STEP_NUM_TASKS is 5, but SLURM_STEP_TASKS_PER_NODE \"2(x2)\" has places for 4 tasks"},
    {"slurm_node_twice", step("0 of 2", "n1,n1", "1(x2)", ""),
     "refused: SLURM_STEP_NODELIST \"n1,n1\" names node \"n1\" twice; srun names each node of a step once"},
    {"slurm_arbitrary", dealt("arbitrary", step("0 of 2", "n[1-2]", "1(x2)", "")),
     "refused: SLURM_DISTRIBUTION is \"arbitrary\": the order of the tasks is that of SLURM_HOSTFILE; set TESSERA_COORDINATOR to host:port of task 0"},
    {"slurm_arbitrary_with_address", with_address("n2:7000", dealt("arbitrary", step("0 of 2", "n[1-2]", "1(x2)", ""))),
     "client 0 of 2 at n2:7000"},
    {"slurm_address_wins", with_address("h:1", step("1 of 2", "n[1-2]", "1(x2)")),
     "client 1 of 2 at h:1; local 0 of 1"},
    {"slurm_plane_without_size", dealt("plane", step("0 of 2", "n[1-2]", "1(x2)")),
     "refused: SLURM_DIST_PLANESIZE is not set; srun sets it to the size of the plane"},
    {"slurm_port_overflow", step("1 of 2", "n1", "2", ""),
     "refused: port_base is 65535, so that task 1 of a node has port 65536; the greatest port is 65535, give a lower base",
     "", {.port_base = 65535}},
    // No rows of the page.
    {"slurm_block_then_cores", dealt("block:cyclic", step("1 of 4", "n[1-2]", "2(x2)")),
     "client 1 of 4 at n1:61447; local 1 of 2"},
    {"slurm_cyclic_then_cores", dealt("cyclic:block", step("1 of 4", "n[1-2]", "2(x2)")),
     "client 1 of 4 at n1:61447; local 0 of 2"},
    {"slurm_distribution_unknown", dealt("other", step("0 of 2", "n[1-2]", "1(x2)")),
     "refused: SLURM_DISTRIBUTION is \"other\"; it must be block, cyclic, plane or arbitrary"},
    {"slurm_bad_nodes", step("0 of 2", "n[2-1]", "1(x2)"),
     "refused: SLURM_STEP_NODELIST: node list \"n[2-1]\" has the range \"2-1\", which runs backwards; give the lower number first"},
    {"slurm_bad_counts", step("0 of 2", "n[1-2]", "1(2)"),
     "refused: SLURM_STEP_TASKS_PER_NODE: list of tasks per node \"1(2)\" has \"(2)\" after 1; give the count of nodes once, as in 2(x3)"},
    {"slurm_step_id_missing", without(step("0 of 1", "n1", "1"), "SLURM_STEP_ID"),
     "refused: SLURM_STEP_ID is not set; it must be a whole number, from which the ports are made; set it, or SlurmOptions::port_base"},
    {"slurm_job_id_word", step("0 of 1", "n1", "1", "x.0"),
     "refused: SLURM_JOB_ID is \"x\"; it must be a whole number, from which the ports are made; set it, or SlurmOptions::port_base"},
    {"slurm_bad_address", with_address("h", step("0 of 1", "n1", "1")),
     "refused: TESSERA_COORDINATOR gives the coordinator's address \"h\"; it must be HOST:PORT, as in host-a:4000"},
    {"slurm_port_base_zero", step("0 of 1", "n1", "1"),
     "refused: port_base is 0; it must be from 1 to 65535",
     "", {.port_base = 0}},
    {"slurm_unknown_job", step("0 of 1", "n1", "1"),
     "refused: jobs names \"foo\"; jobs are \"chief\", \"worker\", \"ps\", \"evaluator\"",
     "", {.jobs = {{"foo", 1}}}},
    {"slurm_job_without_tasks", step("0 of 1", "n1", "1"),
     "refused: jobs gives 0 tasks to \"worker\"; give it 1 or more, or leave it out",
     "", {.jobs = {{"worker", 0}}}},
    {"slurm_two_chiefs", step("0 of 2", "n1", "2"),
     "refused: Slurm: job \"chief\" has 2 tasks; a cluster has at most one chief",
     "", {.jobs = {{"chief", 2}}}},
    {"slurm_more_tasks_than_ports", step("0 of 4097", "n1", "4097"),
     "refused: Slurm: worker 0 and worker 4096 are both at n1:61447; give each task an address"},
    {"slurm_evaluator", step("2 of 3", "n1", "3"),
     "client 0 of 1, no coordinator; local 2 of 3",
     "worker 0 n1:61447, worker 1 n1:61448, evaluator 0 n1:61449", {.jobs = {{"worker", 2}, {"evaluator", 1}}}},
};
// clang-format on

// "worker 0 n1:61447, ps 0 n2:61447", in the order of the ranks.
std::string addresses_of(const ClusterSpec& spec) {
  std::vector<std::string> addresses;
  for (const char* const job : {"chief", "worker", "ps", "evaluator"}) {
    for (int i = 0; i < spec.num_tasks(job); ++i) {
      addresses.push_back(absl::StrCat(job, " ", i, " ", *spec.task_address(job, i)));
    }
  }
  return absl::StrJoin(addresses, ", ");
}

class SlurmClusterTest : public ::testing::TestWithParam<SlurmCase> {};
INSTANTIATE_TEST_SUITE_P(Facts, SlurmClusterTest, ValuesIn(kSlurmCases), name_of<SlurmCase>);

TEST_P(SlurmClusterTest, IsRead) {
  const StatusOr<Cluster> cluster = slurm(lookup_of(GetParam().variables), GetParam().options);
  expect_cluster(cluster, GetParam().expected);
  if (cluster.ok() && !GetParam().addresses.empty()) {
    EXPECT_EQ(addresses_of(cluster->spec), GetParam().addresses);
  }
}

// Row slurm_no_gpu: the same result, whatever is said of GPUs, and none of it is read.
TEST_P(SlurmClusterTest, slurm_no_gpu) {
  Variables variables = GetParam().variables;
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE",
                           "SLURM_GPUS_PER_TASK", "GPU_DEVICE_ORDINAL"}) {
    variables[name] = "4,5,6,7";
  }
  const EnvironmentLookup all = lookup_of(variables);
  std::set<std::string> read;
  const EnvironmentLookup lookup = [&](const char* name) {
    read.insert(name);
    return all(name);
  };
  expect_cluster(slurm(lookup, GetParam().options), GetParam().expected);
  for (const std::string& name : read) {
    EXPECT_FALSE(absl::StrContains(name, "GPU") || absl::StrContains(name, "CUDA")) << name;
  }
}

TEST(SlurmTest, ASpecIsOfTasksWhosePlacesAreKnown) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster known,
                               slurm(lookup_of(step("1 of 2", "n[1-2]", "1(x2)"))));
  EXPECT_EQ(known.task_type, "worker");
  EXPECT_EQ(known.task_id, 1);
  EXPECT_EQ(known.source, "Slurm");
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Cluster arbitrary,
      slurm(lookup_of(with_address("h:1", dealt("arbitrary", step("1 of 2", "n[1-2]", "1(x2)"))))));
  EXPECT_TRUE(arbitrary.spec.jobs.empty());
  EXPECT_EQ(arbitrary.task_type, "");
}

TEST(SlurmTest, OutsideOfSlurmThereIsNoCluster) {
  EXPECT_THAT(slurm(lookup_of({})),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "this process is not under srun: none of SLURM_STEP_NUM_TASKS, "
                       "SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE is set; start it with srun, "
                       "or use another resolver"));
}

// Each distribution of random counts, against dealing tasks one by one.
TEST(SlurmTest, TasksAreDealtInPlanes) {
  const std::vector<std::vector<int>> all_counts = {
      {1}, {3, 1}, {1, 3}, {2, 2, 2}, {4, 1, 3, 1, 2}};
  for (const std::vector<int>& counts : all_counts) {
    int total = 0;
    for (const int count : counts) total += count;
    for (int plane = 1; plane <= 5; ++plane) {
      const std::string nodes = absl::StrCat("n[1-", counts.size(), "]");
      const Variables variables = with(
          dealt("plane", step(absl::StrCat("0 of ", total), nodes, absl::StrJoin(counts, ","))),
          "SLURM_DIST_PLANESIZE", absl::StrCat(plane));
      TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster, slurm(lookup_of(variables)));
      std::vector<int> used(counts.size());
      size_t node = 0;
      for (int rank = 0; rank < total;) {
        for (int i = 0; i < plane && used[node] < counts[node]; ++i, ++rank, ++used[node]) {
          EXPECT_EQ(*cluster.spec.task_address("worker", rank),
                    absl::StrCat("n", node + 1, ":", 61447 + used[node]));
        }
        node = (node + 1) % counts.size();
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cluster
