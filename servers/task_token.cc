// SPDX-License-Identifier: Apache-2.0
#include "servers/task_token.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "job/environment/host.h"

namespace tessera::distribute::internal {
namespace {

std::string given_token() {
  const char* const token = std::getenv("TESSERA_TOKEN");
  return token == nullptr ? std::string() : std::string(token);
}

}  // namespace

Status check_token(const cluster::ClusterSpec& spec) {
  if (!given_token().empty()) return absl::OkStatus();
  for (const auto& [job, tasks] : spec.jobs) {
    for (const auto& [task, address] : tasks) {
      if (is_address_of_this_host(address)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          job, " ", task, " is at ", address, ", on another host, and TESSERA_TOKEN is not set; ",
          "set it to the same secret on all tasks of the cluster"));
    }
  }
  return absl::OkStatus();
}

StatusOr<TaskToken> make_token(const std::string& address) {
  TaskToken token = {.text = given_token()};
  if (!token.text.empty()) return token;
  token.text = random_token();
  TESSERA_ASSIGN_OR_RETURN(TokenFile file, TokenFile::publish(address, token.text));
  token.file.emplace(std::move(file));
  return token;
}

StatusOr<std::string> find_token(const std::string& address, absl::Time deadline) {
  std::string token = given_token();
  if (!token.empty()) return token;
  return await_token(address, deadline, "it");
}

}  // namespace tessera::distribute::internal
