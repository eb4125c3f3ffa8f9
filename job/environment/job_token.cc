// SPDX-License-Identifier: Apache-2.0
#include "job/environment/job_token.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "job/environment/host.h"

namespace tessera {

StatusOr<JobToken> find_job_token(const JobEnvironment& job, absl::Time deadline) {
  if (!job.token.empty() || job.num_clients == 1) return JobToken{.text = job.token};
  if (!job.on_one_host.value_or(true) || !is_address_of_this_host(job.coordinator)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a job over several hosts needs a token, and the coordinator at ", job.coordinator,
        " is not on the host of all clients; set TESSERA_TOKEN to the same secret on all clients, "
        "or start them with tessera_run"));
  }
  if (job.client_id != 0 || job.coordinator_is_hosted) {
    TESSERA_ASSIGN_OR_RETURN(std::string token, await_token(job.coordinator, deadline));
    return JobToken{.text = std::move(token)};
  }
  JobToken token = {.text = random_token()};
  TESSERA_ASSIGN_OR_RETURN(TokenFile file, TokenFile::publish(job.coordinator, token.text));
  token.file.emplace(std::move(file));
  return token;
}

}  // namespace tessera
