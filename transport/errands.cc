// SPDX-License-Identifier: Apache-2.0
#include "transport/errands.h"

#include <utility>

#include "base/clock.h"

namespace tessera::transport {

Errands::~Errands() {
  if (fork_guard_.in_child()) {
    // The thread is not in this process: it can be neither joined nor detached.
    if (thread_.joinable()) (void)new Thread(std::move(thread_));
    return;
  }
  stop();
}

Status Errands::post(absl::AnyInvocable<void()> errand) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_stopping_) return absl::OkStatus();
  if (!thread_.joinable()) {
    TESSERA_ASSIGN_OR_RETURN(thread_, start_thread(subject_, [this] { run(); }));
  }
  errands_.push_back(std::move(errand));
  changed_.notify_all();
  return absl::OkStatus();
}

void Errands::begin_stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  is_stopping_ = true;
  changed_.notify_all();
}

void Errands::stop() {
  begin_stop();
  Thread ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended = std::move(thread_);
  }
  if (ended.joinable()) ended.join();
}

bool Errands::pause(absl::Duration duration) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_until(lock, to_chrono_steady(steady_now() + duration),
                      [&] { return is_stopping_; });
  return !is_stopping_;
}

void Errands::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_stopping_ || !errands_.empty(); });
    if (is_stopping_) return;
    absl::AnyInvocable<void()> errand = std::move(errands_.front());
    errands_.pop_front();
    lock.unlock();
    errand();
    // Destroys the captures of the errand before the next errand, and outside the lock.
    errand = nullptr;
    lock.lock();
  }
}

}  // namespace tessera::transport
