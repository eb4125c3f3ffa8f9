// SPDX-License-Identifier: Apache-2.0
//
// GroupTable: the groups of one control region, which its clients find, share and release.
//
//   slots   in use: key, block | free | in use: key, block | ...
//   units   1 1 1 1 0 0 1 1 1 ...      one bit for each 4 KiB of the region
//   heap    block    |   | block   |
//
// A client that uses a group has a handle of its block. Blocks are few and are seldom opened, so
// one lock and a search through the slots are enough.
//
// Invariants:
//   1. slots and units change under the lock of the region alone. It is robust: the client that
//      gets it after its holder has died makes the units from the slots again;
//   2. clients that hold a group at the same time hold the same block;
//   3. a block stays while a client holds it whose process may still use it. A client that has
//      ended, or has closed its link, holds nothing;
//   4. a block stays until every client of the group has held it, because a late client reads there
//      how an operation ended. If there is no room for another block, it is freed all the same;
//   5. each use of the memory as a block has its own generation. A client without a handle reads a
//      block only after comparing the generation, and writes to it only while it also has the lock.
//
// Thread-safe. Every wait for the lock has a deadline, because a client may be stopped while it has
// it. Once such a client was declared lost the others wait no longer than kStoppedLimit.
#ifndef TESSERA_SHM_GROUP_TABLE_H_
#define TESSERA_SHM_GROUP_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "shm/control.h"

namespace tessera::shm {

// A device of a group, and its client.
struct GroupMember {
  int device_id = 0;
  int client_id = 0;
  int ordinal = 0;
};

// The part of a block beside its members, which the group's user defines. Clients that open one
// group must pass the same.
struct BlockBody {
  uint64_t num_bytes = 0;
  // Copied into the block: at most GroupBlock::kLayoutBytes.
  absl::Span<const std::byte> layout;
  // Makes the bytes of an earlier block look unused. A body that was never used is zero, and is not
  // cleared.
  absl::FunctionRef<void(std::byte* body)> clear;
};

// Whether the members belong to more than one client.
bool are_of_several_clients(absl::Span<const GroupMember> members);

class GroupTable {
 public:
  // Whether a client will not touch the region any more.
  using IsGone = std::function<bool(int client)>;
  // The loss of a client that may have stopped while it had the lock; OK where there is none.
  using FindStopped = std::function<Status()>;

  static constexpr absl::Duration kStoppedLimit = absl::Milliseconds(100);

  // The table in the region of `leader`, as `self` uses it.
  GroupTable(std::byte* region, int leader, int self, IsGone is_gone,
             FindStopped find_stopped = nullptr, absl::Duration lock_timeout = absl::Seconds(10));

  // Makes the table in a new region, which ends with the heap and has room for the table itself
  // from `begin` on.
  static void initialize(std::byte* region, uint64_t begin);

  // Opens the group's block for this client and returns a handle; makes the block with that body if
  // it does not exist. A device of this client must be a member. `salt` tells groups of the same
  // devices apart that serve different purposes. ResourceExhausted where there is no room for the
  // block; Unavailable where another client keeps the lock for too long, with the loss of that
  // client if it is known.
  StatusOr<GroupBlock*> open(absl::Span<const GroupMember> members, uint64_t salt,
                             const BlockBody& body);
  // Releases a handle. Does nothing where the block already has another generation, because this
  // client was considered gone.
  void close(GroupBlock* block, uint64_t generation, absl::Span<const GroupMember> members);

  // The block at that offset; null if it does not have that generation. A read of the block is
  // valid only if the generation is the same afterwards.
  static GroupBlock* find(std::byte* region, uint64_t offset, uint64_t generation);
  // Calls `use` while the block cannot be freed. False if the block does not have that generation
  // any more, or the lock cannot be acquired in kStoppedLimit: other clients may wait for the
  // calling thread.
  bool with_block(GroupBlock* block, uint64_t generation, absl::FunctionRef<void()> use);

  // Blocks in use.
  int num_blocks() const;

 private:
  class Lock;

  ControlHeader& header() const { return *reinterpret_cast<ControlHeader*>(region_); }
  GroupSlot* slots() const { return reinterpret_cast<GroupSlot*>(region_ + header().slots_offset); }
  uint64_t* units() const { return reinterpret_cast<uint64_t*>(region_ + header().units_offset); }
  // The functions below require the lock.
  GroupBlock* make(absl::Span<const GroupMember> members, uint64_t salt, const BlockBody& body,
                   uint64_t key);
  // The first of `count` consecutive free units, 0 where there are none.
  uint64_t find_units(uint64_t count) const;
  void mark_units(uint64_t first, uint64_t count, bool in_use);
  void free(GroupSlot& slot);
  // Null where there is no such block.
  GroupSlot* slot_of(const GroupBlock* block) const;
  bool is_in_use(const GroupBlock* block, uint64_t generation) const;
  // Frees the blocks that no client holds. Returns whether there were any.
  bool free_unheld();
  enum class Keep { kForLateClients, kWhileHeld };
  bool is_needed(const GroupBlock& block, Keep keep) const;
  void repair();

  std::byte* const region_;
  const int leader_;
  const int self_;
  const IsGone is_gone_;
  const FindStopped find_stopped_;
  const absl::Duration lock_timeout_;  // by default far longer than anything under the lock
};

}  // namespace tessera::shm

#endif  // TESSERA_SHM_GROUP_TABLE_H_
