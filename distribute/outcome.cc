// SPDX-License-Identifier: Apache-2.0
#include "distribute/outcome.h"

#include <string>

namespace tessera::distribute::internal {

void set_outcome(rpc::Outcome* outcome, const Status& status) {
  outcome->set_code(static_cast<int>(status.code()));
  outcome->set_message(std::string(status.message()));
}

Status status_of(const rpc::Outcome& outcome) {
  return Status(static_cast<absl::StatusCode>(outcome.code()), outcome.message());
}

}  // namespace tessera::distribute::internal
