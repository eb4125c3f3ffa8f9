// SPDX-License-Identifier: Apache-2.0
//
// Internal. The text of TF_CONFIG, read:
//
//   {"cluster": {JOB: [ADDRESS, ...]}, "task": {"type": JOB, "index": INDEX}}
//
// Other fields are ignored, as TF ignores them.
#ifndef TESSERA_JOB_CLUSTER_TF_CONFIG_JSON_H_
#define TESSERA_JOB_CLUSTER_TF_CONFIG_JSON_H_

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace tessera {

struct TfConfig {
  std::map<std::string, std::map<int, std::string>> jobs = {};  // empty: there is no cluster
  // This process's task; read only where there is a cluster.
  std::string task_type = {};
  int task_index = 0;
};

// InvalidArgument, saying where the text is wrong. Names of jobs and addresses are not checked.
StatusOr<TfConfig> parse_tf_config(absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_JOB_CLUSTER_TF_CONFIG_JSON_H_
