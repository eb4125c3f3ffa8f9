// SPDX-License-Identifier: Apache-2.0
//
// Values of TF_CONFIG and the clusters that they mean: rows of tests/facts/cluster.md, and the
// other messages.
#include <string>

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
using ::testing::ValuesIn;
using testing::Variables;

template <class Case>
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

struct TfConfigCase {
  const char* name;
  const char* text;  // null: unset
  const char* expected;
};

// clang-format off
const TfConfigCase kTfConfigCases[] = {
    {"tf_two_workers_0",
     R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}})",
     "client 0 of 2 at a:1"},
    {"tf_two_workers_1",
     R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}})",
     "client 1 of 2 at a:1"},
    {"tf_with_chief_chief",
     R"({"cluster": {"chief": ["c:1"], "worker": ["a:1", "b:2"], "ps": ["p:1", "q:2"], "evaluator": ["e:1"]}, "task": {"type": "chief", "index": 0}})",
     "client 0 of 5 at c:1"},
    {"tf_with_chief_worker_1",
     R"({"cluster": {"chief": ["c:1"], "worker": ["a:1", "b:2"], "ps": ["p:1", "q:2"], "evaluator": ["e:1"]}, "task": {"type": "worker", "index": 1}})",
     "client 2 of 5 at c:1"},
    {"tf_with_chief_ps_0",
     R"({"cluster": {"chief": ["c:1"], "worker": ["a:1", "b:2"], "ps": ["p:1", "q:2"], "evaluator": ["e:1"]}, "task": {"type": "ps", "index": 0}})",
     "client 3 of 5 at c:1"},
    {"tf_with_chief_ps_1",
     R"({"cluster": {"chief": ["c:1"], "worker": ["a:1", "b:2"], "ps": ["p:1", "q:2"], "evaluator": ["e:1"]}, "task": {"type": "ps", "index": 1}})",
     "client 4 of 5 at c:1"},
    {"tf_evaluator",
     R"({"cluster": {"chief": ["c:1"], "worker": ["a:1", "b:2"], "ps": ["p:1", "q:2"], "evaluator": ["e:1"]}, "task": {"type": "evaluator", "index": 0}})",
     "client 0 of 1, no coordinator"},
    {"tf_one_worker",
     R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})",
     "client 0 of 1, no coordinator"},
    {"tf_ipv6",
     R"({"cluster": {"worker": ["[::1]:1", "[::1]:2"]}, "task": {"type": "worker", "index": 1}})",
     "client 1 of 2 at [::1]:1"},
    {"tf_unset",
     nullptr,
     "client 0 of 1, no coordinator"},
    {"tf_empty_object",
     R"({})",
     "client 0 of 1, no coordinator"},
    {"tf_no_cluster",
     R"({"task": {"type": "worker", "index": 0}})",
     "client 0 of 1, no coordinator"},
    {"tf_index_text",
     R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": "1"}})",
     "client 1 of 2 at a:1"},
    {"tf_extra_keys",
     R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}, "environment": "cloud", "foo": 1})",
     "client 0 of 2 at a:1"},
    {"tf_rpc_layer",
     R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}, "rpc_layer": "grpc"})",
     "client 0 of 2 at a:1"},
    {"tf_session_master",
     R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}, "session_master": "grpc://x:9"})",
     "client 0 of 2 at a:1"},
    {"tf_empty_text",
     R"()",
     "refused: TF_CONFIG: is not valid JSON at character 1, at \"\"; expected an object as {\"cluster\": {\"worker\": [\"host-a:4000\", \"host-b:4000\"]}, \"task\": {\"type\": \"worker\", \"index\": 0}}"},
    {"tf_cut_short",
     R"({"cluster": )",
     "refused: TF_CONFIG: is not valid JSON at character 13, at \"\\\"cluster\\\": \"; expected an object as {\"cluster\": {\"worker\": [\"host-a:4000\", \"host-b:4000\"]}, \"task\": {\"type\": \"worker\", \"index\": 0}}"},
    {"tf_list",
     R"([1,2])",
     "refused: TF_CONFIG: is not an object; expected an object as {\"cluster\": {\"worker\": [\"host-a:4000\", \"host-b:4000\"]}, \"task\": {\"type\": \"worker\", \"index\": 0}}"},
    {"tf_no_task",
     R"({"cluster": {"worker": ["a:1", "b:2"]}})",
     "refused: TF_CONFIG: task is not set: which of the 2 tasks is this? set it, as in \"task\": {\"type\": \"worker\", \"index\": 0}"},
    {"tf_index_out_of_range",
     R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 5}})",
     "refused: TF_CONFIG: job \"worker\" has no task 5; its tasks are 0 to 1"},
    {"tf_index_negative",
     R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": -1}})",
     "refused: TF_CONFIG: task.index is -1; it must be a whole number of at least 0"},
    {"tf_index_fraction",
     R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1.7}})",
     "refused: TF_CONFIG: task.index is 1.7; it must be a whole number of at least 0"},
    {"tf_index_word",
     R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": "x"}})",
     "refused: TF_CONFIG: task.index is \"x\"; it must be a whole number of at least 0"},
    {"tf_index_null",
     R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": null}})",
     "refused: TF_CONFIG: task.index is null; it must be a whole number of at least 0"},
    {"tf_type_not_there",
     R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "chief", "index": 0}})",
     "refused: TF_CONFIG: the cluster has no tasks of job \"chief\"; its jobs are \"worker\""},
    {"tf_unknown_job",
     R"({"cluster": {"foo": ["a:1"]}, "task": {"type": "foo", "index": 0}})",
     "refused: TF_CONFIG: job \"foo\" is unknown; jobs are \"chief\", \"worker\", \"ps\", \"evaluator\""},
    {"tf_two_chiefs",
     R"({"cluster": {"chief": ["a:1", "b:1"], "worker": ["c:1"]}, "task": {"type": "worker", "index": 0}})",
     "refused: TF_CONFIG: job \"chief\" has 2 tasks; a cluster has at most one chief"},
    {"tf_two_evaluators",
     R"({"cluster": {"worker": ["a:1"], "evaluator": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 0}})",
     "refused: TF_CONFIG: job \"evaluator\" has 2 tasks; a cluster has at most one evaluator"},
    {"tf_sparse",
     R"({"cluster": {"worker": {"1": "b:2"}}, "task": {"type": "worker", "index": 1}})",
     "refused: TF_CONFIG: worker 0 is missing, and worker 1 is there; a Tessera job has all tasks from 0 on"},
    {"tf_job_is_text",
     R"({"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}})",
     "refused: TF_CONFIG: cluster.worker is \"a:1\"; it must be a list of \"host:port\""},
    {"tf_address_without_port",
     R"({"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 0}})",
     "refused: TF_CONFIG: worker 0 has the address \"a\"; it must be HOST:PORT, with a port from 1 to 65535, as in host-a:4000"},
    {"tf_address_number",
     R"({"cluster": {"worker": [1, 2]}, "task": {"type": "worker", "index": 0}})",
     "refused: TF_CONFIG: cluster.worker[0] is 1; it must be a text \"host:port\""},
    {"tf_address_port_range",
     R"({"cluster": {"worker": ["a:0", "b:70000"]}, "task": {"type": "worker", "index": 0}})",
     "refused: TF_CONFIG: worker 0 has the address \"a:0\" with port 0; it must be HOST:PORT, with a port from 1 to 65535, as in host-a:4000"},
    {"tf_address_twice",
     R"({"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}})",
     "refused: TF_CONFIG: worker 0 and worker 1 are both at a:1; give each task an address"},
    {"tf_no_workers",
     R"({"cluster": {"worker": []}, "task": {"type": "worker", "index": 0}})",
     "refused: TF_CONFIG: job \"worker\" has no tasks; give it addresses, or leave it out"},
    // No rows of the page.
    {"tf_evaluator_that_is_not_listed",
     R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "evaluator", "index": 0}})",
     "client 0 of 1, no coordinator"},
    {"tf_list_of_all_tasks",
     R"({"cluster": {"worker": {"0": "a:1", "01": "b:2"}}, "task": {"type": "worker", "index": 1}})",
     "client 1 of 2 at a:1"},
    {"tf_empty_cluster",
     R"({"cluster": {}})",
     "client 0 of 1, no coordinator"},
    {"tf_task_twice",
     R"({"cluster": {"worker": {"0": "a:1", "00": "b:2"}}, "task": {"type": "worker", "index": 1}})",
     "refused: TF_CONFIG: cluster.worker has task 0 twice; give it once"},
    {"tf_task_not_a_number",
     R"({"cluster": {"worker": {"x": "a:1"}}, "task": {"type": "worker", "index": 1}})",
     "refused: TF_CONFIG: a task of cluster.worker is \"x\"; it must be a whole number of at least 0"},
    {"tf_field_twice",
     R"({"cluster": {}, "cluster": {}})",
     "refused: TF_CONFIG: field \"cluster\" is given twice; give it once"},
    {"tf_cluster_is_a_list",
     R"({"cluster": ["a:1"]})",
     "refused: TF_CONFIG: cluster is [\"a:1\"]; it must be an object of jobs"},
    {"tf_task_is_text",
     R"({"cluster": {"worker": ["a:1"]}, "task": "worker"})",
     "refused: TF_CONFIG: task is \"worker\"; it must be an object with \"type\" and \"index\""},
    {"tf_no_type",
     R"({"cluster": {"worker": ["a:1"]}, "task": {"index": 0}})",
     "refused: TF_CONFIG: task.type is not set; it must be the name of a job"},
    {"tf_no_index",
     R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}})",
     "refused: TF_CONFIG: task.index is not set; it must be a whole number of at least 0"},
    {"tf_index_beyond_64_bits",
     R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 18446744073709551615}})",
     "refused: TF_CONFIG: task.index is 18446744073709551615; it must be a whole number of at least 0"},
    {"tf_long_value",
     R"({"cluster": "a text of more than sixty characters, of which the message shows a part"})",
     "refused: TF_CONFIG: cluster is \"a text of more than sixty characters, of which the messa...; it must be an object of jobs"},
};
// clang-format on

class TfConfigTest : public ::testing::TestWithParam<TfConfigCase> {};
INSTANTIATE_TEST_SUITE_P(Facts, TfConfigTest, ValuesIn(kTfConfigCases), name_of<TfConfigCase>);

TEST_P(TfConfigTest, IsRead) {
  Variables variables;
  if (GetParam().text != nullptr) variables["TF_CONFIG"] = GetParam().text;
  expect_cluster(tf_config(lookup_of(variables)), GetParam().expected);
}

TEST(TfConfigClusterTest, HasTheTasksOfAllJobs) {
  const Variables variables = {
      {"TF_CONFIG", R"({"cluster": {"chief": ["c:1"], "worker": ["a:1", "b:2"], "ps": ["p:1"]},
                        "task": {"type": "ps", "index": 0}})"}};
  TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster, tf_config(lookup_of(variables)));
  EXPECT_EQ(cluster.spec.to_string(), "{chief: [c:1], ps: [p:1], worker: [a:1, b:2]}");
  EXPECT_EQ(cluster.task_type, "ps");
  EXPECT_EQ(cluster.task_id, 0);
  EXPECT_EQ(cluster.source, "TF_CONFIG");
}

}  // namespace
}  // namespace tessera::cluster
