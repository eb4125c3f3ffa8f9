// SPDX-License-Identifier: Apache-2.0
#include "device/completion.h"

#include <sched.h>

#include <utility>

namespace tessera {

namespace {

// A thread that sleeps takes longer to come back than most operations take.
constexpr int kYields = 20;

}  // namespace

void Completion::set(Status status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (done_.load(std::memory_order_relaxed)) return;
  status_ = std::move(status);
  done_.store(true, std::memory_order_release);
  changed_.notify_all();
}

Status Completion::status() const { return done() ? status_ : absl::OkStatus(); }

Status Completion::wait() const {
  for (int i = 0; i < kYields && !done(); ++i) sched_yield();
  if (!done()) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return done_.load(std::memory_order_relaxed); });
  }
  return status_;
}

bool Completion::wait_until(absl::Time deadline) const {
  if (done()) return true;
  if (deadline == absl::InfiniteFuture()) {
    wait().IgnoreError();
    return true;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, absl::ToChronoTime(deadline),
                             [this] { return done_.load(std::memory_order_relaxed); });
}

}  // namespace tessera
