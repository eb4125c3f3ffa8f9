// SPDX-License-Identifier: Apache-2.0
#include "job/cluster/cluster.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "job/cluster/cluster_tasks.h"
#include "job/environment/address.h"

namespace tessera::cluster {
namespace {

using Tasks = std::map<int, std::string>;

bool is_complete(const Tasks& tasks) {
  return tasks.empty() ||
         (tasks.begin()->first == 0 && tasks.rbegin()->first == static_cast<int>(tasks.size()) - 1);
}

std::string job_names(const ClusterSpec& spec) {
  std::vector<std::string> names;
  for (const auto& [job, tasks] : spec.jobs) names.push_back(job);
  return names.empty() ? "it has no jobs" : absl::StrCat("its jobs are ", quoted_list(names));
}

Status check_address(const std::string& task, const std::string& text, int least_port) {
  if (parse_address(text, least_port).has_value()) return absl::OkStatus();
  const bool is_port_0 = parse_address(text, 0).has_value();
  return absl::InvalidArgumentError(absl::StrCat(
      task, " has the address ", in_quotes(text), is_port_0 ? " with port 0" : "",
      "; it must be HOST:PORT, with a port from ", least_port, " to 65535, as in host-a:4000"));
}

Status check_job(const std::string& job, const Tasks& tasks) {
  if (std::find(std::begin(kJobs), std::end(kJobs), job) == std::end(kJobs)) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", in_quotes(job), " is unknown; jobs are ", known_jobs()));
  }
  if (tasks.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", in_quotes(job), " has no tasks; give it addresses, or leave it out"));
  }
  if (tasks.size() > 1 && (job == "chief" || job == kEvaluator)) {
    return absl::InvalidArgumentError(absl::StrCat("job ", in_quotes(job), " has ", tasks.size(),
                                                   " tasks; a cluster has at most one ", job));
  }
  return absl::OkStatus();
}

// The tasks of `job` in all of `clusters`: end to end where each has all of them, else by number.
StatusOr<Tasks> unite(absl::Span<const Cluster> clusters, const std::string& job) {
  const bool are_complete = std::all_of(clusters.begin(), clusters.end(), [&](const Cluster& c) {
    const auto it = c.spec.jobs.find(job);
    return it == c.spec.jobs.end() || is_complete(it->second);
  });
  Tasks united;
  for (const Cluster& cluster : clusters) {
    const auto it = cluster.spec.jobs.find(job);
    if (it == cluster.spec.jobs.end()) continue;
    for (const auto& [task, address] : it->second) {
      const int number = are_complete ? static_cast<int>(united.size()) : task;
      const auto [known, is_new] = united.emplace(number, address);
      if (is_new || known->second == address) continue;
      return absl::InvalidArgumentError(absl::StrCat("union_of: ", job, " ", task, " is at ",
                                                     known->second, " and at ", address,
                                                     "; give each task one address"));
    }
  }
  return united;
}

}  // namespace

std::string known_jobs() {
  return quoted_list(std::vector<std::string>(std::begin(kJobs), std::end(kJobs)));
}

Status check_spec(const ClusterSpec& spec, int least_port) {
  std::map<std::string, std::string> task_at;
  for (const auto& [job, tasks] : spec.jobs) {
    TESSERA_RETURN_IF_ERROR(check_job(job, tasks));
    for (const auto& [index, address] : tasks) {
      const std::string task = absl::StrCat(job, " ", index);
      if (index < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat(task, " has no number of a task; tasks of ", "a job are numbered from 0"));
      }
      TESSERA_RETURN_IF_ERROR(check_address(task, address, least_port));
      if (!parse_address(address, 1).has_value()) continue;
      const auto [other, is_new] = task_at.emplace(address, task);
      if (is_new) continue;
      return absl::InvalidArgumentError(absl::StrCat(other->second, " and ", task, " are both at ",
                                                     address, "; give each task an address"));
    }
  }
  return absl::OkStatus();
}

Status check_lookup(absl::string_view resolver, const EnvironmentLookup& lookup) {
  if (lookup != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      resolver, ": the lookup of variables is empty; give a function, such as std::getenv"));
}

Status check_complete(const ClusterSpec& spec) {
  for (const auto& [job, tasks] : spec.jobs) {
    int next = 0;
    for (const auto& [index, address] : tasks) {
      if (index == next++) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(job, " ", next - 1, " is missing, and ", job, " ", index,
                       " is there; a Tessera job has all tasks from 0 on"));
    }
  }
  return absl::OkStatus();
}

StatusOr<Cluster> cluster_of(ClusterSpec spec, std::string task_type, int task_id,
                             absl::string_view source) {
  const StatusOr<std::string> address = spec.task_address(task_type, task_id);
  if (!address.ok()) return absl::InvalidArgumentError(address.status().message());
  Cluster cluster;
  cluster.source = std::string(source);
  if (task_type != kEvaluator) {
    cluster.num_clients = 0;
    for (const char* job : kJobs) {
      const auto it = spec.jobs.find(job);
      if (job == std::string(kEvaluator) || it == spec.jobs.end()) continue;
      if (cluster.num_clients == 0) cluster.coordinator = it->second.begin()->second;
      if (job == task_type) {
        const auto before = std::distance(it->second.begin(), it->second.find(task_id));
        cluster.client_id = cluster.num_clients + static_cast<int>(before);
      }
      cluster.num_clients += static_cast<int>(it->second.size());
    }
    if (cluster.num_clients == 1) cluster.coordinator.clear();
  }
  cluster.spec = std::move(spec);
  cluster.task_type = std::move(task_type);
  cluster.task_id = task_id;
  return cluster;
}

