// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/cpu_stream.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/wait_policy.h"

namespace tessera {

namespace {

// Tasks in a row that callers run before the worker is no longer woken for them.
constexpr int kStreak = 4;

}  // namespace

StatusOr<std::unique_ptr<CpuStream>> CpuStream::create(absl::string_view subject,
                                                       StreamObserver* observer) {
  std::unique_ptr<CpuStream> stream(new CpuStream(observer));
  // Before the thread starts, which sets it back.
  stream->has_worker_ended_ = false;
  StatusOr<Thread> worker = start_thread(subject, [self = stream.get()] {
    self->run();
    std::lock_guard<std::mutex> lock(self->mutex_);
    self->has_worker_ended_ = true;
    self->worker_ended_.notify_all();
  });
  if (!worker.ok()) {
    stream->has_worker_ended_ = true;
    return worker.status();
  }
  stream->worker_ = *std::move(worker);
  return stream;
}

CpuStream::~CpuStream() { stop(); }

Status CpuStream::stop_by(absl::Time deadline) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    uint64_t word = settled_word();
    while (!word_.compare_exchange_weak(word, word | kStopped)) word = settled_word();
  }
  wake_worker();
  if (const auto task = task_here()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a stream cannot wait for its end in its own task ", in_quotes(*task)));
  }
  std::unique_lock<std::mutex> lock(mutex_);
  const auto has_ended = [this] { return has_worker_ended_; };
  if (deadline == absl::InfiniteFuture()) {
    worker_ended_.wait(lock, has_ended);
  } else if (!worker_ended_.wait_until(lock, to_chrono_steady(deadline), has_ended)) {
    return absl::DeadlineExceededError("tasks of a stream that was stopped still run");
  }
  // Under the lock, so that two callers do not join at once. The worker takes it no more.
  if (worker_.joinable()) worker_.join();
  return absl::OkStatus();
}

uint64_t CpuStream::settled_word() const {
  uint64_t word = word_.load(std::memory_order_acquire);
  for (; (word & kStates) == kPlacing; word = word_.load(std::memory_order_acquire)) sched_yield();
  return word;
}

