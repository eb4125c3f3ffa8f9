// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/coordinator.h"

#include "absl/strings/str_cat.h"

namespace tessera {

Status loss_without_shutdown(absl::string_view client) {
  return absl::UnavailableError(absl::StrCat(
      client, " is lost: its process has ended without shutdown, or its connections broke off"));
}

}  // namespace tessera
