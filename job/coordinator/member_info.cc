// SPDX-License-Identifier: Apache-2.0
//
// How a client is named in messages, and its loss.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "job/coordinator/coordinator.h"

namespace tessera {

std::string MemberInfo::to_string() const {
  return absl::StrCat("client ", client_id, " (", host, ", pid ", pid, ")");
}

Status loss_without_shutdown(absl::string_view client) {
  return absl::UnavailableError(absl::StrCat(
      client, " is lost: its process has ended without shutdown, or its connections broke off"));
}

}  // namespace tessera
