// SPDX-License-Identifier: Apache-2.0
//
// HostGroup: one group of devices on the host backend, as one client sees it.
#ifndef TESSERA_COLLECTIVES_HOST_HOST_GROUP_H_
#define TESSERA_COLLECTIVES_HOST_HOST_GROUP_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/group.h"
#include "collectives/host/device_mover.h"
#include "collectives/host/host_backend.h"
#include "collectives/host/message_pump.h"
#include "collectives/host/move.h"
#include "collectives/host/rendezvous.h"
#include "collectives/host/replica_loans.h"
#include "device/completion.h"
#include "device/stream.h"

namespace tessera::host {

// One started run. Shared by the stream that runs it and the Works that wait for it.
//
// Stages: kQueued -> kStarted when the stream reaches it, or kQueued -> kGivenUp when a waiter's
// deadline passes first; in kGivenUp the caller's memory is not accessed any more. A message that
// was published is done when the other side has read it; the waiter checks that itself.
//
// Threads. The caller makes the operation and enqueues it, which calls placed(). From then on the
// running thread owns it until completion_ is set: the stream's thread, a caller in run_here(), or
// the pump's for messages; one at a time. Waiters call done() and wait_until() from any thread, and
// use the atomics, the Completions and what does not change after placed().
class HostOp final : public PendingWork, public Stream::Runnable, public MessagePump::Message {
 public:
  enum class Stage { kQueued, kStarted, kGivenUp };

  HostOp(std::shared_ptr<HostGroup> group, int member, Collective::Ptr collective,
         Arguments&& arguments);

  bool done() const override;
  Status wait_until(absl::Time deadline) override;
  // As a task of the stream.
  void placed() override;
  Status run() override;
  // As one end of a message.
  absl::Time ready_at() override;
  void run_message() override;
  // For Stream::run_here(): the output, which others may wait for, where there is one.
  const void* key() const { return key_; }

 private:
  friend class HostGroup;

  // The time of the call, exact. Reads the clock if the call is recent.
  absl::Time called() const;
  // Start time for deadlines of an operation that begins now. Uses the coarse time of the call if
  // the call is recent and the timeout is at least 1 s.
  absl::Time begun(absl::Duration timeout) const;
  // What `deadline` counts from: the time of the call.
  absl::Time start_of(absl::Time deadline) const;
  void complete(const Status& status);
  std::string label() const;
  // An error with the label before it.
  Status labelled(const Status& status) const;
  bool is_message() const { return collective_->kind() == OpKind::kSendRecv; }
  bool is_barrier() const { return collective_->kind() == OpKind::kBarrier; }
  // Elements and bytes of the memory that the member uses.
  int64_t in_count() const { return collective_->in_count().value_or(0); }
  int64_t in_bytes() const { return in_count() * dtype_size(collective_->dtype()); }
  int64_t out_bytes() const {
    return collective_->out_count().value_or(0) * dtype_size(collective_->dtype());
  }

  const std::shared_ptr<HostGroup> group_;
  // The stream's reference, until it has run. Replaces enable_shared_from_this, which costs three
  // extra atomic operations on destruction.
  std::shared_ptr<HostOp> of_task_;
  const Collective::Ptr collective_;
  Arguments arguments_;
  // What the rendezvous needs to know. placed() sets the number; the running thread sets start and
  // deadline, and no other thread reads these.
  Rendezvous::Op meeting_;
  const void* key_ = nullptr;
  // The inputs of all members are in their entries: each member reduces all of them by itself, and
  // no member waits for the others after the arrival. An operation that all arrived at cannot fail.
  bool inlined_ = false;
  // Time of the call. Exact for a message; else that of the kernel's last tick, which is cheaper to
  // read.
  absl::Time called_;
  std::atomic<Stage> stage_{Stage::kQueued};
  // A waiter's deadline has passed since the operation began.
  std::atomic<bool> is_given_up_{false};
  Completion published_;  // of a message: its member has arrived, or it failed before that
  absl::Time receive_deadline_ = absl::InfiniteFuture();  // of a message; set before published_
  bool is_send_ = false;
  // Of a receive. is_timed_: start and deadline are set. has_joined_: it has arrived, or failed
  // before that, and waits for the sender alone.
  bool is_timed_ = false;
  bool has_joined_ = false;
  Status join_status_;
  Completion completion_;
  std::atomic<bool> acknowledged_{false};
  std::vector<int64_t> peer_counts_;  // of all_to_all: what it sends, then what it receives
  // Copies of memory that peers cannot map, kept as long as peers may access them.
  struct Copies {
    ArenaPool::Block in;
    ArenaPool::Block out;
    ArenaPool::Block counts;
  };
  std::optional<Copies> copies_;
  // The memory of one of them; null where there is none.
  std::byte* copy(ArenaPool::Block Copies::*which) const {
    return copies_.has_value() ? ((*copies_).*which).data() : nullptr;
  }
  std::optional<ReplicaLoans::Replica> replica_;  // until the output has it
  bool moved_ = false;                            // its part was begun
  bool lends_ = false;                            // it is done, and others may still read its input
  std::shared_ptr<HostOp> of_lent_;               // the reference of the group's lent_
  HostOp* next_lent_ = nullptr;                   // below it there
};

class HostGroup : public GroupBackend, public std::enable_shared_from_this<HostGroup> {
 public:
  // `rendezvous` is empty for a group of one; `mover` is null where memory is the host's.
  HostGroup(HostBackend& backend, std::vector<GroupMember> members,
            std::optional<Rendezvous> rendezvous, std::unique_ptr<DeviceMover> mover);
  ~HostGroup() override;

