// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/cpu_stream.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace tessera {

namespace {

// Tasks in a row that callers run before the worker is no longer woken for them.
constexpr int kStreak = 4;

}  // namespace

CpuStream::CpuStream(StreamObserver* observer) : observer_(observer) {
  worker_ = std::thread([this] { run(); });
}

CpuStream::~CpuStream() { stop(); }

void CpuStream::stop() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    stopping_ = true;
    wake_worker();
  }
  if (worker_.joinable()) worker_.join();
}

void CpuStream::enqueue(std::string label, Task task, const void* key, Wake wake, Placed placed) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    placed();
    if (!stopping_) {
      if (num_queued_ == ring_.size()) resize_ring(2 * ring_.size());
      Entry& last = entry(num_queued_++);
      if (!label.empty()) last.label = std::move(label);
      last.task = std::move(task);
      last.key = key;
      ++num_enqueued_;
      // Who runs a task looks at the queue again before it leaves it.
      const bool caller_comes =
          wake == Wake::kByCaller || (key != nullptr && caller_streak_ >= kStreak);
      if (!caller_comes || num_queued_ > 1) wake_worker();
      return;
    }
  }
  task().IgnoreError();
}

bool CpuStream::run_here(const void* key) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool runs = !running_ && num_queued_ > 0 && entry(0).key == key;
  if (runs) run_front(lock);
  // From now on the worker looks by itself.
  const bool streak_begins = runs && ++caller_streak_ == kStreak;
  // What is left is the worker's, and so is what this thread could not run.
  if (streak_begins || num_queued_ > 0 || stopping_) wake_worker();
  return runs;
}

bool CpuStream::try_take() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (running_ || num_queued_ > 0 || stopping_) return false;
  running_ = true;
  return true;
}

void CpuStream::release() {
  std::lock_guard<std::mutex> lock(mutex_);
  running_ = false;
  if (num_queued_ > 0 || stopping_) wake_worker();
}

void CpuStream::wake_worker() {
  num_woken_for_.fetch_add(1, std::memory_order_relaxed);
  if (worker_sleeps_) work_added_.notify_one();
}

Status CpuStream::sync() {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t target = num_enqueued_;
  ++num_syncs_;
  work_done_.wait(lock, [&] { return num_done_ >= target; });
  --num_syncs_;
  return std::exchange(first_error_, absl::OkStatus());
}

void CpuStream::resize_ring(size_t size) {
  std::vector<Entry> ring(size);
  for (size_t i = 0; i < num_queued_; ++i) ring[i] = std::move(entry(i));
  ring_ = std::move(ring);
  first_ = 0;
}

void CpuStream::run_front(std::unique_lock<std::mutex>& lock) {
  Entry& front = entry(0);
  std::string label;
  if (!front.label.empty()) label.swap(front.label);
  Task task = std::move(front.task);
  ++first_;
  if (--num_queued_ == 0 && ring_.size() > kSmallRing) resize_ring(kSmallRing);
  running_ = true;
  lock.unlock();
  if (observer_ != nullptr) observer_->task_started(label);
  Status status = task();
  task = nullptr;  // what the task holds is released before it counts as done
  if (observer_ != nullptr) observer_->task_finished();
  lock.lock();
  running_ = false;
  ++num_done_;
  if (!status.ok() && first_error_.ok()) first_error_ = std::move(status);
  if (num_syncs_ > 0) work_done_.notify_all();
}

void CpuStream::run() {
  // A sleeping thread takes longer to come than most tasks take: it gives its core away this often
  // before it sleeps.
  constexpr int kYields = 50;
  std::unique_lock<std::mutex> lock(mutex_);
  int yields = 0;
  while (true) {
    if (num_queued_ > 0 && !running_) {
      caller_streak_ = 0;
      run_front(lock);
      yields = kYields;
      continue;
    }
    if (stopping_ && num_queued_ == 0 && !running_) return;
    const uint64_t seen = num_woken_for_.load(std::memory_order_relaxed);
    lock.unlock();
    // Not where callers run the tasks: they need the core.
    for (; yields > 0; --yields) {
      if (num_woken_for_.load(std::memory_order_relaxed) != seen) break;
      sched_yield();
    }
    lock.lock();
    worker_sleeps_ = true;
    rest(lock, seen);
    worker_sleeps_ = false;
  }
}

void CpuStream::rest(std::unique_lock<std::mutex>& lock, uint64_t seen) {
  constexpr std::chrono::microseconds kShortest(200);
  constexpr std::chrono::microseconds kLongest(5000);
  constexpr int kQuietRounds = 5;
  const auto woken = [&] { return num_woken_for_.load(std::memory_order_relaxed) != seen; };
  if (caller_streak_ < kStreak) return work_added_.wait(lock, woken);
  uint64_t last = num_enqueued_;
  // To look takes time from the callers. Twice as late after each look in vain: a task that is left
  // waits at most as long as the streak before it took.
  auto patience = kShortest;
  for (int quiet = 0; quiet < kQuietRounds; patience = std::min(2 * patience, kLongest)) {
    if (work_added_.wait_until(lock, std::chrono::system_clock::now() + patience, woken)) return;
    const bool same = num_enqueued_ == last;
    if (same && num_queued_ > 0 && !running_) return;  // nobody came for it
    quiet = same ? quiet + 1 : 0;
    last = num_enqueued_;
  }
  caller_streak_ = 0;
}

}  // namespace tessera
