// SPDX-License-Identifier: Apache-2.0
//
// TestCluster: workers and parameter servers of a test, each a process (task_program.cc) on
// 127.0.0.1. The test is the chief.
//
//   TestCluster cluster(2, 1);
//   cluster.start_all();
//   StatusOr<ClusterCoordinator> coordinator = ClusterCoordinator::create(cluster.chief());
//   cluster.signal("worker", 1, SIGKILL);
//
// Running tasks are killed when it goes out of scope, or when the test's process ends.
#ifndef TESSERA_SERVERS_TESTING_TEST_CLUSTER_H_
#define TESSERA_SERVERS_TESTING_TEST_CLUSTER_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/host_array.h"
#include "base/status.h"
#include "gtest/gtest.h"
#include "job/cluster/cluster.h"
#include "job/environment/port.h"
#include "servers/cluster_coordinator.h"
#include "servers/partitioner.h"
#include "servers/remote_variable.h"

namespace tessera::distribute::testing {

class TestCluster {
 public:
  TestCluster(int num_workers, int num_ps);
  ~TestCluster();
  TestCluster(const TestCluster&) = delete;

  // Starts all workers and parameter servers.
  void start_all();
  // Starts one task. `function` is a name that only its registry has; after "data set " it is the
  // name of a data set.
  void start(const std::string& job, int task, const std::string& function = "");
  void signal(const std::string& job, int task, int signal);
  // Sends SIGKILL and waits for the end of the process.
  void kill(const std::string& job, int task);
  // Returns the last Status of the task. DeadlineExceeded if it has not ended in time, Aborted if a
  // signal has ended it.
  Status wait(const std::string& job, int task, absl::Duration timeout = absl::Seconds(30));

  cluster::Cluster chief() const { return as("chief", 0); }
  cluster::Cluster as(const std::string& job, int task) const;
  std::string address(const std::string& job, int task) const;
  // The peak memory of the task in bytes.
  int64_t peak_memory(const std::string& job, int task) const;

 private:
  struct Task {
    pid_t pid = 0;
    std::string result;  // path of a file
  };

  std::map<std::string, std::vector<std::string>> jobs_;
  std::vector<ReservedPort> ports_;
  std::map<std::pair<std::string, int>, Task> tasks_;
  int num_started_ = 0;
};

inline HostArray scalar(float value) { return HostArray::scalar(value); }
// The single f32 of a closure's first result.
StatusOr<float> result_of(const RemoteValue& value);
// The f32 elements of a variable, read by a closure.
StatusOr<std::vector<float>> value_of(ClusterCoordinator& coordinator, const RemoteVariable& v);

// The result of a closure of "read".
struct Read {
  int worker = 0;
  std::vector<std::vector<int64_t>> batches = {};

  friend bool operator==(const Read&, const Read&) = default;
};
StatusOr<Read> read_of(const RemoteValue& value);

// A running cluster, its coordinator, and v, a scalar f32 0.
class RunningCluster {
 public:
  RunningCluster(int num_workers, int num_ps, Partitioner partitioner = {},
                 const CoordinatorOptions& options = {})
      : cluster(num_workers, num_ps) {
    cluster.start_all();
    StatusOr<ClusterCoordinator> created =
        ClusterCoordinator::create(cluster.chief(), std::move(partitioner), options);
    EXPECT_TRUE(created.ok()) << created.status();
    if (!created.ok()) return;
    coordinator = std::make_unique<ClusterCoordinator>(*std::move(created));
    StatusOr<RemoteVariable> variable = coordinator->variable("v", scalar(0));
    EXPECT_TRUE(variable.ok()) << variable.status();
    if (variable.ok()) v = std::make_unique<RemoteVariable>(*std::move(variable));
  }
  bool ok() const { return v != nullptr; }

  RemoteValue add(float x) { return coordinator->schedule("add", {scalar(x), *v}); }
  RemoteValue wait(float ms) { return coordinator->schedule("wait", {scalar(ms)}); }
  RemoteValue fail(float ms) { return coordinator->schedule("fail", {scalar(ms)}); }
  StatusOr<std::vector<float>> value() { return value_of(*coordinator, *v); }

  TestCluster cluster;
  std::unique_ptr<ClusterCoordinator> coordinator;
  std::unique_ptr<RemoteVariable> v;
};

}  // namespace tessera::distribute::testing

#endif  // TESSERA_SERVERS_TESTING_TEST_CLUSTER_H_
