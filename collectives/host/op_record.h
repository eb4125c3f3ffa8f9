// SPDX-License-Identifier: Apache-2.0
//
// OpRecord: the memory in which the members of a group meet for one operation, in the control
// region (control.h) of the client of the first member.
//
//   GroupBlock:  device ids | MemberProgress of each member | OpRecord 0 | ... | OpRecord R-1
//   OpRecord:    state word, verdict | MemberEntry of each member | Outbox of each, Bulletin
//
// Operation number s of a group (1, 2, ...) lives in record s % R. Invariants:
//   1. state says which operation a record describes, how many members have arrived and finished,
//      and its phase; it changes by compare-and-swap only, so that a deadline and the last arrival
//      cannot both win;
//   2. phases go kOpen -> kRunning or kMet (all arrived), or from any of these to kSettling ->
//      kFailed; from kMet only for a mismatch. In kFailed the verdict is complete and never changes
//      while the record describes s. In kMet members do not wait and are not counted any more. From
//      kSettling on `finished` counts the members that are done with s: each counts itself once it
//      does not need the verdict any more, and members that had returned OK before (`gone`) are
//      counted from the beginning. For messages it is a bit per end; an end that had not arrived in
//      time starts with its bit set. Where the client that settles is lost in kSettling, any member
//      takes the record to kOrphaned: the verdict then follows from the state alone, because the
//      lost client may be resumed and continue to write;
//   3. only its member writes a MemberEntry, before that member arrives;
//   4. operations take no lock;
//   5. a record proceeds to operation s + R when all members are done with s. They have finished it
//      or read its verdict, or it timed out before all had arrived, after which no member need
//      arrive. In a message record, a member that had arrived must still acknowledge: otherwise it
//      would mistake the record's next message for its own. Members are done with a record in kMet
//      when all have arrived at a later operation, or when their MemberProgress says so. So every
//      record is free again once each living member has ended its part of s, whatever the result of
//      s;
//   6. a member reuses memory that others may read only when the record says that the run is
//      finished or failed. Knowledge of a loss or of its own shutdown is not enough: a reader that
//      is delayed in its copy would count itself out and return OK with other bytes. Memory that
//      others may write is not reused after a failure either (quarantine.h);
//   7. a member sleeps on `num_wakes` alone. It counts itself in num_sleepers, reads num_wakes and
//      then the state. The member that changes the state looks at num_sleepers afterwards,
//      increments num_wakes and wakes the sleepers. A word that takes the same value again, as
//      parts of the state do, would lose wake-ups.
//
// All data here is plain. Operations are numbered 1, 2, ..., 2^32 - 1, 1, ...: 0 means no
// operation, and a state word of 0 means a record that was never used. Numbers are compared by
// their difference. A waiter that dies stays counted in num_sleepers: each later wake of the record
// then costs a system call.
#ifndef TESSERA_COLLECTIVES_HOST_OP_RECORD_H_
#define TESSERA_COLLECTIVES_HOST_OP_RECORD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "collectives/signature.h"
#include "shm/control.h"
#include "shm/shared_word.h"

namespace tessera::host {

inline constexpr int kMaxMembers = 4000;  // limit of the state word; for clients as well
inline constexpr int kDetailBytes = 192;
inline constexpr int kVerdictBytes = 4096;
// Inputs of up to so many bytes are stored in the entry itself.
inline constexpr int kInlineBytes = 1024;

struct alignas(64) MemberEntry {
  static constexpr uint16_t kNoPlace = 0xffff;

  shm::SharedWord<uint32_t> seq;  // the operation of the other fields; 0 while they are written
  std::atomic<uint16_t> place;    // the number of the arrival that the member has made or is making
  uint16_t label_size;            // 0: its label is the default_label() of the signature
  Signature signature;
  int64_t in_count;  // elements of `in`
  shm::SharedAddress in;
  shm::SharedAddress out;
  shm::SharedAddress counts;  // all_to_all of unequal parts: int64 elements for each member
  int64_t part_count;         // if the signature's detail_hash is the hash of equal parts
  char detail[kDetailBytes];  // if the signature's detail_hash is the hash of a text
  char label[shm::kLabelBytes];
  alignas(64) std::byte inlined[kInlineBytes];
};

// The number after `seq`, and the number that its record had before.
inline uint32_t seq_after(uint32_t seq) { return seq == UINT32_MAX ? 1 : seq + 1; }
inline uint32_t seq_before(uint32_t seq, uint32_t num_records) {
  return seq == num_records ? 0 - num_records : seq - num_records;
}
inline bool is_later(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) > 0; }

enum class Phase : uint8_t { kOpen, kRunning, kMet, kSettling, kFailed, kOrphaned };

// kMismatch: every member detects it by itself, after the arrival and before it moves a byte.
enum class VerdictKind : uint8_t { kError, kTimedOut, kMismatch };

