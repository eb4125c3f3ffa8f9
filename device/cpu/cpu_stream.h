// SPDX-License-Identifier: Apache-2.0
//
// CpuStream: the stream of a CPU device, one worker thread.
//
// One thread a device, so that a device which waits for its peers never keeps another device of
// the same client from running: no number of devices can deadlock a collective among them.
//
// A program that waits for each operation runs it on its own thread (run_here()). To wake the
// worker for an operation that the caller takes would cost more than the operation: once callers
// have taken several in a row, the worker is not woken for the next, but looks by itself, after 0.2
// ms and then ever later, up to 5 ms, whether one has been left for it. It goes back to sleep when
// nothing comes.
#ifndef TESSERA_DEVICE_CPU_CPU_STREAM_H_
#define TESSERA_DEVICE_CPU_CPU_STREAM_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device/stream.h"

namespace tessera {

class CpuStream : public Stream {
 public:
  // `observer` may be null; it must outlive the stream.
  explicit CpuStream(StreamObserver* observer);
  ~CpuStream() override;

  void stop() override;

  using Stream::enqueue;
  void enqueue(std::string label, Task task, const void* key, Wake wake, Placed placed) override;
  bool run_here(const void* key) override;
  bool try_take() override;
  void release() override;
  Status sync() override;

 private:
  struct Entry {
    std::string label;
    Task task;
    const void* key = nullptr;
  };

  void run();
  // Entry number i of the queue, or the free one behind it. Requires the lock, and room.
  Entry& entry(size_t i) { return ring_[(first_ + i) & (ring_.size() - 1)]; }
  // Moves the queue to a ring of that many entries. Requires the lock.
  void resize_ring(size_t size);
  // Runs the first task of the queue. Requires the lock, and running_ to be false.
  void run_front(std::unique_lock<std::mutex>& lock);
  // The worker's sleep, until it is woken later than `seen`, or a task was left for it.
  void rest(std::unique_lock<std::mutex>& lock, uint64_t seen);
  // Requires the lock.
  void wake_worker();

  StreamObserver* const observer_;
  // Counts up with the queue: the worker looks at it for a while before it sleeps.
  std::atomic<uint64_t> num_woken_for_{0};
  std::mutex mutex_;  // guards everything below
  std::condition_variable work_added_;
  std::condition_variable work_done_;
  // The queue: num_queued_ entries from first_ on, modulo the size of ring_, a power of two. It
  // grows with the queue, and is small again when that has been emptied.
  static constexpr size_t kSmallRing = 64;
  std::vector<Entry> ring_ = std::vector<Entry>(kSmallRing);
  size_t first_ = 0;
  size_t num_queued_ = 0;
  uint64_t num_enqueued_ = 0;
  uint64_t num_done_ = 0;
  int num_syncs_ = 0;  // threads in sync()
  Status first_error_;
  bool running_ = false;   // a task runs, on whichever thread, or the stream is taken
  int caller_streak_ = 0;  // tasks in a row that callers ran
  bool worker_sleeps_ = false;
  bool stopping_ = false;
  std::thread worker_;
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_CPU_CPU_STREAM_H_
