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
#include "base/status.h"
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

// One started call. Shared by the stream that runs it and the Works that wait for it.
//
// Stages: kQueued -> kStarted when the stream reaches it, or kQueued -> kGivenUp when a waiter's
// deadline comes first; in kGivenUp nobody touches the caller's memory any more. A message that
// was published is done when the other side has read it, which the waiter finds out by itself.
class HostOp final : public PendingWork, public Stream::Runnable, public MessagePump::Message {
 public:
  enum class Stage { kQueued, kStarted, kGivenUp };

  HostOp(std::shared_ptr<HostGroup> group, int member, GroupBackend::Fill fill);

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

  // When it was called: now, where that was a moment ago.
  absl::Time called() const;
  // When it began to run, if that is now: the time of the call where it was a moment ago, and that
  // is nothing to the timeout.
  absl::Time begun(absl::Duration timeout) const;
  // What its deadline counts from: the call, whoever finds it passed.
  absl::Time start_of(absl::Time deadline) const;
  void complete(const Status& status);
  std::string label() const;
  // An error with the label before it.
  Status labelled(const Status& status) const;

  const std::shared_ptr<HostGroup> group_;
  // The stream's reference, until it has run. Instead of enable_shared_from_this, with which an
  // object takes three more atomic operations to go.
  std::shared_ptr<HostOp> of_task_;
  CollectiveCall call_;
  // What it is to the others. The number is set as it is placed in the stream, start and deadline
  // by who runs it, and read by nobody else.
  Rendezvous::Op meeting_;
  const void* key_ = nullptr;
  // The inputs of all members lie in their entries: each member reduces all of them by itself, and
  // nobody waits for the others after the arrival. An operation that all arrived at cannot fail.
  bool inlined_ = false;
  // Exact for a message; for others that of the kernel's last tick, which is cheaper to read.
  absl::Time called_;
  std::atomic<Stage> stage_{Stage::kQueued};
  Completion published_;  // of a message: its member has arrived, or it failed before that
  absl::Time receive_deadline_ = absl::InfiniteFuture();  // of a message; set before published_
  bool is_send_ = false;
  // Of a receive: whether its deadline counts; whether it has arrived, or failed before that, and
  // waits for nothing but the sender. Accessed by the thread that runs it.
  bool is_timed_ = false;
  bool has_joined_ = false;
  Status join_status_;
  Completion completion_;
  std::atomic<bool> acknowledged_{false};
  std::vector<int64_t> peer_counts_;  // of all_to_all: what it sends, then what it receives
  // Copies of memory that peers could not reach, as long as they may.
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
  using GroupBackend::start;
  Work start(int position, Fill fill) override;
  Work start_send(int position, int peer, CollectiveCall call) override;
  Work start_recv(int position, int peer, CollectiveCall call) override;

  // Ends every operation, and gives back what the group has in memory that clients share: nothing
  // touches that afterwards. What others still read is settled as failed first. Requires that
  // close() was called and no stream of this client runs.
  void forget_ops();
  // Blocks until the others have read what this client has lent them, are lost, or the deadline
  // comes; what they have read is free then.
  void wait_until_read(absl::Time deadline);
  // Settles what is pending if `client` is a member's.
  void on_lost(int client, const Status& reason);
  void fail_pending(const Status& reason);
  // Fails what waits and what comes: the client shuts down.
  void close();

 private:
  friend class HostOp;
  friend class HostBackend;

  // A thread that has come in by a call of a user: forget_ops() waits until it has left, and it
  // must leave at once where that is over.
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
  // What an operation gets that begins too late.
  static Status too_late();
  // Gives the block of the control region back.
  void close_rendezvous();

  // How often a wait for the other members looks whether they are still there.
  static constexpr absl::Duration kLossCheckInterval = absl::Milliseconds(5);

