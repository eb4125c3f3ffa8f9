// SPDX-License-Identifier: Apache-2.0
#include "tests/support/locks.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>

namespace {

std::atomic<int64_t> count{0};

}  // namespace

// Instead of the C library's, which it calls.
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) {
  using Lock = int (*)(pthread_mutex_t*);
  // Not in a static of the function, which may take a lock to be made.
  static std::atomic<Lock> next{nullptr};
  Lock lock = next.load(std::memory_order_relaxed);
  if (lock == nullptr) {
    lock = reinterpret_cast<Lock>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    next.store(lock, std::memory_order_relaxed);
  }
  count.fetch_add(1, std::memory_order_relaxed);
  return lock(mutex);
}

namespace tessera::testing {

int64_t num_locks() { return count.load(std::memory_order_relaxed); }

}  // namespace tessera::testing
