// SPDX-License-Identifier: Apache-2.0
#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

#include "absl/container/inlined_vector.h"
#include "base/clock.h"

namespace tessera {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the kernel reads the word");
static_assert(kMostFutexWords == FUTEX_WAITV_MAX);

int operation(int op, FutexScope scope) {
  return scope == FutexScope::kProcess ? op | FUTEX_PRIVATE_FLAG : op;
}

}  // namespace

bool futex_wait(const std::atomic<uint32_t>& word, uint32_t value, absl::Time deadline,
                FutexScope scope) {
  timespec left;
  timespec* timeout = nullptr;
  if (deadline != absl::InfiniteFuture()) {
    const absl::Duration remaining = deadline - steady_now();
    if (remaining <= absl::ZeroDuration()) return false;
    left = absl::ToTimespec(remaining);
    timeout = &left;
  }
  syscall(SYS_futex, &word, operation(FUTEX_WAIT, scope), value, timeout, nullptr, 0);
  return true;
}

void futex_wake_all(const std::atomic<uint32_t>* word, FutexScope scope) {
  syscall(SYS_futex, word, operation(FUTEX_WAKE, scope), INT_MAX, nullptr, nullptr, 0);
}

bool futex_wait_any(absl::Span<const FutexWord> words) {
  absl::InlinedVector<futex_waitv, 16> waits;
  for (const FutexWord& word : words) {
    waits.push_back({word.value, reinterpret_cast<uint64_t>(word.word), FUTEX_32, 0});
  }
  const long woken = syscall(SYS_futex_waitv, waits.data(), waits.size(), 0, nullptr, 0);
  return woken >= 0 || errno == EAGAIN || errno == EINTR;
}

}  // namespace tessera