bool CpuStream::claim_idle(uint64_t state) {
  uint64_t word = word_.load(std::memory_order_relaxed);
  while ((word & (kStates | kStopped)) == kIdle) {
    if (word_.compare_exchange_weak(word, word + kTurn + state, std::memory_order_acquire,
                                    std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

// Puts the task at the front of an idle stream without the lock; else into the queue behind it.
void CpuStream::enqueue(std::string label, Task task, const void* key, Wake wake, Placed placed) {
  Place place = Place::kFront;
  if (claim_idle(kPlacing)) {
    placed();
  } else {
    place = queue_up(label, task, key, placed);
  }
  bool wakes = true;  // for a task that is behind others, which their callers may leave
  switch (place) {
    case Place::kFront:
      if (!label.empty()) front_.label = std::move(label);
      front_.task = std::move(task);
      wakes = show_front(key) && wake == Wake::kNow;
      break;
    case Place::kBehind:
      break;
    case Place::kNone:
      task().IgnoreError();
      return;
  }
  if (wakes) wake_worker();
}

void CpuStream::enqueue(Runnable& runnable, const void* key, Wake wake) {
  if (!claim_idle(kPlacing)) return Stream::enqueue(runnable, key, wake);
  runnable.placed();
  front_runnable_ = &runnable;
  if (show_front(key) && wake == Wake::kNow) wake_worker();
}

bool CpuStream::show_front(const void* key) {
  front_key_.store(key, std::memory_order_relaxed);
  const uint64_t word = word_.load(std::memory_order_relaxed) - kPlacing + kWaiting;
  word_.store(word, std::memory_order_release);
  return key == nullptr || (word & kCallersCome) == 0;
}

CpuStream::Place CpuStream::queue_up(std::string& label, Task& task, const void* key,
                                     Placed placed) {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t word = settled_word();
  while ((word & kStopped) == 0) {
    if ((word & kStates) == kIdle) {
      if (claim_idle(kPlacing)) {
        placed();
        return Place::kFront;
      }
    } else if (word_.compare_exchange_weak(word, word | kMore)) {
      break;
    }
    word = settled_word();
  }
  placed();
  if ((word & kStopped) != 0) return Place::kNone;
  if (num_queued_ == ring_.size()) resize_ring(2 * ring_.size());
  Entry& last = entry(num_queued_++);
  last.label = std::move(label);
  last.task = std::move(task);
  last.key = key;
  return Place::kBehind;
}

bool CpuStream::run_here(const void* key) {
  // The thread that has just run the previous task may not have left the front yet.
  uint64_t word;
  wait_briefly(kHandover, [&] {
    word = word_.load(std::memory_order_acquire);
    return (word & kStates) != kRunning;
  });
  // A key of another turn has another word with it, so that the exchange fails.
  const bool runs = (word & kStates) == kWaiting &&
                    front_key_.load(std::memory_order_relaxed) == key &&
                    word_.compare_exchange_strong(word, word - kWaiting + kRunning);
  if (!runs) {
    // The worker runs the tasks that this thread could not run. It already knows of the tasks
    // queued behind.
    if ((word & kStates) == kWaiting) wake_worker();
    return false;
  }
  run_front();
  bool streak_begins = false;
  if ((word & kCallersCome) == 0) {
    const int streak = caller_streak_.load(std::memory_order_relaxed) + 1;
    caller_streak_.store(streak, std::memory_order_relaxed);
    streak_begins = streak >= kStreak;
  }
  word = leave(streak_begins ? kCallersCome : 0);
  // The worker runs the tasks that are left. From the beginning of a streak on it polls.
  if (streak_begins || (word & (kWaiting | kStopped)) != 0) wake_worker();
  return true;
}

bool CpuStream::try_take() { return claim_idle(kRunning); }

void CpuStream::release() {
  if ((leave(0) & (kWaiting | kStopped)) != 0) wake_worker();
}

void CpuStream::wake_worker() {
  num_woken_for_.fetch_add(1, std::memory_order_seq_cst);
  if (!worker_sleeps_.load(std::memory_order_seq_cst)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  work_added_.notify_one();
}

// Waits for as many tasks to be done as had been at the front or in the queue when it was called.
Status CpuStream::sync() {
  std::unique_lock<std::mutex> lock(mutex_);
  num_syncs_.fetch_add(1, std::memory_order_seq_cst);
  const auto num_begun = [this] { return word_.load(std::memory_order_seq_cst) / kTurn; };
  const auto num_done = [this] {
    const uint64_t word = word_.load(std::memory_order_seq_cst);
    return word / kTurn - ((word & kStates) == kIdle ? 0 : 1);
  };
  const uint64_t target = num_begun() + num_queued_;
  work_done_.wait(lock, [&] { return num_done() >= target; });
  num_syncs_.fetch_sub(1, std::memory_order_relaxed);
  return std::exchange(first_error_, absl::OkStatus());
}

void CpuStream::resize_ring(size_t size) {
  std::vector<Entry> ring(size);
  for (size_t i = 0; i < num_queued_; ++i) ring[i] = std::move(entry(i));
  ring_ = std::move(ring);
  first_ = 0;
}

std::optional<absl::string_view> CpuStream::task_here() const {
  if (runner_.load(std::memory_order_relaxed) != pthread_self()) return std::nullopt;
  return front_.label;
}

void CpuStream::run_front() {
  runner_.store(pthread_self(), std::memory_order_relaxed);
  if (observer_ != nullptr) observer_->task_started(front_.label);
  Status status;
  if (front_runnable_ != nullptr) {
    // The object may be destroyed as soon as it has run.
    status = std::exchange(front_runnable_, nullptr)->run();
  } else {
    status = front_.task();
    // The task's objects are released before the task counts as done.
    front_.task = nullptr;
    if (!front_.label.empty()) std::string().swap(front_.label);  // with its memory
  }
  if (observer_ != nullptr) observer_->task_finished();
  runner_.store(0, std::memory_order_relaxed);
  if (status.ok()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (first_error_.ok()) first_error_ = std::move(status);
}

// Without kMore one exchange makes the stream idle. With it the first task of the queue becomes the
// front, under the lock.
uint64_t CpuStream::leave(uint64_t flags) {
  uint64_t word = word_.load(std::memory_order_relaxed);
  while ((word & kMore) == 0) {
    const uint64_t next = (word - kRunning) | flags;
    if (!word_.compare_exchange_weak(word, next, std::memory_order_seq_cst)) continue;
    if (num_syncs_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      work_done_.notify_all();
    }
    return next;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& next = entry(0);
  if (!next.label.empty()) front_.label = std::move(next.label);
  front_.task = std::move(next.task);
  front_key_.store(next.key, std::memory_order_relaxed);
  ++first_;
  if (--num_queued_ == 0 && ring_.size() > kSmallRing) resize_ring(kSmallRing);
  // With kMore set other threads change the word only under the lock.
  word = (word_.load(std::memory_order_relaxed) - kRunning + kTurn + kWaiting) | flags;
  if (num_queued_ == 0) word -= kMore;
  word_.store(word, std::memory_order_seq_cst);
  if (num_syncs_.load(std::memory_order_seq_cst) > 0) work_done_.notify_all();
  return word;
}

bool CpuStream::yield_to_caller(uint64_t word) const {
  return wait_briefly(kHandover, [&] { return word_.load(std::memory_order_relaxed) != word; });
}

void CpuStream::run() {
  bool has_run_a_task = false;
  while (true) {
    // Read before the word: a thread that wakes this one has changed the word first.
    const uint64_t seen = num_woken_for_.load(std::memory_order_seq_cst);
    uint64_t word = word_.load(std::memory_order_seq_cst);
    if ((word & kStates) == kWaiting) {
      // The caller that waits for this task is about to call run_here(), and would sleep if the
      // worker took the task first. It has no reason to come for a task that was behind others.
      const bool may_be_callers =
          front_key_.load(std::memory_order_relaxed) != nullptr && !has_run_a_task;
      if (may_be_callers && yield_to_caller(word)) continue;
      const uint64_t running = (word & ~kCallersCome) - kWaiting + kRunning;
      if (!word_.compare_exchange_strong(word, running)) continue;
      caller_streak_.store(0, std::memory_order_relaxed);
      run_front();
      leave(0);
      has_run_a_task = true;
      continue;
    }
    if ((word & (kStates | kStopped)) == (kIdle | kStopped)) return;
    // Not where callers run the tasks: they need the core.
    if (std::exchange(has_run_a_task, false)) {
      wait_briefly(kNextTask,
                   [&] { return num_woken_for_.load(std::memory_order_relaxed) != seen; });
    }
    sleep_until_woken(seen);
  }
}

// Two modes. Without kCallersCome the worker sleeps until it is woken. With it the worker polls the
// word: a word that has not changed since the last poll and still says kWaiting is a task that its
// caller has left, and ends the sleep. After kQuietRounds polls in which no task reached the front
// the flag is cleared, and the first mode applies again.
void CpuStream::sleep_until_woken(uint64_t seen) {
  constexpr std::chrono::microseconds kShortest(200);
  constexpr std::chrono::microseconds kLongest(5000);
  constexpr int kQuietRounds = 5;
  std::unique_lock<std::mutex> lock(mutex_);
  worker_sleeps_.store(true, std::memory_order_seq_cst);
  const auto woken = [&] { return num_woken_for_.load(std::memory_order_seq_cst) != seen; };
  uint64_t last = word_.load(std::memory_order_seq_cst);
  // A poll takes time from the callers, so the interval doubles after each one. A task that is left
  // waits at most as long as the streak before it took.
  auto poll_interval = kShortest;
  int quiet = 0;
  while (true) {
    if ((last & kCallersCome) == 0) {
      work_added_.wait(lock, woken);
      break;
    }
    const auto next_poll = std::chrono::steady_clock::now() + poll_interval;
    if (work_added_.wait_until(lock, next_poll, woken)) break;
    uint64_t word = word_.load(std::memory_order_seq_cst);
    const bool same = word / kTurn == last / kTurn;
    last = word;
    if (same && (word & kStates) == kWaiting) break;  // no caller took it
    quiet = same ? quiet + 1 : 0;
    poll_interval = std::min(2 * poll_interval, kLongest);
    const bool is_placing = (word & kStates) == kPlacing;
    if (quiet < kQuietRounds || is_placing) continue;
    // Fails if a task was placed meanwhile: show_front() saw the flag, and did not wake the worker.
    if (!word_.compare_exchange_strong(word, word & ~kCallersCome)) continue;
    caller_streak_.store(0, std::memory_order_relaxed);
    last = word & ~kCallersCome;
  }
  worker_sleeps_.store(false, std::memory_order_relaxed);
}

}  // namespace tessera
