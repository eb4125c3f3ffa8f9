// SPDX-License-Identifier: Apache-2.0
//
// Rendezvous: how the members of one group meet for one operation after another.
//
//   arrive ... all have arrived ... move bytes ... finish ... all have finished
//      |               |                              |
//      +--- or a verdict: one Status, written once, that every member gets ---+
//
// The state is in the control region of the first member's client (control.h), so that members
// meet by atomic operations on shared memory, in one process or in several. Any member, and any
// client that notices a loss, may settle an operation; the first one wins.
//
// Invariants:
//   1. of one operation, either all members pass the arrival or none does;
//   2. members that get a verdict all get the same code and message;
//   3. an operation that failed does not change what the next one does;
//   4. a member runs ahead of the others by num_records operations at most.
//
// Thread-safe; each member calls arrive and finish for its own operations in order.
#ifndef TESSERA_COLLECTIVES_HOST_RENDEZVOUS_H_
#define TESSERA_COLLECTIVES_HOST_RENDEZVOUS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "base/wait_policy.h"
#include "collectives/host/control.h"
#include "collectives/host/group_table.h"
#include "collectives/host/host_link.h"
#include "collectives/host/op_record.h"
#include "collectives/host/record.h"
#include "collectives/label.h"

namespace tessera::host {

// A handle of the group's block, which the destructor releases. The link must outlive it, except
// for the destructor: a client that has closed its link holds nothing.
class Rendezvous {
 public:
  // Finds or makes the group's block of that many records, a power of two; a device of this client
  // must be a member. `salt` tells groups of the same devices apart that serve different ends.
  // ResourceExhausted where the region of the first member's client is full.
  static StatusOr<Rendezvous> open(HostLink& link, std::vector<GroupMember> members,
                                   uint32_t num_records, uint64_t salt, const Room& room = {});
  Rendezvous(Rendezvous&& other) = default;
  ~Rendezvous() { close(); }
  // Gives the handle back; nothing else may be called after that.
  void close();
  bool is_open() const { return held_.value; }
  // A Rendezvous without a handle, valid as long as this handle or another client's keeps the
  // block.
  Rendezvous view() const { return view_of(*link_, members_, leader_client_, block_); }
  static Rendezvous view_of(HostLink& link, std::vector<GroupMember> members, int leader_client,
                            GroupBlock* block) {
    return Rendezvous(link, std::move(members), leader_client, block);
  }
  // The bytes of the region that the block takes.
  uint64_t num_bytes() const { return block_->body_offset + num_records() * record_stride_; }

  // From now on the group is used for messages. No thread waits for a single message, so a change
  // of a record also rings the bell of each member that may be waiting for it: of the receiver as
  // the last member arrives, of the sender as the message is finished, of both as it fails.
  void ring_bells();

  absl::Span<const GroupMember> members() const { return members_; }
  int size() const { return static_cast<int>(members_.size()); }
  // The client whose control region has the block, and where.
  int leader_client() const { return leader_client_; }
  HostLink& link() const { return *link_; }
  GroupBlock* block() const { return block_; }
  uint64_t block_offset() const { return block_offset_; }
  uint64_t generation() const { return generation_; }
  bool is_of_same_group(const Rendezvous& other) const {
    return block_ == other.block_ && generation_ == other.generation_;
  }
  // The number of the member's next operation, as the last handle of its client left it; 0: its
  // first. For the client of the member alone, which has no operation under way.
  uint32_t next_seq(int member) const { return progress_[member].next_seq; }
  void set_next_seq(int member, uint32_t seq) { progress_[member].next_seq = seq; }
  uint32_t num_records() const { return last_record_ + 1; }
  MemberEntry& entry(uint32_t seq, int member) const {
    auto* const start = reinterpret_cast<std::byte*>(&memory(seq));
    return *reinterpret_cast<MemberEntry*>(start + entries_offset_ + member * entry_stride_);
  }

  // One operation, as far as the rendezvous needs to know it.
  struct Op {
    uint32_t seq = 0;
    int member = 0;
    const Label* label = nullptr;  // null or empty: the default_label() of the signature
    absl::string_view detail_field;
    // Where it is `inlined`, members read each other's entries once all have arrived and nothing
    // else: they do not call finish(), and leave() records that the member has read them.
    Signature signature = {};
    uint64_t name_hash = 0;    // of a named barrier
    bool holds_device = true;  // false: a message, which keeps no other operation from running
    absl::Time start = {};
    absl::Time deadline = absl::InfiniteFuture();
    // Whether a caller that waits for the operation has a deadline of its own, which has passed.
    const std::atomic<bool>* is_given_up = nullptr;
  };