  absl::Span<const int> device_ids() const override { return device_ids_; }
  Work start(Collective::Ptr collective, Arguments arguments) override;

  // Ends every operation, and frees the group's part of the memory that clients share: it is not
  // accessed afterwards. What others still read is settled as failed first. Requires that close()
  // was called and no stream of this client runs.
  void forget_ops();
  // Releases the operations whose memory no other member accesses any more: they keep the group.
  // May be called by any thread, also after forget_ops().
  void reap();
  // Blocks until the others have read what this client has lent them, are lost, or the deadline
  // passes; what they have read is free then.
  void wait_until_read(absl::Time deadline);
  // Settles what is pending if `client` is a member's.
  void on_lost(int client, const Status& reason);
  void fail_pending(const Status& reason);
  // Fails what waits and what comes: the client shuts down.
  void close();

 private:
  friend class HostOp;
  friend class HostBackend;

  // Counts a user's thread inside the group: forget_ops() waits until it has left. After
  // forget_ops() the thread must leave at once (is_too_late()).
  class Caller {
   public:
    Caller(HostGroup& group, int member);
    ~Caller() { count_.fetch_sub(1, std::memory_order_release); }
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;
    bool is_too_late() const { return is_too_late_; }

   private:
    std::atomic<int>& count_;
    bool is_too_late_;
  };
  // The error of an operation that begins after forget_ops().
  static Status too_late();
  // Gives the block of the control region back.
  void close_rendezvous();

  // How often a wait for the other members checks whether one is lost.
  static constexpr absl::Duration kLossCheckInterval = absl::Milliseconds(5);

  // The life of a collective, as functions of this class:
  //
  //   make_op() -> number() -> run() -> meet_and_move() -> retire()
  //                              |            |
  //                              +-> fail()   +-> on failure: acknowledge(), quarantine()
  //
  // Threads. start() and number() run on the caller's thread, the latter in the stream's order.
  // run() and what it calls run on the running thread (see HostOp), of which each member has one at
  // a time. wait_received(), give_up() and the reap functions may run on any thread. on_lost() runs
  // on the thread that reports a loss; close() and forget_ops() on one that shuts the client down.
  //
  // Locks. mutex_ guards the messages and the quarantine. progress_[m] belongs to the running
  // thread of member m, except its atomics, and next_seq, which belongs to the stream's order. What
  // members share of an operation is in the Rendezvous, without a lock.

