// SPDX-License-Identifier: Apache-2.0
//
// CudaStream: the stream of a device on a GPU, which several devices may share.
//
//   enqueue ---> tasks, one after another, on the issuing thread
//                  each gives the CUDA stream work to do, and returns at once
//   when_done -> an event after that work; the reaping thread finds it done and calls back
//
// Invariants:
//   1. the issuing thread alone gives the CUDA stream work (events excepted), so that the work is
//      in the order of the tasks;
//   2. when_done() calls back in the order of the calls, except for what fail_given() ends;
//   3. work that the GPU has done counts as done only when the gate says so.
//
// The issuing thread may run far ahead of the GPU: a task never waits for work of the GPU.
//
// Work may fail after it was given to the GPU (a peer of a group is lost while the GPU works on
// it). Later work in the stream may then have used contents that are not there. The gate detects
// this before the first such work counts as done, and fail_given() ends all of it with the error.
#ifndef TESSERA_DEVICE_CUDA_CUDA_STREAM_H_
#define TESSERA_DEVICE_CUDA_CUDA_STREAM_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "base/thread.h"
#include "device/cpu/cpu_stream.h"
#include "device/cuda/api.h"
#include "device/stream.h"

namespace tessera::cuda {

// Events of one GPU, made once and used again.
class EventPool {
 public:
  EventPool(std::shared_ptr<Api> api, int gpu) : api_(std::move(api)), gpu_(gpu) {}
  ~EventPool();
  StatusOr<EventHandle> take();
  void put_back(EventHandle event);

 private:
  const std::shared_ptr<Api> api_;
  const int gpu_;
  std::mutex mutex_;  // guards free_
  std::vector<EventHandle> free_;
};

// A place in a stream, as an event that was recorded there. The event returns to its pool with the
// last reference.
using Event = std::shared_ptr<const EventHandle>;

// A CUDA stream and its events, without threads. Thread-safe, as CUDA is. Its calls, and calls and
// destructors of Event, make its GPU the calling thread's current GPU.
class CudaQueue {
 public:
  static StatusOr<std::unique_ptr<CudaQueue>> create(std::shared_ptr<Api> api, int gpu);
  // Does not wait: the GPU still finishes the work in the queue.
  ~CudaQueue();
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  const std::shared_ptr<Api>& api() const { return api_; }
  int gpu() const { return gpu_; }
  StreamHandle handle() const { return handle_; }

  // The place after all work that the queue has received so far.
  StatusOr<Event> record();
  // Makes work that this queue receives from now on wait for that place of any queue.
  Status wait_for(const Event& event);
  // Blocks until the GPU has reached that place: OK, the GPU's error, or DeadlineExceeded.
  Status wait(const Event& event, absl::Time deadline) const;
  // Whether the GPU has reached that place; or the GPU's error.
  StatusOr<bool> is_done(const Event& event) const;
  // wait() for all work that the queue has received so far.
  Status wait_done(absl::Time deadline);

 private:
  CudaQueue(std::shared_ptr<Api> api, int gpu, StreamHandle handle);

  const std::shared_ptr<Api> api_;
  const int gpu_;
  const StreamHandle handle_;
  const std::shared_ptr<EventPool> events_;
};

class CudaStream : public Stream {
 public:
  // `observer` may be null; it must outlive the stream.
  static StatusOr<std::unique_ptr<CudaStream>> create(std::shared_ptr<Api> api, int gpu,
                                                      StreamObserver* observer);
  ~CudaStream() override { stop(); }

  using Stream::enqueue;
  void enqueue(std::string label, Task task, const void* key, Wake wake, Placed placed) override;
  // Tasks run on the issuing thread alone.
  bool run_here(const void* /*key*/) override { return false; }
  std::optional<absl::string_view> task_here() const override;
  // Also waits for the GPU, and returns its error.
  Status sync() override;
  void when_done(DoneFn fn, OnFailure on_failure = OnFailure::kWhenDone) override;
  // Waits for the GPU too, up to a limit. Work that is not done by then, or by the deadline, ends
  // with Unavailable.
  Status stop_by(absl::Time deadline) override;

  // Where tasks give the GPU work.
  CudaQueue& queue() const { return *queue_; }

  // Sets the function that the reaping thread calls for work that the GPU has done: OK, or why the
  // work does not count as done. It may call fail_given() of any stream. Must be set before the
  // first task.
  void set_gate(std::function<Status()> gate) { gate_ = std::move(gate); }
  // Ends with the error all work of the stream that is not known to be done, and the work that the
  // running task still gives it. Tasks that begin meanwhile wait until the callbacks with kAtOnce
  // have returned. Functions, and the objects that they own, are kept until the GPU is past them.
  void fail_given(const Status& error);
  // The GPU is lost: ends everything with the error at once, for good.
  void lose(const Status& error);
  // Records the error as the first since the last sync(), if there is no earlier error.
  void report(const Status& error);
  // Whether the calling thread runs a task of the stream.
  bool runs_task_here() const { return issuer_->task_here().has_value(); }
  // The error of the work that the running task gives the stream. To be called by that task.
  Status task_error();

 private:
  struct Pending {
    Event event;
    std::shared_ptr<DoneFn> fn;
    OnFailure on_failure;
    bool called = false;
    Status error = {};  // the result of the work, whatever the GPU does
  };

  explicit CudaStream(std::unique_ptr<CudaQueue> queue) : queue_(std::move(queue)) {}
  // The end of a wait: never, or the limit after stop() was called.
  absl::Time reap_deadline();
  void reap();
  Status begin_task();
  // Waits for the GPU; returns the result of the work.
  Status reap_one(const Event& event);

  const std::unique_ptr<CudaQueue> queue_;
  std::function<Status()> gate_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<Pending> pending_;
  absl::Time stop_deadline_ = absl::InfiniteFuture();
  bool stopping_ = false;  // nothing more is added to pending_
  Status first_error_;     // of the GPU, since the last sync()
  int num_failing_ = 0;    // calls of fail_given() that are calling back
  Status task_error_;
  Status lost_;

  std::mutex join_mutex_;  // held while reaper_ is joined
  Thread reaper_;
  std::unique_ptr<CpuStream> issuer_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_CUDA_STREAM_H_
