// SPDX-License-Identifier: Apache-2.0
//
// WorkerPool: threads that share the indices of a loop.
//
//   StatusOr<std::unique_ptr<WorkerPool>> pool = WorkerPool::start(4);
//   (*pool)->run(100, [&](int64_t i) { results[i] = f(i); });     returns when all 100 are done
//
// The calling thread works too: a pool of 4 starts 3 threads, and a pool of 1 none. One thread
// calls run() at a time.
#ifndef TESSERA_INPUT_WORKER_POOL_H_
#define TESSERA_INPUT_WORKER_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/status.h"
#include "base/thread.h"

namespace tessera::input {

class WorkerPool {
 public:
  // ResourceExhausted if a thread cannot be started. Requires parallelism >= 1.
  static StatusOr<std::unique_ptr<WorkerPool>> start(int parallelism);
  ~WorkerPool();

  // Calls fn(i) once for each i in [0, count), several at once, and waits for all calls.
  void run(int64_t count, absl::FunctionRef<void(int64_t)> fn);

 private:
  WorkerPool() = default;
  void work();
  // Takes indices until there are none.
  void take_indices(absl::FunctionRef<void(int64_t)> fn);

  std::vector<Thread> threads_;
  std::mutex mutex_;  // guards the members below, except next_
  std::condition_variable changed_;
  const absl::FunctionRef<void(int64_t)>* fn_ = nullptr;
  int64_t count_ = 0;
  uint64_t round_ = 0;
  int num_busy_ = 0;
  bool stopping_ = false;
  std::atomic<int64_t> next_{0};
};

}  // namespace tessera::input

#endif  // TESSERA_INPUT_WORKER_POOL_H_