  // An operation without its number. Frees what others have read first.
  std::shared_ptr<HostOp> make_op(int member, Collective::Ptr collective, Arguments&& arguments);
  // Gives the operation the member's next number. Called as the stream places it.
  void number(HostOp& op);
  Status run(HostOp& op);
  // Whether a GPU moves the bytes of the operation. It finishes later than the task.
  bool is_on_device(const HostOp& op) const;
  // Ends the task of such an operation: its Work is done when the device is, with `error` unless
  // that is OK.
  void complete_on_device(HostOp& op, const Status& error);
  // Of a barrier: waits until the member's device has done all earlier work.
  Status wait_for_device(const HostOp& op, absl::Time deadline);
  // Moves the bytes of the member's part, or gives that work to its device.
  Status move(const HostOp& op, absl::Span<const MemberMemory> members);
  // Runs the operation on this thread, if its turn has come.
  void run_here(const HostOp& op);
  Status meet_and_move(HostOp& op);
  // Sets start and deadline of an operation that begins now.
  void start_clock(HostOp& op) const;
  // The member's part of meet() up to its arrival.
  Status join(HostOp& op, const Rendezvous::Op& meeting);
  Status prepare_and_arrive(HostOp& op, const Rendezvous::Op& meeting);
  // See MessagePump::Message.
  absl::Time send_ready_at(HostOp& op);
  absl::Time receive_ready_at(HostOp& op);
  // Of a receive whose record is free: arrives at it, unless it was given up.
  void join_receive(HostOp& op);
  Status run_alone(HostOp& op);
  Status meet(HostOp& op, const Rendezvous::Op& meeting);
  // Makes `error`, which only this member knows, the verdict of all.
  Status fail(HostOp& op, const Rendezvous::Op& meeting, VerdictKind kind, const Status& error);
  // Waits until the record of the operation is free for it.
  Status reserve(HostOp& op, const Rendezvous::Op& meeting);
  // Records that this member has read the verdict of a failed operation. Idempotent.
  void acknowledge(HostOp& op);
  // Errors that only this member can detect.
  Status local_error(HostOp& op);
  // A cheap test: false if interruption() is OK.
  bool may_be_interrupted() const { return closing_ || backend_.link_.any_lost(); }
  // Why no operation of the group can go on: the client shuts down, or a member is lost.
  Status interruption(const HostOp& op) const;
  // The loss of a member's client that this client knows of.
  Status lost_member() const;
  // Settles the operation that has just arrived if it is interrupted: fail_pending() may have run
  // before the arrival.
  Status interrupted_meanwhile(const HostOp& op);
  // Finds the memory of the run's Buffers; waits for the input.
  Status find_memory(HostOp& op);
  Status lend_replica(HostOp& op);
  void hold_replica(HostOp& op, std::byte* contents);
  // One end of a message between two members.
  Work start_message(Collective::Ptr collective, Arguments&& arguments);
  // The same of the group {sender, receiver}.
  Work enqueue_send(Collective::Ptr collective, Arguments&& arguments);
  Work enqueue_recv(Collective::Ptr collective, Arguments&& arguments);
  // Publishes a message and returns; the receiver finishes the operation for both.
  Status publish_message(HostOp& op);
  // Waits until the message has been received.
  Status wait_received(HostOp& op, absl::Time deadline);
  // Releases the messages that have been received.
  void reap_sent();
  // Makes the queue in which messages of the member wait, if there is none. ResourceExhausted where
  // its thread cannot be started.
  Status prepare_to_wait(int member);
  // Queues a message that waits for the other side without its device; calls `placed` as the
  // message takes its place.
  Status wait_aside(std::shared_ptr<HostOp> op, Stream::Placed placed);
  // Counts a message that will be sent.
  Status expect_send(const HostOp& op);
  Status fill_entry(HostOp& op);
  void fill_signature(HostOp& op);
  // Publishes what the member's device is doing. Messages do not occupy the device, and publish
  // nothing.
  void publish_running(const HostOp& op);
  // Requires that the member's entry is filled in.
  void publish_waiting(const HostOp& op);
  void publish(const HostOp& op, DeviceActivity::Kind kind, absl::string_view label);
  // meet_and_move() where the inputs of all members are in their entries.
  Status meet_inlined(HostOp& op, const Rendezvous::Op& meeting);
  void reduce_inlined(const HostOp& op);
  // The phases that a verdict may end: also kRunning in a group of several clients, whose memory is
  // then kept (quarantine()).
  Rendezvous::From give_up_from() const;
  // Whether members publish the addresses of their memory: not for GPUs of several clients.
  bool shares_addresses(const HostOp& op) const;
  // The address that peers use for `memory`. Memory that peers cannot map is replaced by `copy`,
  // which the caller fills.
  StatusOr<SharedAddress> share(HostOp& op, const void* memory, int64_t num_bytes,
                                ArenaPool::Block HostOp::Copies::*copy) const;
  using MemberMemories = absl::InlinedVector<MemberMemory, kInlineMembers>;
  StatusOr<MemberMemories> member_memory(const HostOp& op);
  // meeting_ with another start and deadline, for threads that do not run the operation.
  Rendezvous::Op describe(const HostOp& op, absl::Time start, absl::Time deadline) const;
  // Makes sure that the pool never reuses memory of the caller's that peers may still write.
  void withhold_output(const HostOp& op);
  // Keeps the memory of an operation that failed while peers might be reading or writing it.
  void quarantine(HostOp& op);
  // Releases the memory that no peer can be writing to any more.
  void reap_quarantine();
  // The verdict of an operation whose waiter's deadline has passed. `is_queued`: its device had not
  // begun it. `device`: what the device was doing then.
  Status give_up(HostOp& op, bool is_queued, DeviceActivity::Kind device, absl::Time called,
                 absl::Time deadline);
  // What the device of a member of this client is doing.
  DeviceActivity::Kind device_kind(int member) const;
  // Whether operations before this one keep the member's device from it.
  bool is_behind(const HostOp& op) const;
  // What keeps an operation that is queued from its turn.
  std::string holdup_of(const HostOp& op, DeviceActivity::Kind device) const;
  // The operation is done here: what others still read of it is lent to them.
  void retire(HostOp& op);
  // Whether others read the member's input.
  bool others_read_input(const HostOp& op) const;
  // Whether the member need not wait for the others after its own part. True if they do not read
  // its input, or if the input is a tensor's (immutable, with an owner beside the operation) and
  // they only read it. A call that gives the tensor away waits until its memory is free.
  bool lends_input(const HostOp& op) const;
  // Whether no member reads the input of an operation that this client has lent any more. With a
  // `reason` that is an error an operation of several clients is settled with it first.
  bool end_reading(const HostOp& op, const Status& reason);
  // Keeps the operation alive for members that may still read its input.
  void lend(HostOp& op);
  void push_lent(HostOp& op);
  void forget_lent();
  // Releases the inputs that no member reads any more. Returns the number of the oldest operation
  // whose input may still be read, 0 where none was found.
  uint32_t reap_lent();
  StatusOr<std::shared_ptr<HostGroup>> message_group(int position, int peer, bool sends);
  // The Work of an operation that is not enqueued because of `error`.
  Work failed(std::shared_ptr<HostOp> op, const Status& error);
  // The same in a forked child, without access to what the parent uses.
  Work refused(int member, Collective::Ptr collective, Arguments&& arguments, const Status& error);

