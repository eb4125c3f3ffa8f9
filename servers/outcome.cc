// SPDX-License-Identifier: Apache-2.0
#include "servers/outcome.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace tessera::distribute::internal {

void set_outcome(rpc::Outcome* outcome, const Status& status) {
  outcome->set_code(static_cast<int>(status.code()));
  outcome->set_message(std::string(status.message()));
}

Status status_of(const rpc::Outcome& outcome) {
  if (!outcome.has_code()) {
    return absl::InternalError(absl::StrCat("an answer without an outcome; ", kSameBuild));
  }
  if (outcome.code() < 0 || outcome.code() > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::InternalError(absl::StrCat("an answer with the code ", outcome.code(),
                                            ", which is not a code of a Status; ", kSameBuild));
  }
  return Status(static_cast<absl::StatusCode>(outcome.code()), outcome.message());
}

}  // namespace tessera::distribute::internal
