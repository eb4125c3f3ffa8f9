// SPDX-License-Identifier: Apache-2.0
//
// The control region: what the clients of a host share beside tensor data.
//
//   region of client c (a sealed memfd that every client of the host maps):
//     ControlHeader
//     DeviceActivity   one for each device of c: what its stream is doing; and one for the calls of
//                      its threads that wait (call_slot())
//     GroupSlot[]      the groups whose first member is a device of c (group_table.h)
//     unit bits        which parts of the heap are in use
//     heap             GroupBlocks, made by the first client that opens the group
//
//   GroupBlock:  device ids | MemberProgress of each member | OpRecord 0 | ... | OpRecord R-1
//   OpRecord:    state word, verdict | MemberEntry of each member | Outbox of each, Bulletin
//
// Operation number s of a group (1, 2, ...) lives in record s % R. Invariants:
//   1. state says which operation a record describes, how many members have arrived and finished,
//      and its phase; it changes by compare-and-swap only, so that a deadline and the last arrival
//      cannot both win;
//   2. phases go kOpen -> kRunning or kMet (all arrived), or from there to kSettling -> kFailed; in
//      kFailed the verdict is complete and never changes while the record describes s; in kMet no
//      member is waited for any more, and none counts. From kSettling on `finished` counts the
//      members that are done with s: each says so once it needs the verdict no more, and members
//      that had returned OK before (`gone`) are counted from the beginning. For messages it is a
//      bit per end; an end that had not arrived in time starts with its bit set. Where the client
//      that settles is lost in kSettling, any member takes the record to kOrphaned: the verdict
//      then follows from the state alone, because the lost client may be resumed and go on writing;
//   3. a MemberEntry is written by its member alone, before that member arrives;
//   4. operations take no lock. The one lock in the region, of the table of groups, is robust: when
//      its holder dies the next client gets it, and repairs the table;
//   5. a record goes on to operation s + R when all members are done with s: they have finished
//      it or read its verdict, or it timed out before all had arrived, after which no member need
//      arrive. In a message record, a member that had arrived must still acknowledge: otherwise it
//      would mistake the record's next message for its own. Members are done with a record in kMet
//      when all have arrived at a later operation, or when their MemberProgress says so. So every
//      record is free again once each living member has ended its part of s, whatever became of s
//      after that;
//   6. a member reuses memory that others may read only when the record says that the run is
//      finished or failed. Knowledge of a loss or of its own shutdown is not enough: a reader that
//      is held up in its copy would count itself out and return OK with other bytes. Memory that
//      others may write is not reused after a failure either (quarantine.h);
//   7. a member sleeps on `num_wakes` alone. It counts itself in num_sleepers, reads num_wakes and
//      then the state; the member that changes it looks at num_sleepers afterwards, counts
//      num_wakes up and wakes. A word that repeats itself, as parts of the state do, would lose
//      wake-ups.
//
// Everything here is plain data at fixed offsets, zero-initialised by the kernel. Operations are
// numbered 1, 2, ..., 2^32 - 1, 1, ...: 0 stands for none, and a state word of 0 for a record that
// was never used. Numbers are compared by their difference. A waiter that dies stays counted in
// num_sleepers: each later wake of the record then costs a system call.
#ifndef TESSERA_COLLECTIVES_HOST_CONTROL_H_
#define TESSERA_COLLECTIVES_HOST_CONTROL_H_

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectives/host/shared_word.h"
#include "collectives/signature.h"

namespace tessera::host {

inline constexpr uint64_t kControlBytes = uint64_t{256} << 20;  // address space; touched as used
inline constexpr uint64_t kControlMagic = 0x5445535345524132;   // "TESSERA2"
inline constexpr int kMaxGroups = 16384;
inline constexpr uint64_t kHeapUnit = 4096;  // blocks begin at multiples of it
inline constexpr int kMaxMembers = 4000;     // what the state word can count; clients as well
inline constexpr int kDetailBytes = 192;
inline constexpr int kLabelBytes = 192;
inline constexpr int kVerdictBytes = 4096;
// Inputs of up to so many bytes are stored in the entry itself.
inline constexpr int kInlineBytes = 1024;

// Where memory is, in a form that every client understands.
struct SharedAddress {
  static constexpr int32_t kNull = -1;
  static constexpr int32_t kPointer = -2;  // offset is a pointer; readers are in the same process
  int32_t arena = kNull;
  int32_t client = 0;  // whose arena
  uint64_t offset = 0;
};

struct alignas(64) MemberEntry {
  static constexpr uint16_t kNoPlace = 0xffff;

