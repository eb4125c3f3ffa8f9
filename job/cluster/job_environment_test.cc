// SPDX-License-Identifier: Apache-2.0
//
// Every form of the environment, complete and not, from an injected lookup. A row's first field is
// its name.
#include "job/cluster/job_environment.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/testing/variables.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using absl::StatusCode;
using ::testing::Eq;
using testing::lookup_of;
using testing::StatusIs;
using ::testing::ValuesIn;
using testing::Variables;
using testing::with;

StatusOr<JobEnvironment> read(const Variables& variables, const JobOverrides& overrides = {}) {
  return read_job_environment(overrides, lookup_of(variables));
}

struct GoodCase {
  const char* name;
  Variables variables;
  const char* coordinator;
  int client_id;
  int num_clients;
  int num_local_devices = 1;
  const char* token = "";
  JobOverrides overrides = {};
  bool share_gpus = false;
  std::optional<bool> on_one_host = {};
};

// The variables of torchrun in client 1 of 2, with one more.
Variables torchrun_and(const std::string& name, const std::string& value) {
  return {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"},  {"RANK", "1"}, {"WORLD_SIZE", "2"},
          {"LOCAL_RANK", "1"},  {"LOCAL_WORLD_SIZE", "2"}, {name, value}};
}

// The variables of mpirun in a client, without an address.
Variables open_mpi(const std::string& rank, const std::string& size, const std::string& local_size,
                   const std::string& name = "PMIX_NAMESPACE",
                   const std::string& value = "1661665281") {
  return {{"OMPI_COMM_WORLD_RANK", rank},
          {"OMPI_COMM_WORLD_SIZE", size},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", local_size},
          {name, value}};
}

// The variables of srun in a client of step 2 of a job, without an address.
Variables slurm(const std::string& rank, const std::string& size, const std::string& num_nodes) {
  return {{"SLURM_PROCID", rank},         {"SLURM_NTASKS", size},
          {"SLURM_JOB_ID", "8191"},       {"SLURM_STEP_ID", "2"},
          {"SLURM_STEP_NUM_TASKS", size}, {"SLURM_STEP_NUM_NODES", num_nodes}};
}

// A complete Tessera form with one variable changed; an empty value removes it.
Variables tessera_with(const std::string& name, const std::string& value) {
  Variables variables = {
      {"TESSERA_COORDINATOR", "h:1"}, {"TESSERA_CLIENT_ID", "2"}, {"TESSERA_NUM_CLIENTS", "3"}};
  variables[name] = value;
  if (value.empty()) variables.erase(name);
  return variables;
}

Variables torchrun_without(const std::string& name) {
  Variables variables = {
      {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}};
  variables.erase(name);
  return variables;
}

Variables torchrun_with(const std::string& name, const std::string& value) {
  Variables variables = torchrun_without(name);
  variables[name] = value;
  return variables;
}

