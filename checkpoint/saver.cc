// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/saver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/exception_status.h"
#include "base/text.h"
#include "checkpoint/save_run.h"

namespace tessera::checkpoint::internal {

Saver::~Saver() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status Saver::admit(SaveRequest& request, const AsyncOptions* limits) {
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t held = request.held_bytes;
  Status status;
  if (limits != nullptr) {
    const int64_t most = limits->max_held_bytes;
    if (most > 0 && held > most) {
      status = absl::ResourceExhaustedError(
          absl::StrCat("save ", quoted_whole(request.path), " holds ", held,
                       " bytes on this client, and max_held_bytes is ", most));
      request.refused.Update(status);
    }
    changed_.wait(lock, [&] {
      return num_pending_ == 0 ||
             (num_pending_ < limits->max_pending && (most == 0 || held_bytes_ + held <= most));
    });
  }
  ++num_pending_;
  held_bytes_ += held;
  return status;
}

void Saver::enqueue(std::unique_ptr<SaveRequest> request) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!thread_.joinable()) {
    StatusOr<Thread> thread = start_thread("the saver of a client", [this] { run(); });
    // The other clients wait for the rounds of this save: its caller runs it.
    if (!thread.ok()) {
      const uint32_t number = num_saves_++;
      request->state->start(request->client, number);
      lock.unlock();
      return run_one(std::move(request), number);
    }
    thread_ = *std::move(thread);
  }
  request->state->start(request->client, num_saves_ + static_cast<uint32_t>(queue_.size()));
  queue_.push_back(std::move(request));
  lock.unlock();
  changed_.notify_all();
}

Status Saver::take_error() {
  std::lock_guard<std::mutex> lock(mutex_);
  while (!failed_.empty()) {
    const std::shared_ptr<SaveState> state = std::move(failed_.front());
    failed_.erase(failed_.begin());
    Status status;
    if (state->take(&status)) return status;
  }
  return absl::OkStatus();
}

Status Saver::finish(absl::Time deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_idle = [this] { return num_pending_ == 0; };
  if (deadline == absl::InfiniteFuture()) {
    changed_.wait(lock, is_idle);
    return absl::OkStatus();
  }
  if (changed_.wait_until(lock, to_chrono_steady(deadline), is_idle)) return absl::OkStatus();
  stopping_.store(true);
  return absl::DeadlineExceededError(
      absl::StrCat("shutdown: ", num_pending_, " saves were not complete, and are cut off"));
}

void Saver::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::unique_ptr<SaveRequest> request = std::move(queue_.front());
    queue_.pop_front();
    const uint32_t number = num_saves_++;
    lock.unlock();
    run_one(std::move(request), number);
    lock.lock();
  }
}

void Saver::run_one(std::unique_ptr<SaveRequest> request, uint32_t number) {
  const Status status =
      call_guarded<Status>([&] { return run_save(*request, number, rounds_, stopping_); });
  const std::shared_ptr<SaveState> state = request->state;
  const int64_t held_bytes = request->held_bytes;
  // The client stays until this function ends: its last handle may be here.
  const Client client = request->client;
  request.reset();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // With the lock: after done() is true, take_error() finds the error.
    state->finish(status);
    if (!status.ok()) failed_.push_back(state);
    --num_pending_;
    held_bytes_ -= held_bytes;
  }
  changed_.notify_all();
}

}  // namespace tessera::checkpoint::internal
