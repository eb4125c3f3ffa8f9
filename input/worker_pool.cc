// SPDX-License-Identifier: Apache-2.0
#include "input/worker_pool.h"

#include <utility>

namespace tessera::input {

StatusOr<std::unique_ptr<WorkerPool>> WorkerPool::start(int parallelism) {
  std::unique_ptr<WorkerPool> pool(new WorkerPool());
  for (int i = 1; i < parallelism; ++i) {
    TESSERA_ASSIGN_OR_RETURN(Thread thread, start_thread("a worker of an input pipeline",
                                                         [pool = pool.get()] { pool->work(); }));
    pool->threads_.push_back(std::move(thread));
  }
  return pool;
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (Thread& thread : threads_) thread.join();
}

void WorkerPool::run(int64_t count, absl::FunctionRef<void(int64_t)> fn) {
  if (threads_.empty() || count < 2) {
    for (int64_t i = 0; i < count; ++i) fn(i);
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    fn_ = &fn;
    count_ = count;
    next_.store(0);
    ++round_;
    num_busy_ = static_cast<int>(threads_.size());
  }
  changed_.notify_all();
  take_indices(fn);
  // Waits until all threads are idle: a thread still in this round would read the next round's fn.
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return num_busy_ == 0; });
}

void WorkerPool::take_indices(absl::FunctionRef<void(int64_t)> fn) {
  for (int64_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) fn(i);
}

void WorkerPool::work() {
  uint64_t done_round = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || round_ != done_round; });
    if (stopping_) return;
    done_round = round_;
    const absl::FunctionRef<void(int64_t)> fn = *fn_;
    lock.unlock();
    take_indices(fn);
    lock.lock();
    if (--num_busy_ == 0) changed_.notify_all();
  }
}

}  // namespace tessera::input