const GoodCase kGood[] = {
    {"auto_nothing", {}, "", 0, 1},
    {"torchrun_one",
     {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}},
     "h:1",
     0,
     1},
    {"tessera",
     {{"TESSERA_COORDINATOR", "h:1"}, {"TESSERA_CLIENT_ID", "2"}, {"TESSERA_NUM_CLIENTS", "3"}},
     "h:1",
     2,
     3},
    {"torchrun",
     {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}},
     "h:29500",
     1,
     2},
    {"open_mpi",
     {{"TESSERA_COORDINATOR", "h:1"}, {"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
     "h:1",
     3,
     4},
    {"slurm",
     {{"TESSERA_COORDINATOR", "h:1"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}},
     "h:1",
     0,
     2},
    {"tf_dtensor",
     {{"DTENSOR_CLIENT_ID", "1"}, {"DTENSOR_NUM_CLIENTS", "2"}, {"DTENSOR_JOBS", "a:1,b:2"}},
     "a:1",
     1,
     2},
    {"torchrun_agent_store",
     torchrun_and("TORCHELASTIC_USE_AGENT_STORE", "True"),
     "h:29501",
     1,
     2,
     1,
     "",
     {},
     false,
     true},
    {"torchrun_agent_store_off",
     torchrun_and("TORCHELASTIC_USE_AGENT_STORE", "False"),
     "h:29500",
     1,
     2,
     1,
     "",
     {},
     false,
     true},
    {"torchrun_last_port",
     {{"MASTER_ADDR", "h"},
      {"MASTER_PORT", "65535"},
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
     "h:65534",
     1,
     2},
    {"torchrun_two_hosts",
     {{"MASTER_ADDR", "h"},
      {"MASTER_PORT", "29500"},
      {"RANK", "1"},
      {"WORLD_SIZE", "4"},
      {"LOCAL_WORLD_SIZE", "2"}},
     "h:29500",
     1,
     4,
     1,
     "",
     {},
     false,
     false},
    {"torchrun_ipv6",
     {{"MASTER_ADDR", "fe80::1"}, {"MASTER_PORT", "29500"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}},
     "[fe80::1]:29500",
     1,
     2},
    {"torchrun_ipv6_in_brackets",
     {{"MASTER_ADDR", "[::1]"}, {"MASTER_PORT", "29500"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}},
     "[::1]:29500",
     1,
     2},
    {"open_mpi_one_host", open_mpi("1", "2", "2"), "127.0.0.1:65387", 1, 2, 1, "", {}, false, true},
    {"open_mpi_five",
     open_mpi("1", "2", "2", "PMIX_NAMESPACE", "prterun-host-2913@1"),
     "127.0.0.1:62979",
     1,
     2,
     1,
     "",
     {},
     false,
     true},
    {"open_mpi_without_pmix",
     open_mpi("1", "2", "2", "OMPI_MCA_ess_base_jobid", "1661665281"),
     "127.0.0.1:65387",
     1,
     2,
     1,
     "",
     {},
     false,
     true},
    {"open_mpi_one_client", open_mpi("0", "1", "1"), "", 0, 1},
    {"open_mpi_alone_by_choice", open_mpi("3", "4", "2"), "", 0, 1, 1, "", {.num_clients = 1}},
    {"slurm_one_host", slurm("1", "4", "1"), "127.0.0.1:61953", 1, 4, 1, "", {}, false, true},
    {"slurm_one_client", slurm("0", "1", "1"), "", 0, 1},
    // A batch script has SLURM_PROCID, and no variables of a step.
    {"slurm_batch_script",
     {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}},
     "",
     0,
     1},
    // On several hosts the address is needed as well; without it each process is a job of its own.
    {"open_mpi_several_hosts", open_mpi("3", "4", "2"), "", 0, 1},
    {"open_mpi_without_an_id", open_mpi("1", "2", "2", "OTHER", "x"), "", 0, 1},
    {"slurm_several_hosts", slurm("1", "4", "2"), "", 0, 1},
    {"open_mpi_with_address",
     with(open_mpi("3", "4", "2"), "TESSERA_COORDINATOR", "h:1"),
     "h:1",
     3,
     4,
     1,
     "",
     {},
     false,
     false},
    {"open_mpi_with_the_address_of_the_program",
     open_mpi("3", "4", "2"),
     "o:9",
     3,
     4,
     1,
     "",
     {.coordinator = "o:9"},
     false,
     false},
    {"auto_tf_config_last",
     {{"DTENSOR_CLIENT_ID", "1"},
      {"DTENSOR_NUM_CLIENTS", "2"},
      {"DTENSOR_JOBS", "a:1,b:2"},
      {"TF_CONFIG",
       R"({"cluster": {"worker": ["x:1", "y:2", "z:3"]},
           "task": {"type": "worker", "index": 0}})"}},
     "a:1",
     1,
     2},
    {"auto_tf_config",
     {{"TF_CONFIG",
       R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}})"}},
     "a:1",
     1,
     2},
    {"auto_tf_config_of_an_evaluator",
     {{"TF_CONFIG",
       R"({"cluster": {"worker": ["a:1", "b:2"], "evaluator": ["e:1"]},
           "task": {"type": "evaluator", "index": 0}})"}},
     "",
     0,
     1},
    {"overrides_win_over_tf_config",
     {{"TF_CONFIG",
       R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}})"}},
     "o:9",
     0,
     2,
     1,
     "",
     {.coordinator = "o:9", .client_id = 0}},
    {"auto_hydra",
     {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"TESSERA_COORDINATOR", "h:1"}},
     "h:1",
     1,
     2},
    {"auto_hydra_needs_address", {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, "", 0, 1},
    {"auto_hydra_on_one_host",
     {{"PMI_RANK", "1"},
      {"PMI_SIZE", "2"},
      {"MPI_LOCALRANKID", "1"},
      {"MPI_LOCALNRANKS", "2"},
      {"TESSERA_COORDINATOR", "h:1"}},
     "h:1",
     1,
     2,
     1,
     "",
     {},
     false,
     true},
    {"auto_slurm_before_hydra",
     {{"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "2"},
      {"PMI_RANK", "1"},
      {"PMI_SIZE", "2"},
      {"TESSERA_COORDINATOR", "h:1"}},
     "h:1",
     0,
     2},
    // Inside another user's MPI or Slurm job, a program alone stays alone.
    {"auto_open_mpi_needs_address",
     {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
     "",
     0,
     1},
    {"auto_slurm_needs_address", {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}}, "", 0, 1},
    {"auto_tessera_first",
     {{"TESSERA_COORDINATOR", "h:1"},
      {"TESSERA_CLIENT_ID", "2"},
      {"TESSERA_NUM_CLIENTS", "3"},
      {"MASTER_ADDR", "other"},
      {"MASTER_PORT", "2"},
      {"RANK", "0"},
      {"WORLD_SIZE", "8"}},
     "h:1",
     2,
     3},
    {"auto_torchrun_before_slurm",
     {{"MASTER_ADDR", "h"},
      {"MASTER_PORT", "2"},
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"TESSERA_COORDINATOR", "other:1"},
      {"SLURM_PROCID", "3"},
      {"SLURM_NTASKS", "8"}},
     "h:2",
     1,
     2},
    {"slurm_before_tf_dtensor",
     {{"TESSERA_COORDINATOR", "h:1"},
      {"SLURM_PROCID", "3"},
      {"SLURM_NTASKS", "8"},
      {"DTENSOR_CLIENT_ID", "1"},
      {"DTENSOR_NUM_CLIENTS", "2"},
      {"DTENSOR_JOBS", "a:1"}},
     "h:1",
     3,
     8},
    {"devices_and_token",
     {{"TESSERA_LOCAL_DEVICES", "4"}, {"TESSERA_TOKEN", "secret"}},
     "",
     0,
     1,
     4,
     "secret"},
    {"devices_and_token_in_another_form",
     {{"MASTER_ADDR", "h"},
      {"MASTER_PORT", "2"},
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"TESSERA_LOCAL_DEVICES", "2"},
      {"TESSERA_TOKEN", "t"}},
     "h:2",
     1,
     2,
     2,
     "t"},
    {"overrides_win_over_all",
     {{"TESSERA_COORDINATOR", "h:1"},
      {"TESSERA_CLIENT_ID", "2"},
      {"TESSERA_NUM_CLIENTS", "3"},
      {"TESSERA_LOCAL_DEVICES", "4"},
      {"TESSERA_TOKEN", "secret"}},
     "o:9",
     1,
     2,
     8,
     "mine",
     {.coordinator = "o:9",
      .client_id = 1,
      .num_clients = 2,
      .num_local_devices = 8,
      .token = "mine"}},
    {"overrides_win_one_by_one",
     {{"TESSERA_COORDINATOR", "h:1"}, {"TESSERA_CLIENT_ID", "2"}, {"TESSERA_NUM_CLIENTS", "3"}},
     "h:1",
     0,
     3,
     1,
     "",
     {.client_id = 0}},
    {"override_of_what_is_missing",
     {{"TESSERA_COORDINATOR", "h:1"}, {"TESSERA_NUM_CLIENTS", "3"}},
     "h:1",
     2,
     3,
     1,
     "",
     {.client_id = 2}},
    // Complete overrides do not even read a broken environment.
    {"overrides_beside_a_broken_form",
     {{"RANK", "abc"}, {"WORLD_SIZE", "x"}},
     "o:9",
     1,
     2,
     1,
     "",
     {.coordinator = "o:9", .client_id = 1, .num_clients = 2}},
    {"gpus_are_shared", {{"TESSERA_SHARE_GPUS", "1"}}, "", 0, 1, 1, "", {}, true},
    {"gpus_are_not_shared", {{"TESSERA_SHARE_GPUS", "0"}}, "", 0, 1},
    {"override_of_shared_gpus",
     {{"TESSERA_SHARE_GPUS", "1"}},
     "",
     0,
     1,
     1,
     "",
     {.share_gpus = false}},
};