  // An operation without its number. What others have read is let go of before.
  std::shared_ptr<HostOp> make_op(int member, Fill fill);
  std::shared_ptr<HostOp> make_op(int member, CollectiveCall&& call) {
    return make_op(member, [&](CollectiveCall& place) { place = std::move(call); });
  }
  // Gives it the next number, for its place in the stream.
  void number(HostOp& op);
  Status run(HostOp& op);
  // Whether a device moves the bytes of the operation, and is done with it later than the task.
  bool is_on_device(const HostOp& op) const;
  // Ends the task of such an operation: its Work is done when the device is, with this error if it
  // is one.
  void complete_on_device(HostOp& op, const Status& error);
  // Of a barrier: until the member's device has done all that came before.
  Status wait_for_device(const HostOp& op, absl::Time deadline);
  // The member's part, by whoever moves its bytes.
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
  // Makes `error`, which this member alone knows of, the verdict of all.
  Status fail(HostOp& op, const Rendezvous::Op& meeting, VerdictKind kind, const Status& error);
  // Waits until the record of the operation is free for it.
  Status reserve(HostOp& op, const Rendezvous::Op& meeting);
  // Says, once, that this member is done with an operation that failed.
  void acknowledge(HostOp& op);
  // What this member alone knows to be wrong with the call.
  Status local_error(HostOp& op);
  // Whether interruption() has anything to look into.
  bool may_be_interrupted() const { return closing_ || backend_.link_.any_lost(); }
  // Why no operation of the group can go on: the client shuts down, or has lost a member.
  Status interruption(const HostOp& op) const;
  // Whose client is lost, as far as this one knows.
  Status lost_member() const;
  // Settles the operation that has just arrived, if it is too late for fail_pending() to have seen
  // that.
  Status interrupted_meanwhile(const HostOp& op);
  // Where the memory of the call's Buffers is; waits for the input.
  Status find_memory(HostOp& op);
  Status lend_replica(HostOp& op);
  void hold_replica(HostOp& op, std::byte* contents);
  // The two ends of a message, of the group {sender, receiver}.
  Work enqueue_send(CollectiveCall call);
  Work enqueue_recv(CollectiveCall call);
  // Publishes a message and returns; the receiver finishes it for both.
  Status publish_message(HostOp& op);
  // Waits until the message has been received.
  Status wait_received(HostOp& op, absl::Time deadline);
  // Lets go of the messages that have been received.
  void reap_sent();
  // Counts a message that will be sent, after making sure of the thread where it may have to wait.
  // Makes what the messages of the member wait in, if it is not there. ResourceExhausted where no
  // thread can be had.
  Status prepare_to_wait(int member);
  // Lets a message wait for the other side beside its device; `placed` as it takes its place.
  Status wait_aside(std::shared_ptr<HostOp> op, Stream::Placed placed);
  Status expect_send(const HostOp& op);
  Status fill_entry(HostOp& op);
  void fill_signature(HostOp& op);
  // Says what the member's device is doing: nothing of a message, which keeps it from nothing.
  void publish_running(const HostOp& op);
  // Requires that the member's entry is filled in.
  void publish_waiting(const HostOp& op);
  void publish(const HostOp& op, DeviceActivity::Kind kind, absl::string_view label);
  // The same with the inputs of all members in their entries.
  Status meet_inlined(HostOp& op, const Rendezvous::Op& meeting);
  void reduce_inlined(const HostOp& op);
  // When a verdict may end an operation at which all have arrived: where its members use copies.
  Rendezvous::From give_up_from() const;
  // Whether members tell each other where their memory is: not that of devices of several clients.
  bool shares_addresses(const HostOp& op) const;
  // Where the others find the memory: in `copy` where they cannot reach it, which is to be filled.
  StatusOr<SharedAddress> share(HostOp& op, const void* memory, int64_t num_bytes,
                                ArenaPool::Block HostOp::Copies::*copy) const;
  using MemberMemories = absl::InlinedVector<MemberMemory, kInlineMembers>;
  StatusOr<MemberMemories> member_memory(const HostOp& op);
  // For who does not run the operation.
  Rendezvous::Op describe(const HostOp& op, absl::Time start, absl::Time deadline) const;
  // Memory of the caller's, which peers might be writing to, is not handed out again.
  void withhold_output(const HostOp& op);
  // Keeps the memory of an operation that failed while peers might be reading or writing it.
  void quarantine(HostOp& op);
  // Releases what no peer can be writing to any more.
  void reap_quarantine();
  // The verdict of an operation whose waiter's deadline has come.
  Status give_up(HostOp& op, bool is_queued, absl::Time called, absl::Time deadline);
  // What keeps an operation that is queued from its turn.
  std::string holdup_of(const HostOp& op) const;
  // The operation is done here: what others still read of it is lent to them.
  void retire(HostOp& op);
  // Whether others read the member's input.
  bool others_read_input(const HostOp& op) const;
  // Whether the member is done when its own part is: the others do no more than read its input, and
  // that is a tensor's, which nobody changes and somebody keeps beside the operation; or they do
  // not even read it. Who gives the tensor away waits until its memory is free.
  bool lends_input(const HostOp& op) const;
  // Whether no member reads the input of an operation that this client has lent any more. With a
  // `reason` that is an error a run of several clients is settled with it first.
  bool end_reading(const HostOp& op, const Status& reason);
  // Keeps the operation for those who may still read its input.
  void lend(HostOp& op);
  void push_lent(HostOp& op);
  void forget_lent();
  // Lets go of the inputs that nobody reads any more. The oldest operation whose input somebody may
  // still read, 0 where none was found.
  uint32_t reap_lent();
  StatusOr<std::shared_ptr<HostGroup>> message_group(int position, int peer, bool sends);
  // Of an operation that was never enqueued.
  Work failed(std::shared_ptr<HostOp> op, const Status& error);
  // In a forked child.
  Work refused(int position, Fill fill, const Status& error);

  HostBackend& backend_;
  const std::vector<GroupMember> members_;
  std::vector<int> device_ids_;
  bool spans_clients_ = false;
  std::optional<Rendezvous> rendezvous_;
  const std::unique_ptr<DeviceMover> mover_;
  std::atomic<bool> closing_{false};
  std::atomic<bool> forgotten_{false};  // no thread may come in any more

  // What a member of this client has done. Its operations get their numbers in the order in which
  // its stream has them: next_seq is the stream's to guard.
  struct alignas(64) Progress {
    uint32_t next_seq = 1;
    // The latest operation at which all members are known to have arrived: who comes to the one
    // after it finds the records of those before it free. Of who runs the member's operations; 0
    // for messages.
    uint32_t all_came = 0;
    // The latest operation that the member is done with, which no loss ends any more. A sender is
    // done with a message when the record says so: with those that had its record before.
    std::atomic<uint32_t> done{0};
    std::atomic<int> num_callers{0};  // see Caller
  };
  std::vector<Progress> progress_;  // by member

  // Operations that are done here, and whose input, or the copy of it, others may still read: a
  // stack to which one is added at a time, and which is taken as a whole.
  std::atomic<HostOp*> lent_{nullptr};
  std::atomic<int> num_lent_{0};  // there, or in the hands of who has taken them

  std::mutex mutex_;                                 // guards what follows
  std::vector<std::shared_ptr<HostOp>> sent_;        // messages that may not have been read yet
  uint32_t num_unread_ = 0;                          // sent_, and those still to be published
  std::vector<std::shared_ptr<HostOp>> quarantine_;  // failed while peers may still write
  std::atomic<bool> has_quarantine_{false};          // may be read without the lock
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_HOST_GROUP_H_
