// SPDX-License-Identifier: Apache-2.0
//
// Run: one started run of a Collective, as users and streams see it. A subclass per protocol
// defines its steps.
//
//   kQueued --begin(): its turn has come-----> kStarted --complete()--> done
//      |                                          ^  a waiter's deadline passes: is_given_up()
//      +---a waiter's deadline passes---> kGivenUp ---> done; its turn still comes, to tell the
//      others
//
// In kGivenUp the caller's memory is not accessed any more.
//
// Threads. The caller makes the run and enqueues it; placed() is called in the stream's order. From
// then on the running thread owns the run until it is done: the stream's thread, a caller in
// Stream::run_here(), or the thread of the messages; one at a time. Waiters call done() and
// wait_until() from any thread. They change the stage by compare-and-swap, and use the Completion,
// the atomics and the members that do not change after placed().
#ifndef TESSERA_COLLECTIVES_HOST_RUN_H_
#define TESSERA_COLLECTIVES_HOST_RUN_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/group_backend.h"
#include "collectives/host/host_group.h"
#include "collectives/move.h"
#include "collectives/pending_work.h"
#include "collectives/work.h"
#include "device/completion.h"
#include "device/stream.h"
#include "shm/activity.h"
#include "shm/control.h"

namespace tessera::host {

// The time at which a run was called: exact, or as of the kernel's last tick, which is cheaper to
// read.
class CallTime {
 public:
  enum class Clock { kExact, kTick };
  explicit CallTime(Clock clock);

  // Exact to a tick.
  absl::Time roughly() const { return time_; }
  // Reads the clock if the call is recent and its time not exact.
  absl::Time exactly() const;
  // Start time for deadlines of a run that begins now. Uses the time of the call if that is recent
  // and the timeout is at least 1 s.
  absl::Time begun(absl::Duration timeout) const;

 private:
  const bool is_exact_;
  const absl::Time time_;
};

// The stage of a run that has not ended. The running thread and the waiters race for it.
class RunStage {
 public:
  enum class Stage { kQueued, kStarted, kGivenUp };

  // Whether the run may begin: false where a waiter has given it up.
  bool begin() {
    Stage stage = Stage::kQueued;
    return stage_.compare_exchange_strong(stage, Stage::kStarted);
  }
  // For a waiter whose deadline has passed. Returns the stage before: only one waiter gets kQueued.
  Stage give_up();
  // Whether it was given up before it began.
  bool was_given_up() const { return stage_.load() == Stage::kGivenUp; }
  // Set once a waiter's deadline has passed after the run began.
  const std::atomic<bool>& is_given_up() const { return is_given_up_; }

 private:
  std::atomic<Stage> stage_{Stage::kQueued};
  std::atomic<bool> is_given_up_{false};
};

class Run : public internal::PendingWork, public Stream::Runnable {
 public:
  using Clock = CallTime::Clock;
  Run(std::shared_ptr<HostGroup> group, int member, Collective::Ptr collective,
      Arguments&& arguments, Clock clock);

  // Puts the run into the stream of its member.
  static Work enqueue(std::shared_ptr<Run> run);

  bool done() const override;
  Status wait_until(absl::Time deadline) final;

  int member() const { return member_; }
  const Collective& collective() const { return *collective_; }
  const Arguments& arguments() const { return arguments_; }
  Arguments& arguments() { return arguments_; }
  // Whether a device moves the bytes; its work then finishes later than the task. In a barrier
  // nothing moves, so it is a run of the host in every group.
  bool is_on_device() const {
    return group_->device_mover() != nullptr && collective_->kind() != OpKind::kBarrier;
  }
  // For Stream::run_here(): the output, if there is one; others may wait for it.
  const void* key() const { return key_; }
  std::string label() const { return group_->label_of(*collective_, arguments_); }
  // An error with the label before its message.
  Status labelled(const Status& status) const;

  RunStage& run_stage() { return stage_; }
  const CallTime& called() const { return called_; }

  // Finds the memory of the Buffers; waits for the input. The output acquires its memory.
  Status find_input();
  virtual Status take_output();
  // For a barrier: waits until the member's device has done all earlier work, or the run is over.
  // DeadlineExceeded, or the error of the device.
  Status wait_for_device(absl::Time deadline) const;
  // Moves the bytes of the member's part, or gives that work to its device. `seq`: the number of
  // the operation, 0 in a group of one.
  Status move(uint32_t seq, absl::Span<const MemberMemory> members);
  // Whether the member's part was begun.
  bool has_moved() const { return has_moved_; }
  // Ends the run for its waiters. Only the first call counts.
  void complete(const Status& status);
  // Ends the task of the run. Calls complete() or, if its device moves the bytes or may do so after
  // the task has failed, completes the run when the device is done, with `status` unless that is
  // OK.
  void finish(const Status& status);
  const Completion& completion() const { return completion_; }
  // The reference of the stream or queue that the run is in, until it has run. Replaces
  // enable_shared_from_this, which costs three extra atomic operations on destruction.
  std::shared_ptr<Run>& executor_ref() { return executor_ref_; }

 protected:
  HostGroup& group() const { return *group_; }
  // The result of the task of a run that has ended with `status`. A barrier reports to its caller
  // alone; other errors are also reported by sync_devices(). Drops executor_ref(), perhaps the last
  // reference.
  Status end_task(Status status);
  // Calls `wait`, which waits until a given time and returns whether the wait is over. Reports a
  // wait that lasts for long, because no device shows the wait of a message.
  bool wait_for_message(absl::Time deadline, absl::FunctionRef<bool(absl::Time until)> wait);

 private:
  // Whether a waiter may execute the run, if it is the next run of its stream.
  virtual bool may_run_here() const { return false; }
  // Whether the run is done in time.
  virtual bool wait_in_time(absl::Time deadline);
  // The verdict of a run that was given up before it began. `device`: the activity of its device.
  virtual Status give_up(shm::DeviceActivity::Kind device, absl::Time called,
                         absl::Time deadline) = 0;
  // Ends a run that has begun, if that is still possible: the running thread completes it.
  virtual void end_late(shm::DeviceActivity::Kind device, absl::Time called,
                        absl::Time deadline) = 0;

  const std::shared_ptr<HostGroup> group_;
  const int member_;
  const Collective::Ptr collective_;
  Arguments arguments_;
  const void* key_;
  const CallTime called_;
  RunStage stage_;
  Completion completion_;
  bool has_moved_ = false;  // the running thread's
  std::shared_ptr<Run> executor_ref_;
};

// The activity that is published for a run of the Collective, without the group and the number.
shm::Activity activity_of(const Collective& collective, shm::DeviceActivity::Kind kind);

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_RUN_H_
