// SPDX-License-Identifier: Apache-2.0
//
// The token that a client shows to the coordinator: given by the user or the launcher, or found on
// its host.
#ifndef TESSERA_JOB_ENVIRONMENT_JOB_TOKEN_H_
#define TESSERA_JOB_ENVIRONMENT_JOB_TOKEN_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "base/status.h"
#include "job/environment/environment.h"
#include "job/environment/token_file.h"

namespace tessera {

struct JobToken {
  std::string text;  // empty for a job of one client
  // Where this client has made the token, because it hosts the coordinator: to be kept until the
  // others have connected.
  std::optional<TokenFile> file = {};
};

// The token of the job; without one, on one host, client 0 (if it hosts the coordinator) makes one
// and the others wait for it until `deadline`.
//   InvalidArgument   the clients are on several hosts; names TESSERA_TOKEN
//   others            as of token_file.h
StatusOr<JobToken> find_job_token(const JobEnvironment& job, absl::Time deadline);

}  // namespace tessera

#endif  // TESSERA_JOB_ENVIRONMENT_JOB_TOKEN_H_