  // Whether the record of `seq` is free for it, or was; and waits until it is, false at the
  // deadline. Call one of them before the entry is written. A member that leaves an operation which
  // ended at the arrival wakes no waiter: wait_free() may have to be called again.
  bool was_freed(uint32_t seq) const;
  bool wait_free(uint32_t seq, absl::Time deadline);
  // Whether the record of `seq` describes it or will describe it next: not so of an operation that
  // is queued behind others.
  bool is_next(uint32_t seq) const;
  // Whether each member is done with the operation that had the record of `seq` before it, by its
  // own doing: none of them is left behind by a verdict of `seq`.
  bool all_have_passed_before(uint32_t seq) const;
  // Counts the member as arrived; its entry must be complete. Idempotent. Returns the verdict if
  // there is one already.
  Status arrive(const Op& op);
  // Waits until all have arrived; settles DeadlineExceeded at the deadline, and InvalidArgument
  // where a member cannot arrive because it waits elsewhere for this one.
  Status wait_arrived(const Op& op);
  // As wait_arrived(), for an operation at which this client's member has arrived, but never
  // settles it. False at the deadline, and where `has_news` was set before nudge(); true also where
  // the operation has failed.
  bool wait_all_arrived(uint32_t seq, absl::Time deadline, const std::atomic<bool>& has_news);
  // Compares the entries of all members, once all have arrived; VerdictKind::kMismatch.
  Status check_signatures(const Op& op) {
    for (int m = 0; m < size(); ++m) {
      if (entry(op.seq, m).signature != op.signature) return settle_mismatch(op);
    }
    return absl::OkStatus();
  }
  // Waits while the record describes `seq`, the operation has no result and `waiting` holds; what
  // ends that calls nudge() afterwards. False at the deadline.
  bool wait_for_news(uint32_t seq, absl::Time deadline, absl::FunctionRef<bool()> waiting);
  // Whether the operation has begun, with a member that has arrived, and not all have.
  bool is_open(uint32_t seq) const {
    const State state = load(seq);
    return state.seq == seq && state.phase == Phase::kOpen;
  }
  // The member is done with the operation, and does not read its entries any more.
  void leave(uint32_t seq, int member) {
    progress_[member].left.store(seq, std::memory_order_release);
  }
  // Whether it is, as reports of long waits say it.
  bool has_left(uint32_t seq, int member) const {
    return !is_later(seq, progress_[member].left.load(std::memory_order_acquire));
  }
  // Counts this many members' parts as done.
  using Then = Record::Then;
  Status finish(uint32_t seq, int num_members, Then then = Then::kWait, const Op* op = nullptr);
  using From = Record::From;
  // Waits until all have finished. At the deadline it gives up, if `from` allows it by then.
  Status wait_finished(const Op& op, From from);

  // The same, but never settles the operation: false where the deadline came first, or `has_news`
  // was set before nudge().
  bool wait_left(uint32_t seq, absl::Time deadline) { return wait_left(seq, deadline, never()); }
  bool wait_left(uint32_t seq, absl::Time deadline, const std::atomic<bool>& has_news);
  // Wakes the members that sleep in the operation, which look at their `has_news`.
  void nudge(uint32_t seq) { record(seq).wake(); }

  // Prefetches for writing the lines that the member is about to write. A read first would fetch
  // them twice: shared, then exclusive.
  void fetch_lines(uint32_t seq, int member) const;

  bool all_arrived(uint32_t seq) const {
    const State state = load(seq);
    return state.seq == seq && (state.phase == Phase::kRunning || state.phase == Phase::kMet);
  }
  bool is_finished(uint32_t seq) const;
  // Whether it is finished, or its verdict can be read without waiting for the client that settles.
  bool has_result(uint32_t seq) const;
  // Makes `error` the verdict, unless there is one or the operation is in a later phase than `from`
  // allows. Returns the verdict, OK where the operation goes on. Where the record is not free for
  // `seq` yet it returns `error` and does nothing else. `op`: its deadlines bound the wait for
  // another client that settles it, see verdict().
  Status settle(uint32_t seq, VerdictKind kind, From from, const Status& error,
                const Op* op = nullptr);
  // As settle() with kError, for a caller that needs no verdict and may hold a lock: never waits
  // for another client that settles.
  void settle_at_once(uint32_t seq, From from, const Status& error);
  // settle_at_once() of every operation later than `done` that the member has arrived at, with its
  // label before the error. The member must know of the error already, so that it begins no other.
  void settle_arrived(int member, uint32_t done, From from, const Status& error);
  // settle() with a DeadlineExceeded that names the members that have not arrived.
  Status settle_timed_out(const Op& op, From from);
  // Records that the member needs the verdict no more. Call it once per member. `member` is used
  // for messages alone. Never waits.
  void acknowledge(uint32_t seq, int member = 0);
  // Whether the operation failed when peers might be reading or writing its memory already.
  bool failed_on_the_move(uint32_t seq) const;
  // Whether no member accesses the memory of the operation any more: all have acknowledged its
  // verdict, or each is done with it or has ended.
  bool all_are_done_with(uint32_t seq) const;
  // Which members have arrived, as the state says now. Once it is settled, also a member that has
  // arrived too late and has not noticed yet.
  std::vector<bool> arrivals(uint32_t seq) const { return arrivals(seq, load(seq)); }
  // The members that are counted in `state`, of an operation that is being settled.
  std::vector<bool> arrivals(uint32_t seq, const State& state) const;
  // Whether the member has not arrived at the operation.
  bool is_missing(uint32_t seq, int member) const {
    return entry(seq, member).seq.load(std::memory_order_acquire) != seq;
  }
  State load(uint32_t seq) const { return record(seq).load(); }