StatusOr<Membership> membership_of(const Cluster& cluster) {
  if (cluster.task_type == "ps") {
    return absl::FailedPreconditionError(
        absl::StrCat("ps ", cluster.task_id.value_or(0), " of ", cluster.source,
                     " is a Server, not a client of collectives; connect from chief and workers"));
  }
  if (cluster.task_type != kEvaluator) TESSERA_RETURN_IF_ERROR(check_complete(cluster.spec));
  if (cluster.num_clients < 1 || cluster.client_id < 0 ||
      cluster.client_id >= cluster.num_clients) {
    return absl::InvalidArgumentError(absl::StrCat("client_id is ", cluster.client_id,
                                                   " and num_clients ", cluster.num_clients,
                                                   "; ids are 0 to the number of clients - 1"));
  }
  if (cluster.num_clients == 1) return Membership();
  if (!parse_address(cluster.coordinator).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the coordinator of ", cluster.num_clients, " clients is at ",
                     in_quotes(cluster.coordinator), "; it must be HOST:PORT of client 0"));
  }
  return Membership{cluster.coordinator, cluster.client_id, cluster.num_clients};
}

StatusOr<ClusterSpec> ClusterSpec::create(std::map<std::string, std::vector<std::string>> jobs) {
  ClusterSpec spec;
  for (auto& [job, addresses] : jobs) {
    Tasks& tasks = spec.jobs[job];
    for (size_t i = 0; i < addresses.size(); ++i) {
      tasks.emplace(static_cast<int>(i), std::move(addresses[i]));
    }
  }
  TESSERA_RETURN_IF_ERROR(check_spec(spec, /*least_port=*/0));
  return spec;
}

int ClusterSpec::num_tasks(absl::string_view job) const {
  const auto it = jobs.find(std::string(job));
  return it == jobs.end() ? 0 : static_cast<int>(it->second.size());
}

StatusOr<std::string> ClusterSpec::task_address(absl::string_view job, int task) const {
  const auto it = jobs.find(std::string(job));
  if (it == jobs.end() || it->second.empty()) {
    return absl::NotFoundError(
        absl::StrCat("the cluster has no tasks of job ", in_quotes(job), "; ", job_names(*this)));
  }
  const auto address = it->second.find(task);
  if (address != it->second.end()) return address->second;
  const int first = it->second.begin()->first;
  const int last = it->second.rbegin()->first;
  return absl::OutOfRangeError(
      absl::StrCat("job ", in_quotes(job), " has no task ", task, "; its tasks are ",
                   is_complete(it->second) ? "" : "some of ", first, " to ", last));
}

std::string ClusterSpec::to_string() const {
  std::vector<std::string> texts;
  for (const auto& [job, tasks] : jobs) {
    std::vector<std::string> entries;
    for (const auto& [task, address] : tasks) {
      entries.push_back(is_complete(tasks) ? address : absl::StrCat(task, ": ", address));
    }
    const std::string list = absl::StrJoin(entries, ", ");
    texts.push_back(is_complete(tasks) ? absl::StrCat(job, ": [", list, "]")
                                       : absl::StrCat(job, ": {", list, "}"));
  }
  return absl::StrCat("{", absl::StrJoin(texts, ", "), "}");
}

StatusOr<Cluster> simple(ClusterSpec spec, std::string task_type, int task_id) {
  TESSERA_RETURN_IF_ERROR(check_spec(spec, /*least_port=*/0));
  return cluster_of(std::move(spec), std::move(task_type), task_id, "simple");
}

StatusOr<Cluster> union_of(absl::Span<const Cluster> clusters) {
  if (clusters.empty()) {
    return absl::InvalidArgumentError("union_of: no cluster is given; give one or more");
  }
  const Cluster& first = clusters[0];
  if (clusters.size() == 1) return first;
  if (!first.task_id.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("union_of: the first cluster, of ", in_quotes(first.source),
                     ", has no task; begin with one that says which task this process is"));
  }
  ClusterSpec spec;
  for (const Cluster& cluster : clusters) {
    for (const auto& [job, tasks] : cluster.spec.jobs) {
      if (spec.jobs.count(job) > 0) continue;
      TESSERA_ASSIGN_OR_RETURN(spec.jobs[job], unite(clusters, job));
    }
  }
  const auto unite_with_context = [&]() -> StatusOr<Cluster> {
    TESSERA_RETURN_IF_ERROR(check_spec(spec, /*least_port=*/0));
    return cluster_of(spec, first.task_type, *first.task_id, "union");
  };
  StatusOr<Cluster> united = unite_with_context();
  if (!united.ok()) return with_context(united.status(), "union_of");
  united->local_rank = first.local_rank;
  united->local_size = first.local_size;
  // An address that is not a task's was given by TESSERA_COORDINATOR.
  const StatusOr<Cluster> alone = cluster_of(first.spec, first.task_type, *first.task_id, "");
  const bool is_given = alone.ok() && alone->num_clients > 1 &&
                        alone->coordinator != first.coordinator && !first.coordinator.empty();
  if (is_given) united->coordinator = first.coordinator;
  return united;
}

}  // namespace tessera::cluster
