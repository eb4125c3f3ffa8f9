// SPDX-License-Identifier: Apache-2.0
#include "dtensor/turns.h"

#include "absl/strings/str_cat.h"

namespace tessera {

StatusOr<Turn> Turns::take() {
  Turn turn(mutex_);
  // Under the lock: close() waits for the operation that has begun, and none begins after that.
  TESSERA_RETURN_IF_ERROR(check_open());
  return turn;
}

Status Turns::check_open() const {
  TESSERA_RETURN_IF_ERROR(devices_.check_process());
  if (open_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("client ", client_id_, " has shut down; connect a new client first"));
}

bool Turns::close() {
  // The thread that starts an operation has a turn: its operation reaches all of its devices first.
  const std::lock_guard<std::mutex> turn(mutex_);
  return open_.exchange(false);
}

}  // namespace tessera
