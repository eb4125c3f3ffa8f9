// SPDX-License-Identifier: Apache-2.0
//
// cluster::slurm: where srun has put the tasks of a step, by its variables alone.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "job/cluster/cluster.h"
#include "job/cluster/cluster_launchers.h"
#include "job/cluster/cluster_tasks.h"
#include "job/environment/address.h"
#include "job/environment/launch_form.h"

namespace tessera::cluster {
namespace {

constexpr char kNodes[] = "SLURM_STEP_NODELIST";
constexpr char kCounts[] = "SLURM_STEP_TASKS_PER_NODE";
constexpr char kDistribution[] = "SLURM_DISTRIBUTION";
constexpr char kPlaneSize[] = "SLURM_DIST_PLANESIZE";

Status refuse(absl::string_view what) { return absl::InvalidArgumentError(what); }

StatusOr<const char*> required(const EnvironmentLookup& lookup, const char* name,
                               absl::string_view what) {
  const char* const text = lookup(name);
  if (text != nullptr) return text;
  return refuse(absl::StrCat(name, " is not set; srun sets it to ", what));
}

// The nodes of a step and how many tasks each has.
struct Nodes {
  std::vector<std::string> names;
  std::vector<int> counts;
};

StatusOr<Nodes> read_nodes(const EnvironmentLookup& lookup, int num_tasks) {
  TESSERA_ASSIGN_OR_RETURN(const char* const list, required(lookup, kNodes, "the nodes"));
  StatusOr<std::vector<std::string>> names = expand_node_list(list);
  if (!names.ok()) return with_context(names.status(), kNodes);
  TESSERA_ASSIGN_OR_RETURN(const char* const tasks,
                           required(lookup, kCounts, "the tasks of each node"));
  StatusOr<std::vector<int>> counts = expand_tasks_per_node(tasks);
  if (!counts.ok()) return with_context(counts.status(), kCounts);
  if (names->size() != counts->size()) {
    return refuse(absl::StrCat(kNodes, " ", in_quotes(list), " has ", names->size(), " nodes, ",
                               kCounts, " ", in_quotes(tasks), " has ", counts->size(),
                               " counts; srun sets both for one step"));
  }
  std::set<absl::string_view> known;
  for (const std::string& name : *names) {
    if (known.insert(name).second) continue;
    return refuse(absl::StrCat(kNodes, " ", in_quotes(list), " names node ", in_quotes(name),
                               " twice; srun names each node of a step once"));
  }
  const int64_t places = std::accumulate(counts->begin(), counts->end(), int64_t{0});
  if (places != num_tasks) {
    return refuse(absl::StrCat("SLURM_STEP_NUM_TASKS is ", num_tasks, ", but ", kCounts, " ",
                               in_quotes(tasks), " has places for ", places, " tasks"));
  }
  return Nodes{*std::move(names), *std::move(counts)};
}

// How many tasks in a row a node gets before the next node does: 1 if cyclic, all if by blocks.
// None where the tasks are dealt by a file.
StatusOr<std::optional<int>> read_plane_size(const EnvironmentLookup& lookup) {
  const char* const text = lookup(kDistribution);
  if (text == nullptr) return std::numeric_limits<int>::max();
  // The rest is about the sockets and cores of a node.
  const absl::string_view whole = text;
  const absl::string_view kind = whole.substr(0, whole.find_first_of(":,"));
  if (kind.empty() || kind == "*" || kind == "block" || kind == "unknown") {
    return std::numeric_limits<int>::max();
  }
  if (kind == "cyclic") return 1;
  if (kind == "arbitrary") return std::nullopt;
  if (kind != "plane") {
    return refuse(absl::StrCat(kDistribution, " is ", in_quotes(text),
                               "; it must be block, cyclic, plane or arbitrary"));
  }
  TESSERA_ASSIGN_OR_RETURN(const char* const size,
                           required(lookup, kPlaneSize, "the size of the plane"));
  return read_number(kPlaneSize, size, 1, kMostClients);
}

// Where a task is: its node, and its number there.
struct Place {
  size_t node;
  int slot;
};

// Deals the tasks in rounds: each node that has places left gets up to `plane_size` of them.
std::vector<Place> deal(const std::vector<int>& counts, int plane_size) {
  std::vector<Place> places;
  std::vector<Place> open;  // the next place of each node that has one
  for (size_t node = 0; node < counts.size(); ++node) open.push_back({node, 0});
  while (!open.empty()) {
    std::vector<Place> still_open;
    for (Place next : open) {
      for (int i = 0; i < plane_size && next.slot < counts[next.node]; ++i) {
        places.push_back(next);
        ++next.slot;
      }
      if (next.slot < counts[next.node]) still_open.push_back(next);
    }
    open.swap(still_open);
  }
  return places;
}

StatusOr<uint64_t> read_id(const EnvironmentLookup& lookup, const char* name) {
  const char* const text = lookup(name);
  uint64_t id;
  if (text != nullptr && absl::SimpleAtoi(text, &id)) return id;
  return refuse(absl::StrCat(name, " is ", text == nullptr ? "not set" : in_quotes(text),
                             "; it must be a whole number, from which the ports are made; set it, "
                             "or SlurmOptions::port_base"));
}

// The ports of tasks 0, 1, ... of every node.
class Ports {
 public:
  static StatusOr<Ports> create(const EnvironmentLookup& lookup, std::optional<int> base) {
    if (base.has_value()) {
      if (*base >= 1 && *base <= 65535) return Ports(base, 0);
      return refuse(absl::StrCat("port_base is ", *base, "; it must be from 1 to 65535"));
    }
    TESSERA_ASSIGN_OR_RETURN(const uint64_t job_id, read_id(lookup, "SLURM_JOB_ID"));
    TESSERA_ASSIGN_OR_RETURN(const uint64_t step_id, read_id(lookup, "SLURM_STEP_ID"));
    return Ports(std::nullopt, slurm_launch_number(job_id, step_id) % kNumPorts);
  }

