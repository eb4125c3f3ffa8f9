// SPDX-License-Identifier: Apache-2.0
//
// Clusters: the tasks of a job, their places, and the task of this process, from the variables of
// launchers and the answers of cluster managers.
//
//   StatusOr<cluster::Cluster> cluster = cluster::slurm(lookup);
//   StatusOr<ClientOptions> options = cluster::client_options(*cluster);
//   StatusOr<Client> client = Client::connect(*options);
//
// A task is one process: a job ("chief", "worker", "ps" or "evaluator") and an index in it. Chief,
// workers and ps, in this order and by index, are clients 0, 1, ... of one Tessera job, and the
// coordinator is at the address of client 0. An evaluator is a job of one client.
//
// The resolvers are functions of their arguments: they read no variable but by the lookup, no file
// and no network. Any thread may call them. GPUs are not looked at, and no variable is set.
// docs/launching.md lists the environments that Client::connect() reads by itself, and
// tests/facts/cluster.md cases with known results.
//
// TESSERA_COORDINATOR, host:port of client 0, takes precedence over the address that slurm(),
// torchrun() and open_mpi() find, and is the only address that hydra() and pmix() have.
// InvalidArgument names the variable, its value and the permitted values. FailedPrecondition: this
// process was not started by that launcher.
//
// TF: tf.distribute.cluster_resolver.
#ifndef TESSERA_JOB_CLUSTER_CLUSTER_H_
#define TESSERA_JOB_CLUSTER_CLUSTER_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "job/cluster/cluster_spec.h"
#include "job/environment/environment_lookup.h"

namespace TESSERA_PUBLIC tessera {

struct ClientOptions;  // dtensor/client_options.h

namespace cluster {

// The cluster of `spec`, as the program gives it. InvalidArgument for a task that is not in it.
StatusOr<Cluster> simple(ClusterSpec spec, std::string task_type, int task_id);

// All tasks of `clusters`, from the view of the task of the first. If a job misses no task in any
// of the clusters, its tasks follow each other; otherwise tasks keep their numbers, and a task with
// two addresses is InvalidArgument. The union of one cluster is that cluster. TF: UnionResolver.
StatusOr<Cluster> union_of(absl::Span<const Cluster> clusters);

// $TF_CONFIG; where it is unset or has no cluster, a job of one client. An evaluator need not be in
// the cluster. TF: TFConfigClusterResolver.
StatusOr<Cluster> tf_config(const EnvironmentLookup& lookup);

struct SlurmOptions {
  // Tasks of each job, all of the step; ranks are dealt in the order chief, worker, ps, evaluator.
  // Empty: all are workers.
  std::map<std::string, int> jobs = {};
  // Task k of a node has port_base + k. Unset: 61440 + (job + 257 * step + k) mod 4096.
  std::optional<int> port_base = {};
};

// The step of srun to which this process belongs as a task; the coordinator is on its first node. A
// process outside of a step, such as a batch script, is refused. The distributions block, cyclic
// and plane are supported; arbitrary needs TESSERA_COORDINATOR, and gives no spec.
// TF: SlurmClusterResolver, which sorts nodes by name and sets CUDA_VISIBLE_DEVICES.
StatusOr<Cluster> slurm(const EnvironmentLookup& lookup, const SlurmOptions& options = {});

struct KubernetesPod {
  std::string name, phase, pod_ip;
};
// Returns the pods of a label selector, in any order: the program asks the API server.
using PodLister =
    std::function<StatusOr<std::vector<KubernetesPod>>(absl::string_view label_selector)>;

// The tasks of a job are the pods of its selectors, in the order of the selectors, then by name
// (w-9 before w-10), each at `port` of its pod. NotFound for a selector without pods; Unavailable,
// for a later try, for a pod that is not Running or has no address; an error of the lister is
// returned with the selector. TF: KubernetesClusterResolver, which uses addresses of hosts.
StatusOr<Cluster> kubernetes(std::map<std::string, std::vector<std::string>> job_to_selectors,
                             const PodLister& list, int port, std::string task_type, int task_id);

// The resolvers below do not know the addresses of all tasks: `spec` is empty.
//
// MASTER_ADDR and MASTER_PORT; the next port where the agent of torchrun listens at that one.
StatusOr<Cluster> torchrun(const EnvironmentLookup& lookup);
// On one host 127.0.0.1 and a port made from PMIX_NAMESPACE; on several TESSERA_COORDINATOR.
StatusOr<Cluster> open_mpi(const EnvironmentLookup& lookup);
// mpiexec of MPICH and of Intel MPI; needs TESSERA_COORDINATOR.
StatusOr<Cluster> hydra(const EnvironmentLookup& lookup);
// Any launcher with PMIx; needs TESSERA_NUM_CLIENTS and TESSERA_COORDINATOR.
StatusOr<Cluster> pmix(const EnvironmentLookup& lookup);

// Names of nodes as Slurm writes and orders them: "n[01-03,7],login" -> n01, n02, n03, n7, login.
// With several ranges in one name the last runs fastest, and of the others the first. At most
// 65,536 nodes. Blanks are refused. `scontrol show hostnames` does the same.
StatusOr<std::vector<std::string>> expand_node_list(absl::string_view text);
// "3(x2),1" -> 3, 3, 1.
StatusOr<std::vector<int>> expand_tasks_per_node(absl::string_view text);

// Coordinator, id and number for Client::connect(); all other options are the defaults. A job of
// one client has no coordinator. FailedPrecondition for a ps, which is a Server and no client;
// InvalidArgument where tasks are missing, or client 0 has no address. The target //dtensor has it.
StatusOr<ClientOptions> client_options(const Cluster& cluster);

}  // namespace cluster
}  // namespace tessera

#endif  // TESSERA_JOB_CLUSTER_CLUSTER_H_
