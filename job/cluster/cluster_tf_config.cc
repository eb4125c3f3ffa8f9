// SPDX-License-Identifier: Apache-2.0
//
// cluster::tf_config: the cluster of TensorFlow's variable.
#include <string>
#include <utility>

#include "job/cluster/cluster.h"
#include "job/cluster/cluster_tasks.h"
#include "job/cluster/tf_config_json.h"

namespace tessera::cluster {
namespace {

constexpr char kTfConfig[] = "TF_CONFIG";

StatusOr<Cluster> read_tf_config(const char* text) {
  TESSERA_ASSIGN_OR_RETURN(TfConfig config, parse_tf_config(text));
  if (config.jobs.empty()) return Cluster{.source = kTfConfig};
  ClusterSpec spec = {.jobs = std::move(config.jobs)};
  TESSERA_RETURN_IF_ERROR(check_spec(spec, /*least_port=*/1));
  TESSERA_RETURN_IF_ERROR(check_complete(spec));
  if (config.task_type == kEvaluator && spec.num_tasks(kEvaluator) == 0) {
    // TF does not list it, since it is no part of the training.
    return Cluster{.spec = std::move(spec),
                   .task_type = std::move(config.task_type),
                   .task_id = config.task_index,
                   .source = kTfConfig};
  }
  return cluster_of(std::move(spec), std::move(config.task_type), config.task_index, kTfConfig);
}

}  // namespace

StatusOr<Cluster> tf_config(const EnvironmentLookup& lookup) {
  TESSERA_RETURN_IF_ERROR(check_lookup("tf_config", lookup));
  const char* const text = lookup(kTfConfig);
  if (text == nullptr) return Cluster{.source = kTfConfig};
  StatusOr<Cluster> cluster = read_tf_config(text);
  if (!cluster.ok()) return with_context(cluster.status(), kTfConfig);
  return cluster;
}

}  // namespace tessera::cluster
