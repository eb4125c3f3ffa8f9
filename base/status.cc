// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include "absl/strings/str_cat.h"

namespace tessera {

Status with_context(const Status& status, absl::string_view context) {
  if (status.ok()) return status;
  if (status.message().empty()) return Status(status.code(), context);
  return Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

Status internal::empty_handle(absl::string_view call, absl::string_view type) {
  return absl::FailedPreconditionError(
      absl::StrCat(call, " of an empty ", type, "; assign a value to the ", type, " first"));
}

}  // namespace tessera