// seq:32 | arrived, gone or settler:12 | finished:12 | 0 | after_arrival:1 | kind:2 | phase:4.
struct State {
  uint32_t seq = 0;
  uint32_t arrived = 0;  // in kOpen and kMet
  uint32_t gone = 0;     // in kRunning: the finished members that read no verdict
  uint32_t finished = 0;
  Phase phase = Phase::kOpen;
  // The fields below are valid in kSettling, kFailed and kOrphaned.
  VerdictKind kind = VerdictKind::kError;
  bool after_arrival = false;  // all had arrived, members may have begun to move bytes
  uint32_t settler = 0;        // 1 + the client that settles; 0: unknown

  bool is_settled() const { return phase >= Phase::kSettling; }
  // The deadline passed before all had arrived: the absent members need not acknowledge.
  bool has_timed_out() const { return kind == VerdictKind::kTimedOut && !after_arrival; }

  static State unpack(uint64_t word) {
    State state;
    state.seq = static_cast<uint32_t>(word >> 32);
    state.phase = static_cast<Phase>(word & 0xf);
    state.finished = static_cast<uint32_t>(word >> 8) & 0xfff;
    const uint32_t count = static_cast<uint32_t>(word >> 20) & 0xfff;
    (state.is_settled()               ? state.settler
     : state.phase == Phase::kRunning ? state.gone
                                      : state.arrived) = count;
    state.kind = static_cast<VerdictKind>(word >> 4 & 3);
    state.after_arrival = (word >> 6 & 1) != 0;
    return state;
  }
  uint64_t pack() const {
    const uint32_t count = is_settled() ? settler : phase == Phase::kRunning ? gone : arrived;
    return uint64_t{seq} << 32 | uint64_t{count} << 20 | uint64_t{finished} << 8 |
           uint64_t{after_arrival} << 6 | static_cast<uint64_t>(kind) << 4 |
           static_cast<uint64_t>(phase);
  }
  // The record has never described an operation.
  bool is_unused() const { return pack() == 0; }
};

struct alignas(64) OpRecord {
  shm::SharedWord<uint64_t> state;
  shm::SharedWord<uint32_t> num_sleepers;
  shm::SharedWord<uint32_t> num_wakes;  // the futex word
  std::atomic<int32_t> verdict_code;
  std::atomic<uint32_t> verdict_bytes;
  char verdict[kVerdictBytes];
  // MemberEntry[num_members] follows.
};

// The size of a block's records: kSmall ones have no room for inputs in the entries.
enum class Records { kFull, kSmall };
inline constexpr uint32_t kSmallVerdictBytes = 1024;

// A member's letter to other hosts, in the records of a group over several hosts (HostMail).
struct alignas(64) Outbox {
  std::atomic<uint32_t> seq;  // of the operation whose letter waits here; 0: none
  uint32_t num_bytes;
  // The letter follows.
};
// The letters of other hosts, in such records.
struct alignas(64) Bulletin {
  shm::SharedWord<uint64_t> posted;  // seq:32 | bytes:32
  // The bytes follow.
};

// The optional parts of a block's records.
struct Room {
  Records records = Records::kFull;
  uint32_t outbox_bytes = 0;    // for the letter of a member to other hosts
  uint32_t bulletin_bytes = 0;  // for the letters of other hosts
};

// The offsets of the parts of a block's records. They are in the head of the block, so that a
// client without a handle, whose block may already belong to another group, reads nothing beyond
// the region.
struct RecordLayout {
  uint32_t num_records;
  // inside of a record; kSmall ones cut texts of verdicts short, and their entries end before
  // `inlined`
  uint32_t verdict_bytes;
  uint32_t entries_offset;
  uint32_t entry_stride;
  // The sizes from the group's Room; 0 where it has none.
  uint32_t outbox_stride;
  uint32_t bulletin_bytes;
  uint64_t outboxes_offset;
  uint64_t bulletin_offset;
  uint64_t record_stride;

  static RecordLayout create(uint64_t num_members, uint32_t num_records, const Room& room);
  uint64_t num_bytes() const { return num_records * record_stride; }
  // Makes the records at `first` look unused.
  void clear(std::byte* first, uint64_t num_members) const;
};
static_assert(sizeof(RecordLayout) <= shm::GroupBlock::kLayoutBytes);
// The clients of a group compare its bytes.
static_assert(std::has_unique_object_representations_v<RecordLayout>);

inline const RecordLayout& record_layout(const shm::GroupBlock& block) {
  return *reinterpret_cast<const RecordLayout*>(block.layout);
}
inline std::byte* records(shm::GroupBlock* block) {
  return reinterpret_cast<std::byte*>(block) + block->body_offset;
}

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_OP_RECORD_H_
