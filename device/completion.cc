// SPDX-License-Identifier: Apache-2.0
#include "device/completion.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <utility>

#include "base/clock.h"

namespace tessera {

namespace {

// A thread that sleeps takes longer to come back than most operations take.
constexpr int kYields = 20;

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the kernel looks at the word");
static_assert(sizeof(Completion) == 16);

}  // namespace

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
  // From here on the object may be gone. The kernel finds the sleepers by the address alone.
  if ((before & kSleepers) != 0) {
    syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
}

Status Completion::status() const { return done() ? status_ : absl::OkStatus(); }

Status Completion::wait() const {
  for (int i = 0; i < kYields && !done(); ++i) sched_yield();
  park_until(absl::InfiniteFuture());
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
    timespec left;
    timespec* timeout = nullptr;
    if (deadline != absl::InfiniteFuture()) {
      const absl::Duration remaining = deadline - steady_now();
      if (remaining <= absl::ZeroDuration()) return false;
      left = absl::ToTimespec(remaining);
      timeout = &left;
    }
    // The kernel puts no thread to sleep whose word has changed: if set() ran meanwhile, wait
    // returns.
    const uint32_t state = state_.fetch_or(kSleepers, std::memory_order_acq_rel) | kSleepers;
    if ((state & kDone) != 0) break;
    syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, state, timeout, nullptr, 0);
  }
  return true;
}

}  // namespace tessera
