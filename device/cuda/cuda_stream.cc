// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_stream.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "device/completion.h"

namespace tessera::cuda {
namespace {

// How long stop() waits for a GPU that does not finish.
constexpr absl::Duration kStopLimit = absl::Seconds(10);

// Gives the core away until work of the GPU may be done: at first for a moment, then for an eighth
// of the time that it has taken so far, at most a millisecond.
class Nap {
 public:
  void take() {
    constexpr absl::Duration kYieldFor = absl::Microseconds(50);
    const absl::Duration waited = steady_now() - start_;
    if (waited < kYieldFor) {
      sched_yield();
    } else {
      // sleep: the GPU wakes no thread
      absl::SleepFor(std::clamp(waited / 8, absl::Microseconds(20), absl::Milliseconds(1)));
    }
  }

 private:
  const absl::Time start_ = steady_now();
};

}  // namespace

EventPool::~EventPool() {
  if (free_.empty() || !api_->set_device(gpu_).ok()) return;
  for (const EventHandle event : free_) api_->destroy_event(event).IgnoreError();
}

StatusOr<EventHandle> EventPool::take() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      const EventHandle event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  TESSERA_RETURN_IF_ERROR(api_->set_device(gpu_));
  return api_->create_event();
}

void EventPool::put_back(EventHandle event) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(event);
}

StatusOr<std::unique_ptr<CudaQueue>> CudaQueue::create(std::shared_ptr<Api> api, int gpu) {
  TESSERA_RETURN_IF_ERROR(api->set_device(gpu));
  TESSERA_ASSIGN_OR_RETURN(const StreamHandle handle, api->create_stream());
  return std::unique_ptr<CudaQueue>(new CudaQueue(std::move(api), gpu, handle));
}

CudaQueue::CudaQueue(std::shared_ptr<Api> api, int gpu, StreamHandle handle)
    : api_(std::move(api)),
      gpu_(gpu),
      handle_(handle),
      events_(std::make_shared<EventPool>(api_, gpu)) {}

CudaQueue::~CudaQueue() {
  if (api_->set_device(gpu_).ok()) api_->destroy_stream(handle_).IgnoreError();
}

StatusOr<Event> CudaQueue::record() {
  TESSERA_RETURN_IF_ERROR(api_->set_device(gpu_));
  TESSERA_ASSIGN_OR_RETURN(const EventHandle handle, events_->take());
  Event event(new EventHandle(handle), [pool = events_](const EventHandle* own) {
    pool->put_back(*own);
    delete own;
  });
  TESSERA_RETURN_IF_ERROR(api_->record_event(handle, handle_));
  return event;
}

Status CudaQueue::wait_for(const Event& event) {
  TESSERA_RETURN_IF_ERROR(api_->set_device(gpu_));
  return api_->wait_event(handle_, *event);
}

StatusOr<bool> CudaQueue::is_done(const Event& event) const {
  TESSERA_RETURN_IF_ERROR(api_->set_device(gpu_));
  return api_->query_event(*event);
}

Status CudaQueue::wait(const Event& event, absl::Time deadline) const {
  TESSERA_RETURN_IF_ERROR(api_->set_device(gpu_));
  Nap nap;
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const bool done, api_->query_event(*event));
    if (done) return absl::OkStatus();
    if (steady_now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("GPU ", gpu_, " is still busy with earlier work"));
    }
    nap.take();
  }
}

Status CudaQueue::wait_done(absl::Time deadline) {
  TESSERA_ASSIGN_OR_RETURN(const Event event, record());
  return wait(event, deadline);
}

StatusOr<std::unique_ptr<CudaStream>> CudaStream::create(std::shared_ptr<Api> api, int gpu,
                                                         StreamObserver* observer) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<CudaQueue> queue,
                           CudaQueue::create(std::move(api), gpu));
  std::unique_ptr<CudaStream> stream(new CudaStream(std::move(queue)));
  const std::string subject = absl::StrCat("a device on GPU ", gpu);
  TESSERA_ASSIGN_OR_RETURN(stream->issuer_, CpuStream::create(subject, observer));
  TESSERA_ASSIGN_OR_RETURN(stream->reaper_,
                           start_thread(subject, [self = stream.get()] { self->reap(); }));
  return stream;
}

void CudaStream::enqueue(std::string label, Task task, const void* /*key*/, Wake /*wake*/,
                         Placed placed) {
  auto issue = [this, task = std::move(task)]() mutable -> Status {
    // A stream that was stopped runs tasks on any thread.
    const Status status = begin_task();
    // The task runs all the same: what waits for it must get the error.
    const Status result = task();
    task = nullptr;
    return status.ok() ? result : status;
  };
  issuer_->enqueue(std::move(label), std::move(issue), nullptr, Wake::kNow, placed);
}

