// SPDX-License-Identifier: Apache-2.0
//
// CpuStream: the stream of a CPU device, one worker thread.
//
// One thread per device, so that a device that waits for its peers never blocks another device of
// the same client: no number of devices can deadlock a collective among them.
//
// A program that waits for each operation runs it on its own thread (run_here()). Waking the worker
// for an operation that the caller runs would cost more than the operation. So after several tasks
// in a row that callers ran (kCallersCome) the worker is not woken for the next one. It polls the
// front instead, every 0.2 ms at first and then more and more rarely, up to every 5 ms, and runs a
// task that no caller has run. It sleeps without polling after a few polls that found no new task.
//
// The front task has its own slot; one atomic word says which thread owns it:
//
//   kIdle -> kPlacing -> kWaiting -> kRunning -> kIdle, or kWaiting where others are queued behind
//
// So a task that is enqueued on an idle stream and run by its caller takes three atomic operations
// and no lock. Invariants:
//   1. only the thread that has set the word to kPlacing or kRunning touches the front;
//   2. in kPlacing no other thread changes the word; in kRunning another thread changes it only
//      under the lock;
//   3. kMore says that tasks are queued behind the front: the thread that leaves the front then
//      takes the lock and moves the next task there.
#ifndef TESSERA_DEVICE_CPU_CPU_STREAM_H_
#define TESSERA_DEVICE_CPU_CPU_STREAM_H_

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/thread.h"
#include "device/stream.h"

namespace tessera {

class CpuStream : public Stream {
 public:
  // ResourceExhausted, naming `subject`, where the worker thread cannot be started. `observer` may
  // be null; it must outlive the stream.
  static StatusOr<std::unique_ptr<CpuStream>> create(absl::string_view subject,
                                                     StreamObserver* observer);
  ~CpuStream() override;

  void begin_stop() override { stop_by(absl::InfinitePast()).IgnoreError(); }
  Status stop_by(absl::Time deadline) override;

  using Stream::enqueue;
  void enqueue(std::string label, Task task, const void* key, Wake wake, Placed placed) override;
  void enqueue(Runnable& runnable, const void* key, Wake wake) override;
  bool run_here(const void* key) override;
  bool try_take() override;
  void release() override;
  std::optional<absl::string_view> task_here() const override;
  Status sync() override;

 private:
  explicit CpuStream(StreamObserver* observer) : observer_(observer) {}

  struct Entry {
    std::string label;
    Task task;
    const void* key = nullptr;  // of the front: front_key_
  };

  // Fields of the word: a state, flags, and from kTurn on the number of tasks that have been at the
  // front.
  static constexpr uint64_t kIdle = 0;
  static constexpr uint64_t kPlacing = 1;
  static constexpr uint64_t kWaiting = 2;
  static constexpr uint64_t kRunning = 3;  // on any thread, or the stream is taken
  static constexpr uint64_t kStates = 3;
  static constexpr uint64_t kMore = 4;
  static constexpr uint64_t kCallersCome = 8;  // the worker need not be woken
  static constexpr uint64_t kStopped = 16;
  static constexpr uint64_t kTurn = 32;

  void run();
  // Takes the front of an idle stream, for a task (kPlacing) or for the caller (kRunning).
  bool claim_idle(uint64_t state);
  // Waits until the state is not kPlacing and returns the word.
  uint64_t settled_word() const;
  enum class Place { kFront, kBehind, kNone };
  // Finds the place of a task for which claim_idle() has failed: the front, in kPlacing; the queue,
  // which then holds the task; or none, because the stream was stopped.
  Place queue_up(std::string& label, Task& task, const void* key, Placed placed);
  // Publishes the front task: kPlacing -> kWaiting. Returns whether the worker has to be woken.
  bool show_front(const void* key);
  // Runs the front. Requires that this thread has set the word to kRunning.
  void run_front();
  // Releases the front, from kRunning, and sets these flags. Returns the new word.
  uint64_t leave(uint64_t flags);
  // Entry number i of the queue, or the free one behind it. Requires the lock, and room.
  Entry& entry(size_t i) { return ring_[(first_ + i) & (ring_.size() - 1)]; }
  // Moves the queue to a ring of that many entries. Requires the lock.
  void resize_ring(size_t size);
  // Yields for a moment, so that the caller of the front task can take it. Returns whether the word
  // has changed.
  bool yield_to_caller(uint64_t word) const;
  // The worker's sleep: returns when num_woken_for_ is no longer `seen`, or when a poll finds a
  // task that no caller has taken.
  void sleep_until_woken(uint64_t seen);
  // Requires that the lock is not held.
  void wake_worker();

  // Threads. Any thread enqueues, takes, syncs or stops. The worker thread calls run(),
  // yield_to_caller() and sleep_until_woken(). run_front() and leave() are called by the owner of
  // the front, that is the worker or the caller of run_here().
  //
  // The sleep of the worker. A thread that wakes it changes word_, then counts num_woken_for_ up,
  // then reads worker_sleeps_; the worker reads num_woken_for_, then word_, and sets worker_sleeps_
  // before it compares num_woken_for_ again and sleeps. All of these are seq_cst, so that no
  // wake-up is lost.
  //
  // Locks. Atomics are read without a lock; front_ and front_runnable_ belong to the owner of the
  // front; mutex_ guards everything below it.
  StreamObserver* const observer_;
  alignas(64) std::atomic<uint64_t> word_{kIdle};
  Runnable* front_runnable_ = nullptr;  // null: front_ is the task
  Entry front_;
  // The thread that runs the front, 0 where none does: a thread finds its own id there only if it
  // has stored it itself, so the order of other threads' stores does not matter.
  std::atomic<pthread_t> runner_{0};
  std::atomic<const void*> front_key_{nullptr};  // compared in kWaiting
  std::atomic<int> caller_streak_{0};            // tasks in a row that callers ran, up to kStreak
  std::atomic<int> num_syncs_{0};                // threads in sync()
  std::atomic<uint64_t> num_woken_for_{0};       // wake-ups of the worker so far
  std::atomic<bool> worker_sleeps_{false};
  std::mutex mutex_;
  std::condition_variable work_added_;
  std::condition_variable work_done_;
  // The queue behind the front: num_queued_ entries from first_ on, modulo the size of ring_, a
  // power of two. It grows with the queue, and is small again when that has been emptied.
  static constexpr size_t kSmallRing = 64;
  std::vector<Entry> ring_ = std::vector<Entry>(kSmallRing);
  size_t first_ = 0;
  size_t num_queued_ = 0;
  Status first_error_;
  std::condition_variable worker_ended_;
  bool has_worker_ended_ = true;
  Thread worker_;
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_CPU_CPU_STREAM_H_
