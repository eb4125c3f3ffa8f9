// SPDX-License-Identifier: Apache-2.0
//
// The token that calls of a cluster carry: $TESSERA_TOKEN, or a token that each server of a cluster
// on one host leaves in a file (job/environment/token_file.h).
#ifndef TESSERA_SERVERS_TASK_TOKEN_H_
#define TESSERA_SERVERS_TASK_TOKEN_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "base/status.h"
#include "job/cluster/cluster.h"
#include "job/environment/token_file.h"

namespace tessera::distribute::internal {

struct TaskToken {
  std::string text = {};
  std::optional<TokenFile> file = {};  // to be kept while the server serves
};

// InvalidArgument, naming TESSERA_TOKEN, where it is not set and a task is on another host.
Status check_token(const cluster::ClusterSpec& spec);
// Makes the token of the server that listens at `address`.
StatusOr<TaskToken> make_token(const std::string& address);
// The server's token, found by another task of the cluster; waits for the server's file until
// `deadline`.
StatusOr<std::string> find_token(const std::string& address, absl::Time deadline);

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_TASK_TOKEN_H_