Status CudaStream::begin_task() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    // Failed work is known to have failed before a task looks at it.
    changed_.wait(lock, [this] { return num_failing_ == 0; });
    task_error_ = lost_;
  }
  return queue_->api()->set_device(queue_->gpu());
}

void CudaStream::report(const Status& error) {
  std::lock_guard<std::mutex> lock(mutex_);
  first_error_.Update(error);
}

Status CudaStream::task_error() {
  std::lock_guard<std::mutex> lock(mutex_);
  return task_error_;
}

void CudaStream::when_done(DoneFn fn, OnFailure on_failure) {
  StatusOr<Event> event = queue_->record();
  if (!event.ok()) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      first_error_.Update(event.status());
    }
    return fn(event.status());
  }
  Pending pending = {*event, std::make_shared<DoneFn>(std::move(fn)), on_failure};
  const std::shared_ptr<DoneFn> shared = pending.fn;
  Status error;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    pending.error = task_error_;
    first_error_.Update(task_error_);
    const bool fails_now = !task_error_.ok() && (on_failure == OnFailure::kAtOnce || !lost_.ok());
    pending.called = fails_now;
    error = task_error_;
    if (!stopping_) {
      pending_.push_back(std::move(pending));
      changed_.notify_all();
      if (!fails_now) return;
    }
  }
  (*shared)(error.ok() ? queue_->wait(*event, steady_now() + kStopLimit) : error);
}

void CudaStream::fail_given(const Status& error) {
  std::vector<std::shared_ptr<DoneFn>> fns;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    task_error_.Update(error);
    ++num_failing_;
    for (Pending& pending : pending_) {
      if (pending.called) continue;
      pending.error.Update(error);
      first_error_.Update(error);
      pending.called = pending.on_failure == OnFailure::kAtOnce || !lost_.ok();
      if (pending.called) fns.push_back(pending.fn);
    }
  }
  for (const auto& fn : fns) (*fn)(error);
  fns.clear();
  std::lock_guard<std::mutex> lock(mutex_);
  --num_failing_;
  changed_.notify_all();
}

void CudaStream::lose(const Status& error) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    lost_.Update(error);
  }
  fail_given(error);
}

std::optional<absl::string_view> CudaStream::task_here() const {
  if (reaper_.is_current()) return absl::string_view();
  return issuer_->task_here();
}

Status CudaStream::sync() {
  const auto done = std::make_shared<Completion>();
  enqueue("sync", [this, done] {
    when_done([done](const Status& status) { done->set(status); });
    return absl::OkStatus();
  });
  Status status = issuer_->sync();
  done->wait().IgnoreError();
  std::lock_guard<std::mutex> lock(mutex_);
  status.Update(std::exchange(first_error_, absl::OkStatus()));
  return status;
}

Status CudaStream::stop_by(absl::Time deadline) {
  if (reaper_.is_current()) {
    return absl::FailedPreconditionError(
        "a stream cannot wait for its end in a callback of its own");
  }
  if (issuer_ != nullptr) TESSERA_RETURN_IF_ERROR(issuer_->stop_by(deadline));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    stop_deadline_ = std::min({stop_deadline_, deadline, steady_now() + kStopLimit});
    changed_.notify_all();
  }
  std::lock_guard<std::mutex> lock(join_mutex_);
  if (reaper_.joinable()) reaper_.join();
  return absl::OkStatus();
}

absl::Time CudaStream::reap_deadline() {
  std::lock_guard<std::mutex> lock(mutex_);
  return stop_deadline_;
}

Status CudaStream::reap_one(const Event& event) {
  // A wait looks this often whether the stream is being stopped.
  constexpr absl::Duration kPatience = absl::Milliseconds(100);
  Status status;
  absl::Time last;
  do {
    last = reap_deadline();
    status = queue_->wait(event, std::min(last, steady_now() + kPatience));
  } while (absl::IsDeadlineExceeded(status) && steady_now() < last);
  if (absl::IsDeadlineExceeded(status)) {
    return absl::UnavailableError(
        absl::StrCat("GPU ", queue_->gpu(), " did not finish its work in ",
                     absl::FormatDuration(kStopLimit), " after the client was stopped"));
  }
  return status.ok() && gate_ != nullptr ? gate_() : status;
}

void CudaStream::reap() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !pending_.empty(); });
    if (pending_.empty()) return;
    // It stays in the queue meanwhile, where fail_given() finds it.
    const Event event = pending_.front().event;
    lock.unlock();
    const Status status = reap_one(event);
    lock.lock();
    std::shared_ptr<DoneFn> fn = std::move(pending_.front().fn);
    const bool called = pending_.front().called;
    const Status error = pending_.front().error;
    pending_.pop_front();
    if (!called) first_error_.Update(status);
    lock.unlock();
    if (!called) (*fn)(error.ok() ? status : error);
    fn = nullptr;
    lock.lock();
  }
}

}  // namespace tessera::cuda