  SharedWord<uint32_t> seq;     // the operation that the rest describes; 0 while it is written
  std::atomic<uint16_t> place;  // the number of the arrival that the member has made or is making
  uint16_t label_size;          // 0: its label is the default_label() of the signature
  Signature signature;
  int64_t in_count;  // elements of `in`
  SharedAddress in;
  SharedAddress out;
  SharedAddress counts;       // all_to_all of unequal parts: int64 elements for each member
  int64_t part_count;         // where the signature's detail_hash is that of parts of so many each
  char detail[kDetailBytes];  // where the signature's detail_hash is that of a text
  char label[kLabelBytes];
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
  SharedWord<uint64_t> state;
  SharedWord<uint32_t> num_sleepers;
  SharedWord<uint32_t> num_wakes;  // the futex word
  std::atomic<int32_t> verdict_code;
  std::atomic<uint32_t> verdict_bytes;
  char verdict[kVerdictBytes];
  // MemberEntry[num_members] follows.
};

struct alignas(64) GroupBlock {
  uint32_t num_members;
  uint32_t num_records;
  std::atomic<uint64_t> generation;  // of this use of the memory, never 0 in a block that is in use
  uint64_t salt;
  uint64_t progress_offset;  // from the start of the block
  uint64_t records_offset;
  uint64_t record_stride;
  // Inside of a record: of kSmall ones texts of verdicts are cut short, and entries end before
  // their `inlined`.
  uint32_t verdict_bytes;
  uint32_t entries_offset;
  uint32_t entry_stride;
  // The sizes that the group's Room gives; 0 where it has none.
  uint32_t outbox_stride;
  uint32_t bulletin_bytes;
  uint64_t outboxes_offset;
  uint64_t bulletin_offset;
  // int32_t device_ids[num_members] follows.
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
  SharedWord<uint64_t> posted;  // seq:32 | bytes:32
  // The bytes follow.
};

// What a block's records have room for.
struct Room {
  Records records = Records::kFull;
  uint32_t outbox_bytes = 0;    // for the letter of a member to other hosts
  uint32_t bulletin_bytes = 0;  // for the letters of other hosts
};

inline int32_t* device_ids(GroupBlock* block) {
  return reinterpret_cast<int32_t*>(reinterpret_cast<std::byte*>(block) + sizeof(GroupBlock));
}

// A line that its member writes after every operation, and others hardly ever read: to write it
// takes nothing from them.
struct alignas(64) MemberProgress {
  SharedWord<uint32_t> left;  // the latest operation that the member is done with
  // The fields below are guarded by the lock of the table.
  int32_t client_id;
  uint32_t is_first_of_client;
  // Used in each client's first member: how many handles the client has, and whether it ever had
  // one.
  uint32_t num_handles;
  uint32_t was_opened;
  // The member's next operation, as of the last handle that was released; 0: the first. Not guarded
  // by the lock: the member's client alone uses it, while it has no operation under way.
  uint32_t next_seq;
};

// Guarded by the lock of the table. The state is written last when a slot is taken and first when
// it is freed, so that a slot in use is complete wherever its writer died.
struct GroupSlot {
  enum : uint32_t { kFree, kInUse };
  std::atomic<uint32_t> state;
  uint32_t num_units;
  uint64_t key;
  uint64_t block_offset;  // from the start of the region
};

// Written by the device's stream, read by anyone: a sequence lock over relaxed words. The fields
// that change with every operation share one cache line.
struct alignas(64) DeviceActivity {
  enum Kind : uint64_t { kNothing, kRunning, kWaiting, kFinished };
  std::atomic<uint64_t> version;   // odd while it is being written
  std::atomic<uint64_t> kind;      // with flags and sequence number: pack() in activity.cc
  std::atomic<uint64_t> since_ns;  // CLOCK_MONOTONIC, one for the host
  // In a collective: the client whose region has the group, where (0: the device is alone in it),
  // the hash of the barrier's name (0: none) and the count.
  std::atomic<uint64_t> leader_client;
  std::atomic<uint64_t> block_offset;
  std::atomic<uint64_t> generation;  // of the block; it may be another group's by now
  std::atomic<uint64_t> name_hash;
  std::atomic<uint64_t> count;
  alignas(64) std::atomic<uint64_t> label[kLabelBytes / 8];
  // The thread that runs the device's messages sleeps on the bell: see ring() in activity.h.
  alignas(64) SharedWord<uint32_t> bell;
  SharedWord<uint32_t> num_bell_sleepers;
};

struct alignas(64) ControlHeader {
  uint64_t magic;
  uint32_t num_devices;
  uint64_t activities_offset;
  uint64_t slots_offset;
  uint64_t units_offset;  // uint64_t[kControlBytes / kHeapUnit / 64]; a set bit is a unit in use
  // The table of groups: the lock, and what it guards beside slots and units.
  alignas(64) pthread_mutex_t table_lock;
  uint32_t num_slots;   // slots from here on have never been used
  uint64_t fresh_unit;  // units from here on have never been used: they are zero
  uint64_t next_generation;
  alignas(64) std::atomic<uint32_t> life;  // see DeathWatch
};

// Where the parts of a region are, which follows from the number of its client's devices: other
// clients compute it, for what the header says may have been overwritten.
inline constexpr uint64_t align64(uint64_t bytes) { return (bytes + 63) / 64 * 64; }
inline constexpr uint64_t kActivitiesOffset = align64(sizeof(ControlHeader));
inline constexpr uint64_t slots_offset(uint64_t num_devices) {
  return align64(kActivitiesOffset + (num_devices + 1) * sizeof(DeviceActivity));
}

// Whether the region is that of a client with so many devices.
inline bool is_valid_control(const std::byte* region, int num_devices) {
  const auto* header = reinterpret_cast<const ControlHeader*>(region);
  return header->magic == kControlMagic &&
         header->num_devices == static_cast<uint32_t>(num_devices) &&
         header->activities_offset == kActivitiesOffset &&
         header->slots_offset == slots_offset(header->num_devices) &&
         header->units_offset == align64(header->slots_offset + kMaxGroups * sizeof(GroupSlot));
}

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_CONTROL_H_
