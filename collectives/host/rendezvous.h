// SPDX-License-Identifier: Apache-2.0
//
// Rendezvous: how the members of one group meet for one operation after another.
//
//   arrive ... all have arrived ... move bytes ... finish ... all have finished
//      |               |                              |
//      +--- or a verdict: one Status, written once, that every member gets ---+
//
// The state is in the control region of the first member's client (control.h), so that members
// meet by atomic operations on shared memory, in one process or in several. GroupRecords reads it;
// Rendezvous holds the block, arrives, waits and settles. Any member, and any client that notices a
// loss (verdicts.h), may settle an operation; the first one wins.
//
// Invariants:
//   1. either all members of an operation pass the arrival or none does;
//   2. members that get a verdict all get the same code and message;
//   3. an operation that failed does not change the result of the next one;
//   4. a member runs ahead of the others by num_records operations at most.
//
// Thread-safe; each member calls arrive and finish for its own operations in order.
#ifndef TESSERA_COLLECTIVES_HOST_RENDEZVOUS_H_
#define TESSERA_COLLECTIVES_HOST_RENDEZVOUS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/wait_policy.h"
#include "collectives/host/group_records.h"
#include "collectives/host/op_record.h"
#include "collectives/host/record.h"
#include "collectives/signature.h"
#include "shm/control.h"
#include "shm/group_table.h"
#include "shm/host_link.h"

namespace tessera::host {

// A handle of the group's block, which the destructor releases. The link must outlive it, except
// for the destructor: a client that has closed its link holds no handle.
class Rendezvous {
 public:
  using Op = MemberOp;
  using From = Record::From;
  using Then = Record::Then;

  // Finds or makes the group's block of `num_records` records, a power of two; a device of this
  // client must be a member. `salt` tells groups of the same devices apart that serve different
  // purposes. ResourceExhausted where the region of the first member's client is full.
  static StatusOr<Rendezvous> open(shm::HostLink& link, std::vector<shm::GroupMember> members,
                                   uint32_t num_records, uint64_t salt, const Room& room = {});
  // A view without a handle: valid while another handle keeps the block.
  explicit Rendezvous(GroupRecords records) : records_(std::move(records)) {}
  Rendezvous(Rendezvous&& other) = default;
  ~Rendezvous() { close(); }
  // Releases the handle; nothing else may be called after that.
  void close();
  bool is_open() const { return held_ != nullptr; }

  const GroupRecords& records() const { return records_; }
  // Declares that the group is used for messages. No thread waits for a single message, so a change
  // of a record also rings the bell of each member that may wait for it: the receiver's when the
  // last member arrives, the sender's when the message is finished, both when it fails.
  void ring_bells() { records_.ring_bells(); }

  // The operation that a member must do next, if its own count says `seq`. Operations that timed
  // out without the member, and that were other calls than this one, are skipped. A member that
  // missed more operations than the records hold is left behind: it joins the newest operation.
  struct Place {
    uint32_t seq = 0;
    bool is_left_behind = false;
  };
  Place align(uint32_t seq, const Signature& signature) const;
  // Acknowledges the verdicts that a member skips from `from` to `to`, if they wait for its
  // acknowledgement. Not for messages.
  void pass_over(uint32_t from, uint32_t to);

