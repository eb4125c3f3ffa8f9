// SPDX-License-Identifier: Apache-2.0
//
// The token that calls of a cluster carry: $TESSERA_TOKEN, or for a cluster on one host a token
// that each server leaves in a file (job/environment/token_file.h).
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
  std::optional<TokenFile> file = {};  // the file lasts as long as this object
};

// InvalidArgument, naming TESSERA_TOKEN, if it is not set and a task is on another host.
Status check_token(const cluster::ClusterSpec& spec);
// Makes the token of the server that listens on `address`.
StatusOr<TaskToken> make_token(const std::string& address);
// Finds the token of another task's server. Waits for the server's file until `deadline`.
StatusOr<std::string> find_token(const std::string& address, absl::Time deadline);

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_TASK_TOKEN_H_
