// SPDX-License-Identifier: Apache-2.0
//
// GroupRecords: the block of a group, from the view of one client: the members, the ring of
// records, the entries of the members and their progress.
//
//   members  0 1 2                 record s % R: operation s, or an earlier one
//   progress 7 7 6                 entry(s, m): the statement of member m about operation s
//   records  | 5 | 6 | 7 | 8 |     progress m: the latest operation that m is done with
//
// A view: valid while a handle of any client keeps the block (Rendezvous). A copy is a view of the
// same block. No function waits. Thread-safe, except ring_bells().
#ifndef TESSERA_COLLECTIVES_HOST_GROUP_RECORDS_H_
#define TESSERA_COLLECTIVES_HOST_GROUP_RECORDS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/host/op_record.h"
#include "collectives/host/record.h"
#include "collectives/label.h"
#include "collectives/signature.h"
#include "shm/control.h"
#include "shm/group_table.h"
#include "shm/host_link.h"

namespace tessera::host {

// A member's part in one operation: the data that the records and their messages need.
struct MemberOp {
  uint32_t seq = 0;
  int member = 0;
  const Label* label = nullptr;  // null or empty: the default_label() of the signature
  absl::string_view detail_field;
  // If it is `inlined`, members read each other's entries once all have arrived, and nothing else:
  // they do not call finish(), and leave() records that the member has read the entries.
  Signature signature = {};
  uint64_t name_hash = 0;    // of a named barrier
  bool holds_device = true;  // false: a message, which keeps no other operation from running
  absl::Time start = {};
  absl::Time deadline = absl::InfiniteFuture();
  // Set when the deadline of a caller that waits for the operation has passed, if the caller has
  // its own.
  const std::atomic<bool>* is_given_up = nullptr;
};

// Identifies a block of the host by its place in the control region of the leader: the first
// member's client.
struct BlockId {
  int leader_client = 0;
  uint64_t offset = 0;
  uint64_t generation = 0;
  bool operator==(const BlockId&) const = default;
};

class GroupRecords {
 public:
  // `block`: in the control region of `leader_client`.
  GroupRecords(shm::HostLink& link, std::vector<shm::GroupMember> members, int leader_client,
               shm::GroupBlock* block);
  // See Rendezvous.
  void ring_bells();

  absl::Span<const shm::GroupMember> members() const { return members_; }
  int size() const { return static_cast<int>(members_.size()); }
  shm::HostLink& link() const { return *link_; }
  const BlockId& id() const { return id_; }
  shm::GroupBlock* block() const { return block_; }
  uint32_t num_records() const { return last_record_ + 1; }

  // The number of the member's next operation, as the last handle of its client left it; 0: its
  // first. For the client of the member alone, which has no operation under way.
  uint32_t& next_seq(int member) const { return progress_[member].next_seq; }
  // The member is done with the operation, and does not read its entries any more.
  void leave(uint32_t seq, int member) const {
    progress_[member].left.store(seq, std::memory_order_release);
  }
  // Whether the member is done with it. Pairs with leave(): the member has read its entries.
  bool has_left(uint32_t seq, int member) const {
    return !is_later(seq, progress_[member].left.load(std::memory_order_acquire));
  }

  MemberEntry& entry(uint32_t seq, int member) const {
    auto* const start = reinterpret_cast<std::byte*>(&memory(seq));
    return *reinterpret_cast<MemberEntry*>(start + entries_offset_ + member * entry_stride_);
  }
  // Whether the member has not arrived at the operation.
  bool is_missing(uint32_t seq, int member) const {
    return entry(seq, member).seq.load(std::memory_order_acquire) != seq;
  }
  Record record(uint32_t seq) const { return Record(memory(seq), members_.size(), bells_); }
  State load(uint32_t seq) const { return record(seq).load(); }
  // Prefetches for writing the lines that the member is about to write. A read first would fetch
  // them twice: shared, then exclusive.
  void fetch_lines(uint32_t seq, int member) const;

  // Whether the record in `state` may be reused for `seq`, as Record::is_free().
  bool is_free(const State& state, uint32_t seq) const {
    return record(seq).is_free(state, seq, [&](uint32_t met) { return all_left(met, seq); });
  }
  // Whether all members have left the operation `met`, of phase kMet; `seq` is a later one.
  bool all_left(uint32_t met, uint32_t seq) const {
    // The fast path, which reads no line that a member is writing. A member leaves an operation
    // before it arrives at the next one. So if all have arrived at the previous operation, all have
    // left the earlier ones. Reading the state together with their arrivals orders their earlier
    // writes. This does not hold after failures.
    const uint32_t previous = seq_before(seq, 1);
    if (previous != met && all_arrived(previous)) return true;
    for (int m = 0; m < size(); ++m) {
      if (!has_left(met, m)) return false;
    }
    return true;
  }
  // Whether the record of `seq` is free for it, or was. Must be called before the entry is written,
  // or Rendezvous::wait_free() instead.
  bool was_freed(uint32_t seq) const;
  // Whether the record of `seq` describes it or will describe it next. False for an operation that
  // is queued behind others.
  bool is_next(uint32_t seq) const;
  // Whether each member is done, by its own action, with the operation that had the record of `seq`
  // before it: a verdict of `seq` then leaves no member behind.
  bool all_have_passed_before(uint32_t seq) const;

  // Whether the operation has begun, with a member that has arrived, and not all have.
  bool is_open(uint32_t seq) const {
    const State state = load(seq);
    return state.seq == seq && state.phase == Phase::kOpen;
  }
  bool all_arrived(uint32_t seq) const {
    const State state = load(seq);
    return state.seq == seq && (state.phase == Phase::kRunning || state.phase == Phase::kMet);
  }
  bool is_finished(uint32_t seq) const {
    const State state = load(seq);
    return state.seq != seq || !record(seq).is_under_way(state);
  }
  // As Record::is_being_settled().
  bool is_being_settled(uint32_t seq) const;
  // Whether it is finished, or its verdict can be read without waiting for the client that settles.
  bool has_result(uint32_t seq) const { return is_finished(seq) && !is_being_settled(seq); }
  // Whether no member accesses the memory of the operation any more: all have acknowledged its
  // verdict, or each is done with it or has ended.
  bool all_are_done_with(uint32_t seq) const;
  // Which members have arrived according to the state. Once the operation is settled this includes
  // a member that has arrived too late and has not noticed it yet.
  std::vector<bool> arrivals(uint32_t seq) const { return arrivals(seq, load(seq)); }
  // The members that `state` counts as arrived, for an operation that is being settled.
  std::vector<bool> arrivals(uint32_t seq, const State& state) const;

 private:
  OpRecord& memory(uint32_t seq) const {
    return *reinterpret_cast<OpRecord*>(records_ + (seq & last_record_) * record_stride_);
  }

  shm::HostLink* link_;
  std::vector<shm::GroupMember> members_;
  std::vector<shm::DeviceActivity*> bells_;  // of messages: of the sender and the receiver
  // Copies of the block's constant fields.
  shm::MemberProgress* progress_;
  std::byte* records_;
  uint64_t record_stride_;
  uint64_t entries_offset_;
  uint64_t entry_stride_;
  uint32_t last_record_;
  BlockId id_;
  shm::GroupBlock* block_;
};

// The newest operation that any record describes.
uint32_t newest_of(const GroupRecords& group);
// Whether the operation failed when peers might be reading or writing its memory already.
bool failed_on_the_move(const GroupRecords& group, uint32_t seq);

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_GROUP_RECORDS_H_