  // Waits until the record of `seq` is free for it, or was; false at the deadline. A member that
  // leaves an operation which ended at the arrival wakes no waiter, so the caller may have to call
  // this again.
  bool wait_free(uint32_t seq, absl::Time deadline);
  // Counts the member as arrived; its entry must be complete. Idempotent. Returns the verdict if
  // there is one already.
  Status arrive(const Op& op);
  // Waits until all have arrived; settles DeadlineExceeded at the deadline, and InvalidArgument
  // where a member cannot arrive because it waits elsewhere for this one.
  Status wait_arrived(const Op& op);
  // As wait_arrived(), for an operation at which this client's member has arrived, but never
  // settles it. False at the deadline, and where `has_news` was set before Record::wake();
  // true also where the operation has failed.
  bool wait_all_arrived(uint32_t seq, absl::Time deadline, const std::atomic<bool>& has_news);
  // Compares the entries of all members, once all have arrived; VerdictKind::kMismatch.
  Status check_signatures(const Op& op) {
    for (int m = 0; m < records_.size(); ++m) {
      if (records_.entry(op.seq, m).signature != op.signature) return settle_mismatch(op);
    }
    return absl::OkStatus();
  }
  // Waits while the record describes `seq`, the operation has no result and `waiting` holds. A
  // thread that ends this condition must call Record::wake() afterwards. False at the deadline.
  bool wait_for_news(uint32_t seq, absl::Time deadline, absl::FunctionRef<bool()> waiting);
  // Counts this many members' parts as done.
  Status finish(uint32_t seq, int num_members, Then then = Then::kWait, const Op* op = nullptr);
  // Waits until all have finished. At the deadline it gives up, if `from` allows it by then.
  Status wait_finished(const Op& op, From from);
  // As wait_finished(), but never settles the operation: false where the deadline passed first, or
  // `has_news` was set before Record::wake().
  bool wait_left(uint32_t seq, absl::Time deadline, const std::atomic<bool>& has_news = never());

  // Makes `error` the verdict, unless there is one or the operation is in a later phase than `from`
  // allows. Returns the verdict, OK where the operation continues. Where the record is not free for
  // `seq` yet it returns `error` and does nothing else. `op`: its deadlines bound the wait for
  // another client that settles the operation, see verdict().
  Status settle(uint32_t seq, VerdictKind kind, From from, const Status& error,
                const Op* op = nullptr);
  // settle() with a DeadlineExceeded that names the members that have not arrived.
  Status settle_timed_out(const Op& op, From from);
  // Records that the member does not need the verdict any more. Must be called once per member.
  // `member` is used only for messages. Never waits.
  void acknowledge(uint32_t seq, int member = 0) { records_.record(seq).acknowledge(seq, member); }

 private:
  static const std::atomic<bool>& never() {
    static const std::atomic<bool> kNever = false;
    return kNever;
  }
  // settle() with an error that try_settle() builds (verdicts.h).
  Status settle_with(uint32_t seq, VerdictKind kind, From from, const Op* op,
                     absl::FunctionRef<Status(const State& before)> make_error);
  // Waits until the settling client has settled the operation. Orphans it where that client is
  // lost. Returns how long it has waited in vain, zero where the operation is settled.
  absl::Duration wait_settled(uint32_t seq, const Op* op);
  // Waits while `waiting(state)` holds and the record describes `seq`; false at the deadline.
  template <class Waiting>
  bool wait_while(uint32_t seq, absl::Time deadline, const Op* check, Waiting waiting) {
    const auto is_over = [&] {
      const State state = records_.record(seq).load(std::memory_order_acquire);
      return state.seq != seq || !waiting(state);
    };
    // In the test of all orders a look at the word is a step, and a spin would be many.
    if (!shm::kStepped && wait_briefly(records_.link().wait_policy(), is_over)) return true;
    return sleep_while(seq, deadline, check, waiting);
  }
  // The last stage of that wait. Checks `check` for circles before the sleep, since a circle never
  // ends by itself.
  bool sleep_while(uint32_t seq, absl::Time deadline, const Op* check,
                   absl::FunctionRef<bool(const State&)> waiting);
  // The verdict of an operation that has failed, or is about to. Waits for a stopped settler until
  // shortly after the deadline of `op`, and not for ever; then DeadlineExceeded names the settler.
  Status verdict(uint32_t seq, const Op* op = nullptr);
  Status settle_mismatch(const Op& op);

  GroupRecords records_;
  std::shared_ptr<shm::HostLink::Openness> held_;  // null: there is no handle to release
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_RENDEZVOUS_H_
