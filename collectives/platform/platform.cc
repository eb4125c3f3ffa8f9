// SPDX-License-Identifier: Apache-2.0
#include "collectives/platform/platform.h"

#include "absl/strings/str_cat.h"

namespace tessera {

const char* device_type_name(DeviceType type) { return type == DeviceType::kCuda ? "cuda" : "cpu"; }

Status check_device_types(absl::Span<const MemberInfo> members) {
  for (const MemberInfo& member : members) {
    if (member.device_type == members[0].device_type) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("device_type differs between clients: client ", members[0].client_id, " has ",
                     members[0].device_type, ", client ", member.client_id, " has ",
                     member.device_type, "; give all clients of a job the same"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
