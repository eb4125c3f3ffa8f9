// SPDX-License-Identifier: Apache-2.0
//
// Internal. Shared by the resolvers of cluster.h: the rules for tasks and their addresses.
#ifndef TESSERA_JOB_CLUSTER_CLUSTER_TASKS_H_
#define TESSERA_JOB_CLUSTER_CLUSTER_TASKS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "job/cluster/cluster_spec.h"
#include "job/environment/environment_lookup.h"

namespace tessera::cluster {

// The jobs in the order of their clients; the evaluator, which is a job of its own, is last.
inline constexpr const char* kJobs[] = {"chief", "worker", "ps", "evaluator"};
inline constexpr char kEvaluator[] = "evaluator";
// For messages: "\"chief\", \"worker\", ...".
std::string known_jobs();

// The errors of ClusterSpec::create(). `least_port` is 0 or 1.
Status check_spec(const ClusterSpec& spec, int least_port);

// InvalidArgument for an empty function passed to `resolver`.
Status check_lookup(absl::string_view resolver, const EnvironmentLookup& lookup);

// InvalidArgument naming the first task that is missing in `spec`.
Status check_complete(const ClusterSpec& spec);

// The cluster from the view of this task. InvalidArgument for a task that is not in `spec`.
StatusOr<Cluster> cluster_of(ClusterSpec spec, std::string task_type, int task_id,
                             absl::string_view source);

// The facts that Client::connect() takes from a cluster.
struct Membership {
  std::string coordinator = {};
  int client_id = 0;
  int num_clients = 1;
};

// The errors of client_options().
StatusOr<Membership> membership_of(const Cluster& cluster);

}  // namespace tessera::cluster

#endif  // TESSERA_JOB_CLUSTER_CLUSTER_TASKS_H_
