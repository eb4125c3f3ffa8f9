// SPDX-License-Identifier: Apache-2.0
//
// ClusterSpec and Cluster: the tasks of a job with their addresses, and one task's view of them.
// Values. The functions of cluster.h make and use them.
#ifndef TESSERA_JOB_CLUSTER_CLUSTER_SPEC_H_
#define TESSERA_JOB_CLUSTER_CLUSTER_SPEC_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/public.h"
#include "base/status.h"

namespace TESSERA_PUBLIC tessera {
namespace cluster {

// TF: tf.train.ClusterSpec.
struct ClusterSpec {
  // job -> task -> "host:port". Tasks of a job may be missing; a Tessera job needs all of them.
  std::map<std::string, std::map<int, std::string>> jobs = {};

  // Tasks 0, 1, ... of each job. InvalidArgument for a job that is unknown or has no tasks, a
  // second chief or evaluator, a text that is no HOST:PORT, and an address of two tasks. Port 0 is
  // a port that is not known yet.
  static StatusOr<ClusterSpec> create(std::map<std::string, std::vector<std::string>> jobs);

  int num_tasks(absl::string_view job) const;  // 0 for a job that is not there
  // NotFound for a job, OutOfRange for a task that is not there.
  StatusOr<std::string> task_address(absl::string_view job, int task) const;
  // "{ps: [p:1], worker: [a:1, b:1]}"; "{worker: {0: a:1, 3: d:3}}" where tasks are missing.
  std::string to_string() const;
};

// A cluster from the view of one of its tasks.
struct Cluster {
  // Empty, as task_type and task_id are, where the launcher gives no addresses of all tasks.
  ClusterSpec spec = {};
  std::string task_type = {};
  std::optional<int> task_id = {};
  int client_id = 0;
  int num_clients = 1;
  std::string coordinator = {};  // "host:port"; may be empty for a job of one client
  // The rank of this process on its host, and the number of processes there, where the launcher
  // says so.
  std::optional<int> local_rank = {}, local_size = {};
  std::string source = {};  // "TF_CONFIG", "Slurm", ..., for messages
};

}  // namespace cluster
}  // namespace tessera

#endif  // TESSERA_JOB_CLUSTER_CLUSTER_SPEC_H_
