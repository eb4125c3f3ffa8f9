// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/mover.h"

#include <algorithm>

#include "base/clock.h"

namespace tessera::host {

Status Mover::wait_for_device(const Collective& collective, int member, absl::Time deadline,
                              absl::FunctionRef<bool()> is_over) {
  constexpr absl::Duration kCheckInterval = absl::Milliseconds(5);
  if (device_ == nullptr || is_on_device(collective)) return absl::OkStatus();
  Status status;
  do {
    status = device_->wait_done(member, std::min(deadline, steady_now() + kCheckInterval));
  } while (absl::IsDeadlineExceeded(status) && steady_now() < deadline && !is_over());
  return status;
}

}  // namespace tessera::host