  HostBackend& backend_;
  const std::vector<GroupMember> members_;
  std::vector<int> device_ids_;
  bool spans_clients_ = false;
  std::optional<Rendezvous> rendezvous_;
  const std::unique_ptr<DeviceMover> mover_;
  std::atomic<bool> closing_{false};
  std::atomic<bool> forgotten_{false};  // set by forget_ops(); no thread may enter any more

  // What a member of this client has done; see "Locks" above.
  struct alignas(64) Progress {
    uint32_t next_seq = 1;
    // The latest operation at which all members are known to have arrived. Members finish one
    // operation before they arrive at the next, so the records before this one are free. 0 for
    // messages.
    uint32_t all_came = 0;
    // The latest operation that the member is done with; a later loss does not end it. A sender is
    // done with a message when the record is used by a later one.
    std::atomic<uint32_t> done{0};
    std::atomic<int> num_callers{0};  // see Caller
  };
  std::vector<Progress> progress_;  // by member

  // Operations that are done here, and whose input (or its copy) others may still read: a lock-free
  // stack. Operations are pushed one by one and detached all at once.
  std::atomic<HostOp*> lent_{nullptr};
  std::atomic<int> num_lent_{0};  // on the stack, or detached by reap_lent()

  std::mutex mutex_;                                 // guards what follows
  std::vector<std::shared_ptr<HostOp>> sent_;        // messages that may not have been read yet
  uint32_t num_unread_ = 0;                          // sent_, and those still to be published
  std::vector<std::shared_ptr<HostOp>> quarantine_;  // failed while peers may still write
  std::atomic<bool> has_quarantine_{false};          // may be read without the lock
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_HOST_GROUP_H_
