// SPDX-License-Identifier: Apache-2.0
//
// Record: the life of one OpRecord of a group, as changes of its state word, and the sleep of the
// threads that wait for a change.
//
//   kOpen ---- the last arrive() ----> kRunning or kMet       free once all have finished or left
//     |                                      |
//     +------------- claim() --------------+-+
//                       |
//                   kSettling -- settle() -----> kFailed      free once all have acknowledged
//                       +------- its client is lost ---> kOrphaned          the same
//
// GroupRecords knows members and clients. Facts that are not in the word are passed as arguments,
// and as functions where they are needed seldom, so that a change touches no additional cache line.
// Invariants 1, 2, 5 and 7 of op_record.h. A view. Thread-safe; no function waits except
// sleep_while().
#ifndef TESSERA_COLLECTIVES_HOST_RECORD_H_
#define TESSERA_COLLECTIVES_HOST_RECORD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/host/op_record.h"
#include "shm/control.h"

namespace tessera::host {

class Record {
 public:
  // The phases that a verdict may end. kRunning is allowed only where members may give up while
  // others still access their memory.
  enum class From { kOpen, kRunning };
  // With kLeave the member returns OK whatever the others do: it reads no verdict of a later
  // failure, and does not acknowledge one.
  enum class Then { kWait, kLeave };
  // Whether all members have left the operation, which is in kMet.
  using AllLeft = absl::FunctionRef<bool(uint32_t met)>;

  // `bells`: in a record of messages the bells of the sender and the receiver; else empty. They
  // must outlive it.
  Record(OpRecord& memory, size_t num_members, absl::Span<shm::DeviceActivity* const> bells)
      : memory_(&memory), num_members_(static_cast<uint32_t>(num_members)), bells_(bells) {}

  OpRecord& memory() const { return *memory_; }
  State load(std::memory_order order = std::memory_order_seq_cst) const {
    return State::unpack(memory_->state.load(order));
  }

  // Whether the operation that `state` describes still waits for members to finish.
  bool is_under_way(const State& state) const {
    return state.phase <= Phase::kRunning && state.finished < num_members_;
  }
  // Whether all members have acknowledged the verdict of the operation that `state` describes.
  bool is_acknowledged(const State& state) const {
    constexpr uint32_t kBoth = 3;
    return state.finished == (is_for_messages() ? kBoth : num_members_);
  }
  // Whether all members are done with the operation that `state` describes, which is not the
  // newest: they have finished it, have left it, or have read its verdict.
  bool is_done_by_all(const State& state, AllLeft all_left) const;
  // Whether the record in `state` may be reused for `seq`.
  bool is_free(const State& state, uint32_t seq, AllLeft all_left) const;

  // Counts the member as arrived, whose entry must be complete. False where the operation has
  // ended. Requires that the record was seen free for `seq`.
  bool arrive(uint32_t seq, bool is_inlined, MemberEntry& entry) const;
  // Counts this many members' parts as done. False where the operation is not in kRunning.
  bool finish(uint32_t seq, int num_members, Then then) const;

  // The first of two steps that settle an operation: decides which client settles it, and stops
  // further arrivals.
  struct Claim {
    enum Result {
      kMine,
      kSettled,  // another client settles it, or has; or a later operation has the record
      kGoesOn,   // it is in a later phase than `from` allows
      kNotFree,  // an earlier operation still has the record
    };
    Result result = kSettled;
    State before;  // if kMine: the state that it has ended
  };
  // `absent`: the ends of a message that have not arrived, as bits.
  Claim claim(uint32_t seq, VerdictKind kind, From from, int client, AllLeft all_left,
              absl::FunctionRef<uint32_t()> absent) const;
  // The second step: writes the verdict. False where another client has orphaned the record
  // meanwhile.
  bool settle(uint32_t seq, const Status& verdict) const;
  // Whether the operation is being settled by a client that is not lost. Orphans it otherwise.
  bool is_being_settled(uint32_t seq, absl::FunctionRef<bool(uint32_t settler)> is_lost) const;
  // The verdict, as far as it was written. After a timeout the record may be reused meanwhile: it
  // is valid only if the state still describes the operation afterwards.
  Status read_verdict(size_t most_bytes) const;
  // Counts the member as done with a verdict. `member`: for a message, the end.
  void acknowledge(uint32_t seq, int member) const;

  // The ends of a message whose bells to ring.
  enum class Ring { kSender, kReceiver, kBoth };
  // Wakes the threads that wait for a change.
  void wake(Ring ring = Ring::kBoth) const;
  // Sleeps while the record describes `seq` and `waiting(state)` holds; false at the deadline.
  bool sleep_while(uint32_t seq, absl::Time deadline,
                   absl::FunctionRef<bool(const State&)> waiting) const;

 private:
  bool is_for_messages() const { return !bells_.empty(); }
  // Replaces the state by the result of `step`, which is called again if another thread has changed
  // the state meanwhile. False where `step` decides to leave the state as it is.
  template <class Step>
  bool change(Step step) const {
    uint64_t word = memory_->state.load(std::memory_order_seq_cst);
    while (true) {
      State state = State::unpack(word);
      if (!step(state)) return false;
      if (memory_->state.compare_exchange_weak(word, state.pack(), std::memory_order_seq_cst)) {
        return true;
      }
    }
  }

  OpRecord* memory_;
  uint32_t num_members_;
  absl::Span<shm::DeviceActivity* const> bells_;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_RECORD_H_
