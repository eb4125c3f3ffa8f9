// SPDX-License-Identifier: Apache-2.0
#include "collectives/platform/gpu_claims.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "job/environment/host.h"

namespace tessera {
namespace {

std::string key_of(int client) { return absl::StrCat("GPUs of client ", client); }

}  // namespace

Status claim_gpus(Coordinator& coordinator, const std::vector<std::string>& bus_ids,
                  absl::Time deadline) {
  const MemberInfo& self = coordinator.members()[coordinator.client_id()];
  TESSERA_RETURN_IF_ERROR(coordinator.put(key_of(self.client_id), absl::StrJoin(bus_ids, ",")));
  std::map<std::string, const MemberInfo*> users;
  Status result;
  for (const MemberInfo& member : coordinator.members()) {
    if (!are_on_one_host(member, self)) continue;
    // Continues after the first error: a client that has left is not asked again.
    TESSERA_ASSIGN_OR_RETURN(const std::string claimed,
                             coordinator.get(key_of(member.client_id), member.client_id, deadline));
    for (const absl::string_view id : absl::StrSplit(claimed, ',', absl::SkipEmpty())) {
      const auto [user, is_first] = users.emplace(std::string(id), &member);
      if (is_first) continue;
      result.Update(absl::FailedPreconditionError(absl::StrCat(
          user->second->to_string(), " and ", member.to_string(), " both use GPU ", id,
          "; give each client GPUs of its own (num_local_devices, CUDA_VISIBLE_DEVICES), or, for "
          "tests, set TESSERA_SHARE_GPUS=1 on all clients")));
    }
  }
  return result;
}

}  // namespace tessera
