// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/shared_word.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "base/clock.h"

namespace tessera::host {

#ifndef TESSERA_STEPS

bool sleep_while(SharedWord<uint32_t>& word, uint32_t value, absl::Time deadline) {
  timespec left;
  timespec* timeout = nullptr;
  if (deadline != absl::InfiniteFuture()) {
    const absl::Duration remaining = deadline - steady_now();
    if (remaining <= absl::ZeroDuration()) return false;
    left = absl::ToTimespec(remaining);
    timeout = &left;
  }
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, timeout, nullptr, 0);
  return true;
}

void wake_all(SharedWord<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

#endif

}  // namespace tessera::host
