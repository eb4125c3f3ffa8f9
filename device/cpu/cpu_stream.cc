// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/cpu_stream.h"

#include <utility>

namespace tessera {

CpuStream::CpuStream(StreamObserver* observer) : observer_(observer) {
  worker_ = std::thread([this] { run(); });
}

CpuStream::~CpuStream() { stop(); }

void CpuStream::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  work_added_.notify_one();
  if (worker_.joinable()) worker_.join();
}

void CpuStream::enqueue(std::string label, Task task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!stopping_) {
      queue_.push_back({std::move(label), std::move(task)});
      ++num_enqueued_;
      work_added_.notify_one();
      return;
    }
  }
  task().IgnoreError();
}

Status CpuStream::sync() {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t target = num_enqueued_;
  work_done_.wait(lock, [&] { return num_done_ >= target; });
  return std::exchange(first_error_, absl::OkStatus());
}

void CpuStream::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    work_added_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Entry entry = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (observer_ != nullptr) observer_->task_started(entry.label);
    Status status = entry.task();
    entry.task = nullptr;  // what the task holds is released before it counts as done
    if (observer_ != nullptr) observer_->task_finished();
    lock.lock();
    ++num_done_;
    if (!status.ok() && first_error_.ok()) first_error_ = std::move(status);
    work_done_.notify_all();
  }
}

}  // namespace tessera
