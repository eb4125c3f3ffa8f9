// SPDX-License-Identifier: Apache-2.0
#include "base/fork_guard.h"

#include <pthread.h>

#include <mutex>

namespace tessera {

std::atomic<uint32_t> ForkGuard::current_{0};

ForkGuard::ForkGuard() {
  static std::once_flag registered;
  std::call_once(registered, [] {
    pthread_atfork(nullptr, nullptr, [] { current_.fetch_add(1, std::memory_order_relaxed); });
  });
  generation_ = current_.load(std::memory_order_relaxed);
}

}  // namespace tessera
