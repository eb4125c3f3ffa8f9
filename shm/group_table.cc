// SPDX-License-Identifier: Apache-2.0
#include "shm/group_table.h"

#include <pthread.h>
#include <time.h>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/stable_hash.h"

namespace tessera::shm {
namespace {

constexpr uint64_t kNumUnits = kControlBytes / kHeapUnit;

MemberProgress* progress_of(const GroupBlock& block) {
  auto* const start = reinterpret_cast<std::byte*>(const_cast<GroupBlock*>(&block));
  return reinterpret_cast<MemberProgress*>(start + block.progress_offset);
}

bool is_of(GroupBlock* block, absl::Span<const GroupMember> members, uint64_t salt) {
  return block->salt == salt &&
         std::equal(members.begin(), members.end(), device_ids(block),
                    device_ids(block) + block->num_members,
                    [](const GroupMember& member, int32_t id) { return member.device_id == id; });
}

// The progress of the client's first member, which counts its handles.
MemberProgress& counts_of(GroupBlock* block, absl::Span<const GroupMember> members, int client) {
  const auto first = std::find_if(members.begin(), members.end(), [&](const GroupMember& member) {
    return member.client_id == client;
  });
  TESSERA_CHECK(first != members.end(), "a client opens the groups of its own devices");
  return progress_of(*block)[first - members.begin()];
}

}  // namespace

bool are_of_several_clients(absl::Span<const GroupMember> members) {
  return std::any_of(members.begin(), members.end(), [&](const GroupMember& member) {
    return member.client_id != members[0].client_id;
  });
}

// The lock, or why it cannot be had.
class GroupTable::Lock {
 public:
  Lock(GroupTable& table, absl::Duration timeout) : mutex_(table.header().table_lock) {
    const absl::Time deadline = steady_now() + timeout;
    Status stopped;
    int error;
    do {
      error = lock_until(std::min(deadline, steady_now() + kStoppedLimit));
      if (error == ETIMEDOUT && table.find_stopped_) stopped = table.find_stopped_();
    } while (error == ETIMEDOUT && stopped.ok() && steady_now() < deadline);
    if (error == EOWNERDEAD) {
      table.repair();
      pthread_mutex_consistent(&mutex_);
    } else if (error != 0) {
      status_ = absl::UnavailableError(
          absl::StrCat("the table of groups in the control region of client ", table.leader_,
                       " is locked by a client that does not run: ",
                       stopped.ok() ? absl::string_view(std::strerror(error)) : stopped.message()));
    }
  }
  ~Lock() {
    if (status_.ok()) pthread_mutex_unlock(&mutex_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  const Status& status() const { return status_; }

 private:
  int lock_until(absl::Time time) {
    const timespec until = absl::ToTimespec(time);
#ifdef __SANITIZE_THREAD__
    // The sanitizer of clang 14 does not know the function that follows.
    __tsan_mutex_pre_lock(&mutex_, 0);
#endif
    const int error = pthread_mutex_clocklock(&mutex_, CLOCK_MONOTONIC, &until);
#ifdef __SANITIZE_THREAD__
    const bool has_lock = error == 0 || error == EOWNERDEAD;
    __tsan_mutex_post_lock(&mutex_, has_lock ? 0 : __tsan_mutex_try_lock_failed, 0);
#endif
    return error;
  }

  pthread_mutex_t& mutex_;
  Status status_;
};

GroupTable::GroupTable(std::byte* region, int leader, int self, IsGone is_gone,
                       FindStopped find_stopped, absl::Duration lock_timeout)
    : region_(region),
      leader_(leader),
      self_(self),
      is_gone_(std::move(is_gone)),
      find_stopped_(std::move(find_stopped)),
      lock_timeout_(lock_timeout) {}

void GroupTable::initialize(std::byte* region, uint64_t begin) {
  auto& header = *reinterpret_cast<ControlHeader*>(region);
  header.slots_offset = align64(begin);
  header.units_offset = align64(header.slots_offset + kMaxGroups * sizeof(GroupSlot));
  const uint64_t heap = header.units_offset + kNumUnits / 8;
  header.fresh_unit = (heap + kHeapUnit - 1) / kHeapUnit;
  header.next_generation = 1;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&header.table_lock, &attributes);
  pthread_mutexattr_destroy(&attributes);
  GroupTable(region, 0, 0, nullptr).mark_units(0, header.fresh_unit, true);
}

StatusOr<GroupBlock*> GroupTable::open(absl::Span<const GroupMember> members, uint64_t salt,
                                       const BlockBody& body) {
  uint64_t key = salt + 1;
  for (const GroupMember& member : members) {
    const auto id = static_cast<uint32_t>(member.device_id);
    key = stable_hash(absl::MakeConstSpan(&id, 1), key);
  }
  const Lock lock(*this, lock_timeout_);
  TESSERA_RETURN_IF_ERROR(lock.status());
  GroupBlock* block = nullptr;
  for (uint32_t i = 0; i < header().num_slots && block == nullptr; ++i) {
    const GroupSlot& slot = slots()[i];
    if (slot.state.load(std::memory_order_relaxed) != GroupSlot::kInUse || slot.key != key)
      continue;
    auto* const found = reinterpret_cast<GroupBlock*>(region_ + slot.block_offset);
    if (is_of(found, members, salt)) block = found;
  }
  if (block == nullptr) block = make(members, salt, body, key);
  if (block == nullptr && free_unheld()) block = make(members, salt, body, key);
  if (block == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("too many meshes and groups of devices are in use: the ", kControlBytes >> 20,
                     " MiB in which client ", leader_,
                     " keeps them are full; drop meshes and groups that are not needed"));
  }
  MemberProgress& counts = counts_of(block, members, self_);
  ++counts.num_handles;
  counts.was_opened = 1;
  return block;
}

void GroupTable::close(GroupBlock* block, uint64_t generation,
                       absl::Span<const GroupMember> members) {
  const Lock lock(*this, lock_timeout_);
  // A handle that cannot be given back keeps its block until this client ends.
  if (!lock.status().ok() || !is_in_use(block, generation)) return;
  --counts_of(block, members, self_).num_handles;
  if (!is_needed(*block, Keep::kForLateClients)) free(*slot_of(block));
}

bool GroupTable::is_in_use(const GroupBlock* block, uint64_t generation) const {
  return slot_of(block) != nullptr &&
         block->generation.load(std::memory_order_relaxed) == generation;
}

GroupSlot* GroupTable::slot_of(const GroupBlock* block) const {
  const uint64_t offset = reinterpret_cast<const std::byte*>(block) - region_;
  GroupSlot* const end = slots() + header().num_slots;
  GroupSlot* const slot = std::find_if(slots(), end, [&](const GroupSlot& one) {
    return one.state.load(std::memory_order_relaxed) == GroupSlot::kInUse &&
           one.block_offset == offset;
  });
  return slot == end ? nullptr : slot;
}

GroupBlock* GroupTable::make(absl::Span<const GroupMember> members, uint64_t salt,
                             const BlockBody& body, uint64_t key) {
  TESSERA_CHECK(body.layout.size() <= GroupBlock::kLayoutBytes, "a block has room for its layout");
  const uint64_t n = members.size();
  const uint64_t progress_offset = align64(sizeof(GroupBlock) + n * sizeof(int32_t));
  const uint64_t body_offset = progress_offset + n * sizeof(MemberProgress);
  const uint64_t num_bytes = body_offset + body.num_bytes;
  const uint64_t count = (num_bytes + kHeapUnit - 1) / kHeapUnit;

  GroupSlot* const end = slots() + header().num_slots;
  GroupSlot* const slot = std::find_if(slots(), end, [](const GroupSlot& one) {
    return one.state.load(std::memory_order_relaxed) == GroupSlot::kFree;
  });
  if (slot == slots() + kMaxGroups) return nullptr;
  const uint64_t first = find_units(count);
  if (first == 0) return nullptr;
  mark_units(first, count, true);
  const bool is_zero = first >= header().fresh_unit;
  header().fresh_unit = std::max(header().fresh_unit, first + count);

  std::byte* const start = region_ + first * kHeapUnit;
  if (!is_zero) {
    std::memset(start, 0, body_offset);
    body.clear(start + body_offset);
  }
  auto* const block = reinterpret_cast<GroupBlock*>(start);
  block->num_members = static_cast<uint32_t>(n);
  block->salt = salt;
  block->progress_offset = progress_offset;
  block->body_offset = body_offset;
  std::copy(body.layout.begin(), body.layout.end(), block->layout);
  for (uint64_t i = 0; i < n; ++i) {
    device_ids(block)[i] = members[i].device_id;
    progress_of(*block)[i].client_id = members[i].client_id;
  }
  for (const GroupMember& member : members) {
    counts_of(block, members, member.client_id).is_first_of_client = 1;
  }
  // Spread over 64 bits: no other word in the memory of a later block is taken for it.
  const uint64_t generation = header().next_generation++ * 0x9e3779b97f4a7c15;
  block->generation.store(generation, std::memory_order_release);
  slot->num_units = static_cast<uint32_t>(count);
  slot->key = key;
  slot->block_offset = first * kHeapUnit;
  if (slot == end) ++header().num_slots;
  slot->state.store(GroupSlot::kInUse, std::memory_order_release);
  return block;
}

uint64_t GroupTable::find_units(uint64_t count) const {
  uint64_t length = 0;  // of the run of free units that ends before `unit`
  for (uint64_t unit = 0; unit < kNumUnits;) {
    const uint64_t word = units()[unit / 64] >> (unit % 64);
    const uint64_t left = 64 - unit % 64;
    const uint64_t num_free = std::min<uint64_t>(std::countr_zero(word), left);
    length += num_free;
    if (length >= count) return unit + num_free - length;
    unit += num_free;
    if (num_free == left) continue;
    length = 0;
    unit += std::countr_one(word >> num_free);
  }
  return 0;
}

void GroupTable::mark_units(uint64_t first, uint64_t count, bool in_use) {
  for (uint64_t unit = first; unit < first + count;) {
    const uint64_t length = std::min(64 - unit % 64, first + count - unit);
    const uint64_t mask = (length == 64 ? ~uint64_t{0} : (uint64_t{1} << length) - 1)
                          << (unit % 64);
    uint64_t& word = units()[unit / 64];
    word = in_use ? word | mask : word & ~mask;
    unit += length;
  }
}

void GroupTable::free(GroupSlot& slot) {
  auto* const block = reinterpret_cast<GroupBlock*>(region_ + slot.block_offset);
  // Cleared first, for readers that have no handle of the block.
  block->generation.store(0, std::memory_order_seq_cst);
  slot.state.store(GroupSlot::kFree, std::memory_order_release);
  mark_units(slot.block_offset / kHeapUnit, slot.num_units, false);
}

bool GroupTable::free_unheld() {
  bool any = false;
  for (uint32_t i = 0; i < header().num_slots; ++i) {
    GroupSlot& slot = slots()[i];
    if (slot.state.load(std::memory_order_relaxed) != GroupSlot::kInUse) continue;
    const auto* block = reinterpret_cast<const GroupBlock*>(region_ + slot.block_offset);
    if (is_needed(*block, Keep::kWhileHeld)) continue;
    free(slot);
    any = true;
  }
  return any;
}

bool GroupTable::is_needed(const GroupBlock& block, Keep keep) const {
  const MemberProgress* const progress = progress_of(block);
  return std::any_of(progress, progress + block.num_members, [&](const MemberProgress& member) {
    const bool holds = member.num_handles > 0;
    const bool may_come = keep == Keep::kForLateClients && member.was_opened == 0;
    if (member.is_first_of_client == 0 || (!holds && !may_come)) return false;
    return member.client_id == self_ || !is_gone_(member.client_id);
  });
}

void GroupTable::repair() {
  const uint64_t heap = (header().units_offset + kNumUnits / 8 + kHeapUnit - 1) / kHeapUnit;
  std::memset(units(), 0, kNumUnits / 8);
  mark_units(0, heap, true);
  for (uint32_t i = 0; i < kMaxGroups; ++i) {
    GroupSlot& slot = slots()[i];
    if (slot.state.load(std::memory_order_acquire) != GroupSlot::kInUse) continue;
    header().num_slots = std::max(header().num_slots, i + 1);
    const auto* const block = reinterpret_cast<const GroupBlock*>(region_ + slot.block_offset);
    // Its holder died while it freed the block.
    if (block->generation.load(std::memory_order_acquire) == 0) {
      slot.state.store(GroupSlot::kFree, std::memory_order_release);
      continue;
    }
    mark_units(slot.block_offset / kHeapUnit, slot.num_units, true);
  }
}

GroupBlock* GroupTable::find(std::byte* region, uint64_t offset, uint64_t generation) {
  if (generation == 0 || offset % kHeapUnit != 0 || offset == 0 ||
      offset > kControlBytes - kHeapUnit) {
    return nullptr;
  }
  auto* const block = reinterpret_cast<GroupBlock*>(region + offset);
  return block->generation.load(std::memory_order_seq_cst) == generation ? block : nullptr;
}

bool GroupTable::with_block(GroupBlock* block, uint64_t generation, absl::FunctionRef<void()> use) {
  const Lock lock(*this, kStoppedLimit);
  if (!lock.status().ok() || !is_in_use(block, generation)) return false;
  use();
  return true;
}

int GroupTable::num_blocks() const {
  return static_cast<int>(
      std::count_if(slots(), slots() + header().num_slots, [](const GroupSlot& slot) {
        return slot.state.load(std::memory_order_acquire) == GroupSlot::kInUse;
      }));
}

}  // namespace tessera::shm