class GoodEnvironmentTest : public ::testing::TestWithParam<GoodCase> {};

TEST_P(GoodEnvironmentTest, IsRead) {
  const GoodCase& good = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(const JobEnvironment job, read(good.variables, good.overrides));
  EXPECT_EQ(job.coordinator, good.coordinator);
  EXPECT_EQ(job.client_id, good.client_id);
  EXPECT_EQ(job.num_clients, good.num_clients);
  EXPECT_EQ(job.num_local_devices, good.num_local_devices);
  EXPECT_EQ(job.token, good.token);
  EXPECT_EQ(job.share_gpus, good.share_gpus);
  EXPECT_EQ(job.on_one_host, good.on_one_host);
}

template <class Case>
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Forms, GoodEnvironmentTest, ValuesIn(kGood), name_of<GoodCase>);

TEST(EnvironmentTest, CoordinatorIsHostedWhereTheVariableNamesItsAddress) {
  Variables variables = {
      {"TESSERA_COORDINATOR", "h:1"}, {"TESSERA_CLIENT_ID", "0"}, {"TESSERA_NUM_CLIENTS", "2"}};
  EXPECT_FALSE(read(variables)->coordinator_is_hosted);
  variables["TESSERA_HOSTED_COORDINATOR"] = "h:1";
  EXPECT_TRUE(read(variables)->coordinator_is_hosted);
  // Inherited by a job within a client, which has an address of its own.
  EXPECT_FALSE(read(variables, {.coordinator = "h:2"})->coordinator_is_hosted);
  EXPECT_TRUE(read(variables, {.coordinator = "h:2", .coordinator_is_hosted = true})
                  ->coordinator_is_hosted);
  EXPECT_FALSE(read({{"TESSERA_HOSTED_COORDINATOR", "h:1"}})->coordinator_is_hosted);
}

