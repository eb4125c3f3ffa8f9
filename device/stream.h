// SPDX-License-Identifier: Apache-2.0
//
// Stream: the in-order queue of one device.
//
//   stream.enqueue("local_map", [] { ...; return OkStatus(); });   returns at once
//   stream.sync();                                                waits; the first error since
//
// A thread that waits for a task anyway may run it itself, if it is the task's turn. That saves two
// handovers between threads, which take longer than a small task.
//
//   stream.enqueue("barrier", task, &key, Stream::Wake::kByCaller);
//   stream.run_here(&key);
//
// Invariants:
//   1. tasks run one at a time, in the order in which they were enqueued;
//   2. a task that fails does not stop the next one: errors travel in buffers, and the first one
//      since the last sync() is kept for sync().
//
// enqueue() and sync() may be called from any thread except a task of the same stream.
#ifndef TESSERA_DEVICE_STREAM_H_
#define TESSERA_DEVICE_STREAM_H_

#include <optional>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace tessera {

// Receives the activities of a stream, from the thread that runs the task: the source of "last seen
// at ..." in error messages. Calls come in pairs, one pair after the other.
class StreamObserver {
 public:
  virtual ~StreamObserver() = default;
  virtual void task_started(absl::string_view label) = 0;
  virtual void task_finished() = 0;
};

class Stream {
 public:
  using Task = absl::AnyInvocable<Status()>;

  virtual ~Stream() = default;
  // Whether the stream's own thread is woken for a task. kByCaller: the caller calls run_here()
  // next.
  enum class Wake { kNow, kByCaller };
  // `label` names the work in messages: `relayout #12 [x, -] to [-, x]`. `key` names it for
  // run_here().
  // `placed` is called before the task runs, when the order of this task and the other tasks is
  // settled. The calls are made in the order of the tasks, one at a time.
  using Placed = absl::FunctionRef<void()>;
  virtual void enqueue(std::string label, Task task, const void* key, Wake wake, Placed placed) = 0;
  void enqueue(std::string label, Task task, const void* key, Wake wake) {
    enqueue(std::move(label), std::move(task), key, wake, [] {});
  }
  void enqueue(std::string label, Task task) {
    enqueue(std::move(label), std::move(task), nullptr, Wake::kNow);
  }
  // A task that is an object of its own and lives until run() begins, so that a small operation
  // moves nothing. Its label is empty: the object itself reports its activity to observers.
  class Runnable {
   public:
    // Called as Placed is; run() is called later, as Task is.
    virtual void placed() = 0;
    virtual Status run() = 0;

   protected:
    ~Runnable() = default;
  };
  virtual void enqueue(Runnable& runnable, const void* key, Wake wake) {
    enqueue(
        std::string(), [&runnable] { return runnable.run(); }, key, wake,
        [&runnable] { runnable.placed(); });
  }
  // Runs the task of that key on this thread, if it is the next task and none is running. Returns
  // whether it did; if not, the stream's own thread runs the task.
  virtual bool run_here(const void* key) = 0;
  // Takes an idle stream for work that the calling thread does without a task, until release();
  // meanwhile tasks queue up. For work that takes less time than waking another thread.
  virtual bool try_take() { return false; }
  virtual void release() {}
  // The label of the task of this stream that the calling thread runs; nullopt where it runs none.
  // Such a thread would wait for itself in sync(), and in a wait for anything that is enqueued
  // behind the task. Callbacks of when_done() count as tasks, with the label "". Costs a few loads.
  virtual std::optional<absl::string_view> task_here() const = 0;
  // Blocks until every task enqueued before the call has run; returns and forgets the first error
  // since the last call.
  virtual Status sync() = 0;
  // For a task that gave its device work: calls `fn`, from any thread, when the device has done all
  // work that it has received so far, with the device's error if there is one. On a device that
  // does its work within tasks `fn` is called at once.
  using DoneFn = absl::AnyInvocable<void(const Status&)>;
  // Work may be known to fail before the device has finished it. kAtOnce reports the failure then,
  // while the device may still use the memory.
  enum class OnFailure { kWhenDone, kAtOnce };
  virtual void when_done(DoneFn fn, OnFailure /*on_failure*/ = OnFailure::kWhenDone) {
    fn(absl::OkStatus());
  }
  // Requests the end of the stream, so that many streams end in parallel; stop_by() waits for it.
  // Does nothing on streams that would not end sooner.
  virtual void begin_stop() {}
  // Runs the queued tasks, then ends the stream's threads.
  // - Tasks that are enqueued later run on the caller's thread, several at a time if several
  //   threads do so.
  // - OK: the threads have ended.
  // - DeadlineExceeded: tasks are left at the deadline. FailedPrecondition: the caller is a task of
  //   the stream, which would wait for itself. In both cases the stream ends after its tasks, and
  //   another call waits for that, at the latest the destructor.
  // - The destructor must not run in a task of the stream.
  virtual Status stop_by(absl::Time deadline) = 0;
  // As stop_by() without a deadline. From a task of the stream it returns at once.
  void stop() { stop_by(absl::InfiniteFuture()).IgnoreError(); }
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_STREAM_H_
