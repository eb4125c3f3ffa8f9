// SPDX-License-Identifier: Apache-2.0
#include "shm/shared_word.h"

#include "base/futex.h"

namespace tessera::shm {

#ifndef TESSERA_STEPS

bool sleep_while(SharedWord<uint32_t>& word, uint32_t value, absl::Time deadline) {
  return futex_wait(word, value, deadline, FutexScope::kShared);
}

void wake_all(SharedWord<uint32_t>& word) { futex_wake_all(&word, FutexScope::kShared); }

#endif

}  // namespace tessera::shm