// A job within a client does not use the relay.
TEST(EnvironmentTest, RelayIsOfTheHostedCoordinator) {
  Variables variables = {{"TESSERA_COORDINATOR", "h:1"},
                         {"TESSERA_CLIENT_ID", "0"},
                         {"TESSERA_NUM_CLIENTS", "2"},
                         {"TESSERA_COORDINATOR_RELAY", "127.0.0.1:7"}};
  EXPECT_EQ(read(variables)->relay, "");
  variables["TESSERA_HOSTED_COORDINATOR"] = "h:1";
  EXPECT_EQ(read(variables)->relay, "127.0.0.1:7");
  EXPECT_EQ(read(variables, {.coordinator = "h:2"})->relay, "");
}

// Row torchrun_restart, and the same of other launchers.
TEST(EnvironmentTest, JobsAndAttemptsHaveNames) {
  Variables torchrun = torchrun_and("TORCHELASTIC_RUN_ID", "none");
  torchrun["TORCHELASTIC_RESTART_COUNT"] = "2";
  EXPECT_EQ(read(torchrun)->job, "torchrun none attempt 2");
  const Variables without_an_id = torchrun_and("TORCHELASTIC_RESTART_COUNT", "2");
  EXPECT_EQ(read(without_an_id)->coordinator, "h:29500");
  EXPECT_EQ(read(without_an_id)->job, "torchrun attempt 2");
  // Two agents, of which one alone has started its clients again: the count is not the job's.
  torchrun["WORLD_SIZE"] = "4";
  EXPECT_EQ(read(torchrun)->job, "torchrun none");
  EXPECT_EQ(read(torchrun_without("LOCAL_WORLD_SIZE"))->job, "");
  EXPECT_EQ(read(open_mpi("1", "2", "2"))->job, "mpirun 1661665281");
  EXPECT_EQ(read(slurm("1", "4", "1"))->job, "slurm 8191.2");
  EXPECT_EQ(read({})->job, "");
  Variables given = slurm("1", "4", "1");
  given["TESSERA_JOB"] = "abc";
  EXPECT_EQ(read(given)->job, "abc");
}

