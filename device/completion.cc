// SPDX-License-Identifier: Apache-2.0
#include "device/completion.h"

#include <utility>

#include "base/futex.h"
#include "base/wait_policy.h"

namespace tessera {

static_assert(sizeof(Completion) == 16);

void Completion::set(Status status) {
  uint32_t untouched = 0;
  if (status.ok() &&
      state_.compare_exchange_strong(untouched, kClaimed | kDone, std::memory_order_acq_rel)) {
    return;
  }
  if ((state_.fetch_or(kClaimed, std::memory_order_acq_rel) & kClaimed) != 0) {
    wait().IgnoreError();
    return;
  }
  status_ = std::move(status);
  const uint32_t before = state_.fetch_or(kDone, std::memory_order_acq_rel);
  // From here on the object may be gone.
  if ((before & kSleepers) != 0) futex_wake_all(&state_, FutexScope::kProcess);
}

Status Completion::status() const { return done() ? status_ : absl::OkStatus(); }

Status Completion::wait() const {
  if (!wait_briefly(kHandover, [this] { return done(); })) park_until(absl::InfiniteFuture());
  return status_;
}

bool Completion::wait_until(absl::Time deadline) const {
  if (done()) return true;
  if (deadline != absl::InfiniteFuture()) return park_until(deadline);
  wait().IgnoreError();
  return true;
}

bool Completion::park_until(absl::Time deadline) const {
  while (!done()) {
    const uint32_t state = state_.fetch_or(kSleepers, std::memory_order_acq_rel) | kSleepers;
    if ((state & kDone) != 0) break;
    if (!futex_wait(state_, state, deadline, FutexScope::kProcess)) return false;
  }
  return true;
}

}  // namespace tessera
