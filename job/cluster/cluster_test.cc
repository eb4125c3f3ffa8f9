// SPDX-License-Identifier: Apache-2.0
//
// Clusters that a program or Kubernetes gives: rows of tests/facts/cluster.md, and the other
// messages.
#include "job/cluster/cluster.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/cluster/cluster_tasks.h"
#include "job/testing/cluster_cases.h"
#include "tests/support/matchers.h"

namespace tessera::cluster {
namespace {

using absl::StatusCode;
using testing::expect_cluster;
using testing::IsOkAndHolds;
using testing::StatusIs;
using ::testing::ValuesIn;

using Jobs = std::map<std::string, std::map<int, std::string>>;

ClusterSpec spec_of(Jobs jobs) { return {.jobs = std::move(jobs)}; }

const Jobs kTwoWorkers = {{"worker", {{0, "a:1"}, {1, "b:2"}}}};

// The cluster as its first worker sees it, or the first task of the only job.
Cluster cluster_with(const Jobs& jobs) {
  const auto worker = jobs.find("worker");
  const auto& [job, tasks] = worker == jobs.end() ? *jobs.begin() : *worker;
  return *simple(spec_of(jobs), job, tasks.begin()->first);
}

struct SimpleCase {
  const char* name;
  Jobs jobs;
  const char* task_type;
  int task_id;
  std::string expected;
};

// clang-format off
const SimpleCase kSimpleCases[] = {
    {"simple", kTwoWorkers, "worker", 1, "client 1 of 2 at a:1"},
    {"simple_bad_task", kTwoWorkers, "worker", 7, "refused: job \"worker\" has no task 7; its tasks are 0 to 1"},
    {"simple_bad_type", kTwoWorkers, "foo", 0, "refused: the cluster has no tasks of job \"foo\"; its jobs are \"worker\""},
    // No rows of the page.
    {"simple_nothing", {}, "worker", 0, "refused: the cluster has no tasks of job \"worker\"; it has no jobs"},
    {"simple_unknown_job", {{"foo", {{0, "a:1"}}}}, "foo", 0, "refused: job \"foo\" is unknown; jobs are \"chief\", \"worker\", \"ps\", \"evaluator\""},
    {"simple_no_tasks", {{"worker", {}}}, "worker", 0, "refused: job \"worker\" has no tasks; give it addresses, or leave it out"},
    {"simple_negative_task", {{"worker", {{-1, "a:1"}}}}, "worker", -1, "refused: worker -1 has no number of a task; tasks of a job are numbered from 0"},
    {"simple_bad_address", {{"worker", {{0, "a"}}}}, "worker", 0, "refused: worker 0 has the address \"a\"; it must be HOST:PORT, with a port from 0 to 65535, as in host-a:4000"},
    {"simple_one_address", {{"chief", {{0, "a:1"}}}, {"worker", {{0, "a:1"}}}}, "worker", 0, "refused: chief 0 and worker 0 are both at a:1; give each task an address"},
    {"simple_missing_task", {{"worker", {{1, "a:1"}, {3, "b:1"}}}}, "worker", 2, "refused: job \"worker\" has no task 2; its tasks are some of 1 to 3"},
    {"simple_unknown_ports", {{"worker", {{0, "a:0"}, {1, "a:0"}}}}, "worker", 1, "client 1 of 2 at a:0"},
};
// clang-format on

class SimpleTest : public ::testing::TestWithParam<SimpleCase> {};
INSTANTIATE_TEST_SUITE_P(Facts, SimpleTest, ValuesIn(kSimpleCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(SimpleTest, IsRead) {
  expect_cluster(simple(spec_of(GetParam().jobs), GetParam().task_type, GetParam().task_id),
                 GetParam().expected);
}

TEST(ClusterSpecTest, IsMadeFromLists) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const ClusterSpec spec,
                               ClusterSpec::create({{"worker", {"a:1", "b:2"}}, {"ps", {"p:1"}}}));
  EXPECT_EQ(spec.num_tasks("worker"), 2);
  EXPECT_EQ(spec.num_tasks("chief"), 0);
  EXPECT_EQ(spec.to_string(), "{ps: [p:1], worker: [a:1, b:2]}");
  EXPECT_EQ(ClusterSpec().to_string(), "{}");
  EXPECT_THAT(ClusterSpec::create({{"worker", {}}}),
              StatusIs(StatusCode::kInvalidArgument,
                       "job \"worker\" has no tasks; give it addresses, or leave it out"));
}

// Row task_address.
TEST(ClusterSpecTest, TaskAddress) {
  const ClusterSpec spec = spec_of(kTwoWorkers);
  EXPECT_THAT(spec.task_address("worker", 1), IsOkAndHolds("b:2"));
  EXPECT_THAT(
      spec.task_address("worker", 2),
      StatusIs(StatusCode::kOutOfRange, "job \"worker\" has no task 2; its tasks are 0 to 1"));
  EXPECT_THAT(spec.task_address("ps", 0),
              StatusIs(StatusCode::kNotFound,
                       "the cluster has no tasks of job \"ps\"; its jobs are \"worker\""));
}

struct UnionCase {
  const char* name;
  std::vector<Jobs> clusters;
  std::string expected;  // to_string() and the summary, or "refused: MESSAGE"
};

// clang-format off
const UnionCase kUnionCases[] = {
    {"union_lists", {{{"worker", {{0, "a:1"}}}}, {{"worker", {{0, "b:1"}}}, {"ps", {{0, "p:1"}}}}},
     "{ps: [p:1], worker: [a:1, b:1]} client 0 of 3 at a:1"},
    {"union_reversed", {{{"worker", {{0, "b:1"}}}, {"ps", {{0, "p:1"}}}}, {{"worker", {{0, "a:1"}}}}},
     "{ps: [p:1], worker: [b:1, a:1]} client 0 of 3 at b:1"},
    {"union_list_and_sparse", {{{"worker", {{0, "a:1"}}}}, {{"worker", {{3, "d:3"}}}}},
     "{worker: {0: a:1, 3: d:3}} client 0 of 2 at a:1"},
    {"union_sparse", {{{"worker", {{3, "d:3"}}}}, {{"worker", {{0, "e:0"}}}}},
     "{worker: {0: e:0, 3: d:3}} client 1 of 2 at e:0"},
    {"union_same_task", {{{"worker", {{3, "d:3"}}}}, {{"worker", {{3, "f:3"}}}}}, "refused: union_of: worker 3 is at d:3 and at f:3; give each task one address"},
    {"union_none", {}, "refused: union_of: no cluster is given; give one or more"},
    {"union_one", {kTwoWorkers}, "{worker: [a:1, b:2]} client 0 of 2 at a:1"},
    // No rows of the page.
    {"union_chief_of_another", {kTwoWorkers, {{"chief", {{0, "c:1"}}}}},
     "{chief: [c:1], worker: [a:1, b:2]} client 1 of 3 at c:1"},
    {"union_same_task_and_address", {{{"worker", {{3, "d:3"}}}}, {{"worker", {{3, "d:3"}}}}},
     "{worker: {3: d:3}} client 0 of 1, no coordinator"},
    {"union_one_address", {{{"worker", {{0, "a:1"}}}}, {{"worker", {{0, "a:1"}}}}}, "refused: union_of: worker 0 and worker 1 are both at a:1; give each task an address"},
};
// clang-format on

class UnionTest : public ::testing::TestWithParam<UnionCase> {};
INSTANTIATE_TEST_SUITE_P(Facts, UnionTest, ValuesIn(kUnionCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(UnionTest, IsMade) {
  std::vector<Cluster> clusters;
  for (const Jobs& jobs : GetParam().clusters) {
    clusters.push_back(cluster_with(jobs));
    clusters.back().local_rank = 0;
    clusters.back().local_size = static_cast<int>(clusters.size());
  }
  StatusOr<Cluster> united = union_of(clusters);
  if (!united.ok()) return expect_cluster(united, GetParam().expected);
  EXPECT_EQ(united->task_type, clusters[0].task_type);
  EXPECT_EQ(united->local_size, 1);
  united->local_size.reset();
  EXPECT_EQ(absl::StrCat(united->spec.to_string(), " ", testing::summary(*united)),
            GetParam().expected);
  EXPECT_EQ(united->source, clusters.size() == 1 ? "simple" : "union");
}

TEST(UnionTest, KeepsAnAddressThatIsNoTasks) {
  std::vector<Cluster> clusters = {cluster_with(kTwoWorkers), cluster_with({{"ps", {{0, "p:1"}}}})};
  clusters[0].coordinator = "k:1";
  EXPECT_EQ(union_of(clusters)->coordinator, "k:1");
}

TEST(UnionTest, TheFirstSaysWhichTaskThisIs) {
  EXPECT_THAT(union_of({Cluster{.source = "TF_CONFIG"}, cluster_with(kTwoWorkers)}),
              StatusIs(StatusCode::kInvalidArgument,
                       "union_of: the first cluster, of \"TF_CONFIG\", has no task; begin with one "
                       "that says which task this process is"));
}

// The membership that Client::connect() would be given.
TEST(MembershipTest, TasksMustNotBeMissing) {
  const StatusOr<Cluster> sparse = union_of(
      {cluster_with({{"worker", {{0, "a:1"}}}}), cluster_with({{"worker", {{3, "d:3"}}}})});
  EXPECT_THAT(
      membership_of(*sparse).status(),
      StatusIs(
          StatusCode::kInvalidArgument,
          "worker 1 is missing, and worker 3 is there; a Tessera job has all tasks from 0 on"));
}

TEST(MembershipTest, ClustersOfAProgramAreChecked) {
  EXPECT_THAT(membership_of({.client_id = 2, .num_clients = 2, .coordinator = "a:1"}).status(),
              StatusIs(StatusCode::kInvalidArgument,
                       "client_id is 2 and num_clients 2; ids are 0 to the number of clients - 1"));
  EXPECT_THAT(
      membership_of({.client_id = 1, .num_clients = 2}).status(),
      StatusIs(StatusCode::kInvalidArgument,
               "the coordinator of 2 clients is at \"\"; it must be HOST:PORT of client 0"));
}

using Pods = std::vector<KubernetesPod>;

struct PodsCase {
  const char* name;
  std::map<std::string, Pods> pods;  // by selector, all of job worker
  std::string addresses;             // of the workers, or the error with its code
};

// clang-format off
const PodsCase kPodsCases[] = {
    {"k8s", {{"x", {{"b", "Running", "10.0.0.2"}, {"a", "Running", "10.0.0.1"}}}},
     "{worker: [10.0.0.1:8470, 10.0.0.2:8470]}"},
    {"k8s_natural_order", {{"x", {{"w-10", "Running", "10.0.0.10"}, {"w-9", "Running", "10.0.0.9"}}}},
     "{worker: [10.0.0.9:8470, 10.0.0.10:8470]}"},
    {"k8s_one_host", {{"x", {{"a", "Running", "10.0.0.1"}, {"b", "Running", "10.0.0.2"}}}},
     "{worker: [10.0.0.1:8470, 10.0.0.2:8470]}"},
    {"k8s_pending", {{"x", {{"a", "Pending", ""}}}}, "UNAVAILABLE: Kubernetes: pods of selector \"x\": pod \"a\" is Pending, not Running; try again later"},
    {"k8s_none", {{"x=1", {}}}, "NOT_FOUND: Kubernetes: pods of selector \"x=1\": there are no pods; see whether the selector and the namespace are meant"},
    {"k8s_pod_without_ip", {{"x", {{"a", "Running", ""}}}}, "UNAVAILABLE: Kubernetes: pods of selector \"x\": pod \"a\" has no address yet; try again later"},
    // No rows of the page.
    {"k8s_zeros", {{"x", {{"w-10a", "Running", "h3"}, {"w-010", "Running", "h1"}, {"w-10", "Running", "h2"}, {"w", "Running", "h0"}}}},
     "{worker: [h0:8470, h1:8470, h2:8470, h3:8470]}"},
    {"k8s_ipv6", {{"x", {{"a", "Running", "fd00::1"}}}}, "{worker: [[fd00::1]:8470]}"},
    {"k8s_one_address", {{"x", {{"a", "Running", "h"}, {"b", "Running", "h"}}}}, "INVALID_ARGUMENT: Kubernetes: worker 0 and worker 1 are both at h:8470; give each task an address"},
};
// clang-format on

class KubernetesTest : public ::testing::TestWithParam<PodsCase> {};
INSTANTIATE_TEST_SUITE_P(Facts, KubernetesTest, ValuesIn(kPodsCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(KubernetesTest, PodsAreTasks) {
  const auto& pods = GetParam().pods;
  const PodLister list = [&](absl::string_view selector) { return pods.at(std::string(selector)); };
  const StatusOr<Cluster> cluster =
      kubernetes({{"worker", {pods.begin()->first}}}, list, 8470, "worker", 0);
  EXPECT_EQ(cluster.ok() ? cluster->spec.to_string() : cluster.status().ToString(),
            GetParam().addresses);
}

TEST(KubernetesClusterTest, TheTaskIsTheCallers) {
  const PodLister list = [](absl::string_view) -> Pods {
    return {{"b", "Running", "10.0.0.2"}, {"a", "Running", "10.0.0.1"}};
  };
  expect_cluster(kubernetes({{"worker", {"x"}}}, list, 8470, "worker", 1),
                 "client 1 of 2 at 10.0.0.1:8470");
  expect_cluster(kubernetes({{"worker", {"x"}}}, list, 8470, "worker", 2),
                 "refused: Kubernetes: job \"worker\" has no task 2; its tasks are 0 to 1");
  expect_cluster(kubernetes({{"worker", {"x"}}}, list, 0, "worker", 1),
                 "refused: Kubernetes: port is 0; it must be from 1 to 65535");
  expect_cluster(kubernetes({{"worker", {"x"}}}, nullptr, 1, "worker", 1),
                 "refused: Kubernetes: the lister of pods is empty; give a function");
  expect_cluster(
      kubernetes({{"worker", {}}}, list, 1, "worker", 1),
      "refused: Kubernetes: job \"worker\" has no tasks; give it addresses, or leave it out");
}

// Row k8s_two_selectors: in the order of the selectors, not of their names.
TEST(KubernetesClusterTest, k8s_two_selectors) {
  const PodLister list = [](absl::string_view selector) -> Pods {
    if (selector == "x=1") return {{"w1", "Running", "10.0.0.1"}};
    return {{"w0", "Running", "10.0.0.2"}};
  };
  EXPECT_EQ(kubernetes({{"worker", {"x=1", "x=0"}}}, list, 1, "worker", 0)->spec.to_string(),
            "{worker: [10.0.0.1:1, 10.0.0.2:1]}");
}

TEST(KubernetesClusterTest, k8s_lister_fails) {
  const PodLister list = [](absl::string_view) -> StatusOr<Pods> {
    return absl::PermissionDeniedError("no access");
  };
  EXPECT_THAT(
      kubernetes({{"worker", {"x=1"}}}, list, 1, "worker", 0),
      StatusIs(StatusCode::kPermissionDenied, "Kubernetes: pods of selector \"x=1\": no access"));
}

}  // namespace
}  // namespace tessera::cluster
