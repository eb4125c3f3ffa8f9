// SPDX-License-Identifier: Apache-2.0
//
// How a client is named in messages.
#include <string>

#include "absl/strings/str_cat.h"
#include "job/coordinator.h"

namespace tessera {

std::string MemberInfo::to_string() const {
  return absl::StrCat("client ", client_id, " (", host, ", pid ", pid, ")");
}

}  // namespace tessera
