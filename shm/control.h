// SPDX-License-Identifier: Apache-2.0
//
// The control region: memory that the clients of a host share beside tensor data.
//
//   region of client c (a sealed memfd that every client of the host maps):
//     ControlHeader
//     DeviceActivity   one for each device of c: what its stream is doing; and one for the calls of
//                      its threads that wait (call_slot())
//     GroupSlot[]      the groups whose first member is a device of c (group_table.h)
//     unit bits        which parts of the heap are in use
//     heap             GroupBlocks, made by the first client that opens the group
//
//   GroupBlock:  device ids | MemberProgress of each member | body of the group's user
//
// The region has one lock, of the table of groups. It is robust: when its holder dies the next
// client acquires it and repairs the table. All data in the region is plain, at fixed offsets, and
// zero-initialised by the kernel.
#ifndef TESSERA_SHM_CONTROL_H_
#define TESSERA_SHM_CONTROL_H_

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shm/shared_word.h"

namespace tessera::shm {

inline constexpr uint64_t kControlBytes = uint64_t{256} << 20;  // address space; touched as used
inline constexpr uint64_t kControlMagic = 0x5445535345524133;   // "TESSERA3"
inline constexpr int kMaxGroups = 16384;
inline constexpr uint64_t kHeapUnit = 4096;  // blocks begin at multiples of it
inline constexpr int kLabelBytes = 192;

// The place of memory, in a form that every client understands.
struct SharedAddress {
  static constexpr int32_t kNull = -1;
  static constexpr int32_t kPointer = -2;  // offset is a pointer; readers are in the same process
  int32_t arena = kNull;
  int32_t client = 0;  // whose arena
  uint64_t offset = 0;
};

// The head of a block. The ids of the members' devices and their progress follow it, and then the
// body, which holds the data of the group's user.
struct alignas(64) GroupBlock {
  static constexpr size_t kLayoutBytes = 64;

  uint32_t num_members;
  std::atomic<uint64_t> generation;  // of this use of the memory, never 0 in a block that is in use
  uint64_t salt;
  uint64_t progress_offset;  // from the start of the block
  uint64_t body_offset;
  alignas(8) std::byte layout[kLayoutBytes];  // layout of the body: plain data of the group's user
  // int32_t device_ids[num_members] follows.
};

inline int32_t* device_ids(GroupBlock* block) {
  return reinterpret_cast<int32_t*>(reinterpret_cast<std::byte*>(block) + sizeof(GroupBlock));
}

// A line that its member writes after every operation. Other members hardly ever read it, so the
// write causes no cache misses on them.
struct alignas(64) MemberProgress {
  SharedWord<uint32_t> left;  // the latest operation that the member is done with
  // The fields below are guarded by the lock of the table.
  int32_t client_id;
  uint32_t is_first_of_client;
  // Used in each client's first member: how many handles the client has, and whether it has ever
  // had a handle.
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
  // For an operation of a group these words identify the block of the group: the client whose
  // region has it and its offset there (0: the device is alone in the group), and two words of the
  // writer, a hash of a name (0: none) and a count.
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
  // The table of groups: the lock. It also guards slots and units.
  alignas(64) pthread_mutex_t table_lock;
  uint32_t num_slots;   // slots from here on have never been used
  uint64_t fresh_unit;  // units from here on have never been used: they are zero
  uint64_t next_generation;
  alignas(64) std::atomic<uint32_t> life;  // see DeathWatch
};

// The places of the parts of a region, which follow from the number of its client's devices. Other
// clients compute them, because the header may have been overwritten.
inline constexpr uint64_t align64(uint64_t bytes) { return (bytes + 63) / 64 * 64; }
inline constexpr uint64_t kActivitiesOffset = align64(sizeof(ControlHeader));
inline constexpr uint64_t slots_offset(uint64_t num_devices) {
  return align64(kActivitiesOffset + (num_devices + 1) * sizeof(DeviceActivity));
}

// Whether the region belongs to a client with so many devices.
inline bool is_valid_control(const std::byte* region, int num_devices) {
  const auto* header = reinterpret_cast<const ControlHeader*>(region);
  return header->magic == kControlMagic &&
         header->num_devices == static_cast<uint32_t>(num_devices) &&
         header->activities_offset == kActivitiesOffset &&
         header->slots_offset == slots_offset(header->num_devices) &&
         header->units_offset == align64(header->slots_offset + kMaxGroups * sizeof(GroupSlot));
}

}  // namespace tessera::shm

#endif  // TESSERA_SHM_CONTROL_H_