  // The operation that a member whose next one would be `seq` must do next. Operations that timed
  // out without it, and that were other calls than this one, are skipped. A member that is left
  // behind missed more than the records hold: it joins the newest operation.
  struct Place {
    uint32_t seq = 0;
    bool is_left_behind = false;
  };
  Place align(uint32_t seq, const Signature& signature) const;
  // The newest operation that any record describes.
  uint32_t newest() const;
  // Acknowledges, for a member that skips from `from` to `to`, the verdicts of the operations in
  // between that wait for it. Not for messages.
  void pass_over(uint32_t from, uint32_t to);

 private:
  // A view of a block, without a handle.
  Rendezvous(HostLink& link, std::vector<GroupMember> members, int leader_client,
             GroupBlock* block);

  static const std::atomic<bool>& never() {
    static const std::atomic<bool> kNever = false;
    return kNever;
  }
  // Member 0 sends, member 1 receives.
  bool is_for_messages() const { return !bells_.empty(); }
  OpRecord& memory(uint32_t seq) const {
    return *reinterpret_cast<OpRecord*>(records_ + (seq & last_record_) * record_stride_);
  }
  Record record(uint32_t seq) const { return Record(memory(seq), members_.size(), bells_); }
  // As the functions of Record.
  bool is_done_by_all(const State& state, uint32_t seq) const {
    return record(seq).is_done_by_all(state, [&](uint32_t met) { return all_left(met, seq); });
  }
  bool is_free(const State& state, uint32_t seq) const {
    return record(seq).is_free(state, seq, [&](uint32_t met) { return all_left(met, seq); });
  }
  // settle() with an error that is built when it has become the verdict, or cannot become one, from
  // the state that it ends.
  Status settle_with(uint32_t seq, VerdictKind kind, From from, const Op* op,
                     absl::FunctionRef<Status(const State& before)> make_error);
  // As settle_with(), but never waits: nullopt where another client settles the operation, or has
  // settled it.
  std::optional<Status> try_settle(uint32_t seq, VerdictKind kind, From from,
                                   absl::FunctionRef<Status(const State& before)> make_error);
  // Waits until what is being settled is settled. Orphans it where the settler is lost. Returns how
  // long it has waited in vain, zero where it is settled.
  absl::Duration wait_settled(uint32_t seq, const Op* op);
  // As Record::is_being_settled().
  bool is_being_settled(uint32_t seq) const;
  // Whether all members have left the operation `met`, of phase kMet; `seq` is a later one.
  bool all_left(uint32_t met, uint32_t seq) const;
  // Waits while `waiting(state)` holds and the record describes `seq`; false at the deadline.
  template <class Waiting>
  bool wait_while(uint32_t seq, absl::Time deadline, const Op* check, Waiting waiting) {
    const auto is_over = [&] {
      const State state = record(seq).load(std::memory_order_acquire);
      return state.seq != seq || !waiting(state);
    };
    // In the test of all orders a look at the word is a step, and a spin would be many.
    if (!kStepped && wait_briefly(link_->wait_policy(), is_over)) return true;
    return sleep_while(seq, deadline, check, waiting);
  }
  // The last stage of that wait. `check` is looked into for circles before the sleep, since a
  // circle never ends by itself.
  bool sleep_while(uint32_t seq, absl::Time deadline, const Op* check,
                   absl::FunctionRef<bool(const State&)> waiting);
  // The verdict of an operation that has failed, or is about to. A settler that is stopped is
  // waited for until shortly after the deadline of `op`, and not for ever; then DeadlineExceeded
  // names it.
  Status verdict(uint32_t seq, const Op* op = nullptr);
  Status settle_mismatch(const Op& op);
  // Whether there is a handle to give back: moves with it.
  struct Held {
    bool value = false;
    std::shared_ptr<HostLink::Openness> link;
    Held() = default;
    Held(Held&& other) noexcept
        : value(std::exchange(other.value, false)), link(std::move(other.link)) {}
  };

  HostLink* link_;
  std::vector<GroupMember> members_;
  int leader_client_ = 0;
  uint64_t block_offset_ = 0;
  GroupBlock* block_ = nullptr;
  Held held_;
  std::vector<DeviceActivity*> bells_;
  // Copies of the block's constant fields.
  uint64_t generation_ = 0;
  MemberProgress* progress_ = nullptr;
  std::byte* records_ = nullptr;
  uint64_t record_stride_ = 0;
  uint64_t entries_offset_ = 0;
  uint64_t entry_stride_ = 0;
  uint32_t last_record_ = 0;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_RENDEZVOUS_H_