  StatusOr<int> of(int slot) const {
    if (!base_.has_value()) {
      return static_cast<int>(kFirstPort + (first_ + static_cast<uint64_t>(slot)) % kNumPorts);
    }
    if (slot <= 65535 - *base_) return *base_ + slot;
    return refuse(absl::StrCat("port_base is ", *base_, ", so that task ", slot,
                               " of a node has port ", *base_ + slot,
                               "; the greatest port is 65535, give a lower base"));
  }

 private:
  Ports(std::optional<int> base, uint64_t first) : base_(base), first_(first) {}

  std::optional<int> base_;
  uint64_t first_;
};

// Which task of which job a rank is.
struct Task {
  std::string job;
  int index;
};

StatusOr<std::vector<Task>> name_tasks(std::map<std::string, int> jobs, int num_tasks) {
  if (jobs.empty()) jobs["worker"] = num_tasks;
  int64_t sum = 0;
  for (const auto& [job, count] : jobs) {
    if (count < 1) {
      return refuse(absl::StrCat("jobs gives ", count, " tasks to ", in_quotes(job),
                                 "; give it 1 or more, or leave it out"));
    }
    sum += count;
  }
  std::vector<Task> tasks;
  for (const char* const job : kJobs) {
    const auto it = jobs.find(job);
    if (it == jobs.end() || sum > num_tasks) continue;
    for (int i = 0; i < it->second; ++i) tasks.push_back({job, i});
    jobs.erase(it);
  }
  if (sum != num_tasks) {
    return refuse(absl::StrCat("the tasks of jobs are ", sum,
                               " in all, those of the step of srun are ", num_tasks,
                               "; give every task a job"));
  }
  if (jobs.empty()) return tasks;
  return refuse(
      absl::StrCat("jobs names ", in_quotes(jobs.begin()->first), "; jobs are ", known_jobs()));
}

}  // namespace

StatusOr<Cluster> slurm(const EnvironmentLookup& lookup, const SlurmOptions& options) {
  TESSERA_RETURN_IF_ERROR(check_lookup("slurm", lookup));
  if (!any_set(lookup, kSlurmStepForm.marks) && any_set(lookup, kSlurmForm.marks)) {
    return refuse(
        "SLURM_STEP_NUM_TASKS is not set: this process is not in a step of Slurm, as a batch "
        "script is not; start the program with srun");
  }
  TESSERA_ASSIGN_OR_RETURN(const Cluster step, read_launcher(kSlurmStepForm, "srun", lookup));
  TESSERA_ASSIGN_OR_RETURN(const Nodes nodes, read_nodes(lookup, step.num_clients));
  TESSERA_ASSIGN_OR_RETURN(const std::optional<int> plane_size, read_plane_size(lookup));
  if (!plane_size.has_value()) {
    if (!step.coordinator.empty()) return step;
    return refuse(absl::StrCat(kDistribution,
                               " is \"arbitrary\": the order of the tasks is that of "
                               "SLURM_HOSTFILE; set TESSERA_COORDINATOR to host:port of task 0"));
  }
  const std::vector<Place> places = deal(nodes.counts, *plane_size);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Task> tasks,
                           name_tasks(options.jobs, step.num_clients));
  TESSERA_ASSIGN_OR_RETURN(const Ports ports, Ports::create(lookup, options.port_base));
  ClusterSpec spec;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    TESSERA_ASSIGN_OR_RETURN(const int port, ports.of(places[rank].slot));
    spec.jobs[tasks[rank].job].emplace(tasks[rank].index,
                                       join_address(nodes.names[places[rank].node], port));
  }
  const auto in_context = [&]() -> StatusOr<Cluster> {
    TESSERA_RETURN_IF_ERROR(check_spec(spec, /*least_port=*/1));
    const Task& self = tasks[static_cast<size_t>(step.client_id)];
    return cluster_of(spec, self.job, self.index, kSlurmForm.name);
  };
  StatusOr<Cluster> cluster = in_context();
  if (!cluster.ok()) return with_context(cluster.status(), kSlurmForm.name);
  const Place& self = places[static_cast<size_t>(step.client_id)];
  cluster->local_rank = self.slot;
  cluster->local_size = nodes.counts[self.node];
  if (cluster->task_type == kEvaluator) return cluster;
  // Set also for a job of one client, which then can be joined by hand.
  cluster->coordinator = step.coordinator;
  if (step.coordinator.empty()) {
    TESSERA_ASSIGN_OR_RETURN(cluster->coordinator,
                             cluster->spec.task_address(tasks[0].job, tasks[0].index));
  }
  return cluster;
}

}  // namespace tessera::cluster
