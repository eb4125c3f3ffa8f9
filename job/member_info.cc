// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "job/coordinator.h"

namespace tessera {

std::string MemberInfo::to_string() const {
  return absl::StrCat("client ", client_id, " (", host, ", pid ", pid, ")");
}

}  // namespace tessera
