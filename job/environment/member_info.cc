// SPDX-License-Identifier: Apache-2.0
#include "job/environment/member_info.h"

#include "absl/strings/str_cat.h"

namespace tessera {

std::string MemberInfo::to_string() const {
  return absl::StrCat("client ", client_id, " (", host, ", pid ", pid, ")");
}

}  // namespace tessera