// Clients of two runs of tessera_run form one job, if the program says so.
TEST(EnvironmentTest, NameOfALaunchIsNotThatOfAJobGivenByOptions) {
  const Variables of_a_launch =
      with(with(tessera_with("TESSERA_CLIENT_ID", "0"), "TESSERA_JOB", "abc"),
           "TESSERA_HOSTED_COORDINATOR", "h:1");
  EXPECT_EQ(read(of_a_launch)->job, "abc");
  EXPECT_EQ(read(of_a_launch, {.client_id = 1})->job, "abc");
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const JobEnvironment given,
      read(of_a_launch, {.coordinator = "o:9", .client_id = 4, .num_clients = 6}));
  EXPECT_EQ(given.job, "");
  EXPECT_FALSE(given.coordinator_is_hosted);
  EXPECT_EQ(read(of_a_launch, {.num_clients = 1})->job, "");
}

TEST(EnvironmentTest, auto_tf_config_ps) {
  EXPECT_THAT(read({{"TF_CONFIG",
                     R"({"cluster": {"worker": ["a:1"], "ps": ["p:1"]},
                         "task": {"type": "ps", "index": 0}})"}}),
              StatusIs(StatusCode::kFailedPrecondition,
                       "ps 0 of TF_CONFIG is a Server, not a client of collectives; connect from "
                       "chief and workers"));
}

struct BadCase {
  const char* name;
  Variables variables;
  const char* message;
  JobOverrides overrides = {};
};

const BadCase kBad[] = {
    // Row bad_environment of tests/facts/dtensor.md: unset, a word, -1, 2^31.
    {"tessera_id_unset", tessera_with("TESSERA_CLIENT_ID", ""),
     "TESSERA_CLIENT_ID is not set, but other variables of the Tessera form are; set it (0 to the "
     "number of clients - 1), or unset the others"},
    {"tessera_num_unset", tessera_with("TESSERA_NUM_CLIENTS", ""),
     "TESSERA_NUM_CLIENTS is not set, but other variables of the Tessera form are; set it (1 to "
     "1000000), or unset the others"},
    {"tessera_address_unset", tessera_with("TESSERA_COORDINATOR", ""),
     "TESSERA_COORDINATOR is not set, but other variables of the Tessera form are; set it "
     "(host:port of client 0), or unset the others"},
    {"tessera_address_alone",
     {{"TESSERA_COORDINATOR", "h:1"}},
     "TESSERA_NUM_CLIENTS is not set, but other variables of the Tessera form are; set it (1 to "
     "1000000), or unset the others"},
    {"tessera_id_not_a_number", tessera_with("TESSERA_CLIENT_ID", "abc"),
     "TESSERA_CLIENT_ID is \"abc\"; it must be a whole number from 0 to 2"},
    {"tessera_id_negative", tessera_with("TESSERA_CLIENT_ID", "-1"),
     "TESSERA_CLIENT_ID is \"-1\"; it must be a whole number from 0 to 2"},
    {"tessera_id_two_to_the_31", tessera_with("TESSERA_CLIENT_ID", "2147483648"),
     "TESSERA_CLIENT_ID is \"2147483648\"; it must be a whole number from 0 to 2"},
    {"tessera_id_beyond_64_bits", tessera_with("TESSERA_CLIENT_ID", "99999999999999999999"),
     "TESSERA_CLIENT_ID is \"99999999999999999999\"; it must be a whole number from 0 to 2"},
    {"tessera_id_is_num", tessera_with("TESSERA_CLIENT_ID", "3"),
     "TESSERA_CLIENT_ID is \"3\"; it must be a whole number from 0 to 2"},
    {"tessera_id_with_a_fraction", tessera_with("TESSERA_CLIENT_ID", "1.5"),
     "TESSERA_CLIENT_ID is \"1.5\"; it must be a whole number from 0 to 2"},
    {"tessera_num_zero", tessera_with("TESSERA_NUM_CLIENTS", "0"),
     "TESSERA_NUM_CLIENTS is \"0\"; it must be a whole number from 1 to 1000000"},
    {"tessera_num_too_large", tessera_with("TESSERA_NUM_CLIENTS", "1000001"),
     "TESSERA_NUM_CLIENTS is \"1000001\"; it must be a whole number from 1 to 1000000"},
    {"torchrun_rank_missing", torchrun_without("RANK"),
     "RANK is not set, but other variables of the torchrun form are; set it (0 to the number of "
     "clients - 1), or unset the others"},
    {"torchrun_world_size_unset", torchrun_without("WORLD_SIZE"),
     "WORLD_SIZE is not set, but other variables of the torchrun form are; set it (1 to 1000000), "
     "or unset the others"},
    {"torchrun_address_unset", torchrun_without("MASTER_ADDR"),
     "MASTER_ADDR is not set, but other variables of the torchrun form are; set it (host of client "
     "0), or unset the others"},
    {"torchrun_port_missing", torchrun_without("MASTER_PORT"),
     "MASTER_PORT is not set, but other variables of the torchrun form are; set it (1 to 65535), "
     "or unset the others"},
    {"torchrun_port_zero", torchrun_with("MASTER_PORT", "0"),
     "MASTER_PORT is \"0\"; it must be a whole number from 1 to 65535"},
    {"torchrun_port_range", torchrun_with("MASTER_PORT", "70000"),
     "MASTER_PORT is \"70000\"; it must be a whole number from 1 to 65535"},
    {"torchrun_port_too_large", torchrun_with("MASTER_PORT", "65536"),
     "MASTER_PORT is \"65536\"; it must be a whole number from 1 to 65535"},
    {"open_mpi_size_missing",
     {{"TESSERA_COORDINATOR", "h:1"}, {"OMPI_COMM_WORLD_RANK", "0"}},
     "OMPI_COMM_WORLD_SIZE is not set, but other variables of the Open MPI form are; set it (1 to "
     "1000000), or unset the others"},
    {"auto_half_a_form",
     {{"RANK", "0"},
      {"TF_CONFIG",
       R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}})"}},
     "WORLD_SIZE is not set, but other variables of the torchrun form are; set it (1 to 1000000), "
     "or unset the others"},
    {"tf_config_no_task",
     {{"TF_CONFIG", R"({"cluster": {"worker": ["a:1", "b:2"]}})"}},
     "TF_CONFIG: task is not set: which of the 2 tasks is this? set it, as in \"task\": {\"type\": "
     "\"worker\", \"index\": 0}"},
    {"torchrun_rank_is_size",
     {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}, {"RANK", "2"}, {"WORLD_SIZE", "2"}},
     "RANK is \"2\"; it must be a whole number from 0 to 1"},
    {"slurm_procid_unset",
     {{"TESSERA_COORDINATOR", "h:1"}, {"SLURM_NTASKS", "2"}},
     "SLURM_PROCID is not set, but other variables of the Slurm form are; set it (0 to the number "
     "of clients - 1), or unset the others"},
    {"tf_dtensor_jobs_unset",
     {{"DTENSOR_CLIENT_ID", "0"}, {"DTENSOR_NUM_CLIENTS", "2"}},
     "DTENSOR_JOBS is not set, but other variables of the TF DTensor form are; set it (host:port "
     "of client 0), or unset the others"},
    {"no_local_devices",
     {{"TESSERA_LOCAL_DEVICES", "0"}},
     "TESSERA_LOCAL_DEVICES is \"0\"; it must be a whole number from 1 to 65536"},
    {"share_gpus_is_no_number",
     {{"TESSERA_SHARE_GPUS", "yes"}},
     "TESSERA_SHARE_GPUS is \"yes\"; it must be a whole number from 0 to 1"},
    {"override_id_out_of_range",
     {},
     "client_id is 2; a job of 2 clients has ids 0 to 1",
     {.coordinator = "h:1", .client_id = 2, .num_clients = 2}},
    {"override_id_negative",
     {},
     "client_id is -1; a job of 2 clients has ids 0 to 1",
     {.coordinator = "h:1", .client_id = -1, .num_clients = 2}},
    {"override_num_zero", {}, "num_clients is 0; it must be from 1 to 1000000", {.num_clients = 0}},
    {"override_without_an_address",
     {},
     "a job of 2 clients needs the address of its coordinator; set ClientOptions::coordinator or "
     "TESSERA_COORDINATOR to host:port of client 0",
     {.client_id = 0, .num_clients = 2}},
    {"override_devices_negative",
     {},
     "num_local_devices is -1; it must be from 1 to 65536",
     {.num_local_devices = -1}},
};

class BadEnvironmentTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadEnvironmentTest, IsRefused) {
  EXPECT_THAT(read(GetParam().variables, GetParam().overrides),
              StatusIs(StatusCode::kInvalidArgument, Eq(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(Forms, BadEnvironmentTest, ValuesIn(kBad), name_of<BadCase>);

}  // namespace
}  // namespace tessera
