// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/group_records.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "shm/activity.h"

namespace tessera::host {
namespace {

void fetch_to_write(const void* line) {
#if defined(__x86_64__)
  // The builtin compiles to this only where the compiler may assume the instruction. Processors
  // without it execute it as a no-op.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

}  // namespace

GroupRecords::GroupRecords(shm::HostLink& link, std::vector<shm::GroupMember> members,
                           int leader_client, shm::GroupBlock* block)
    : link_(&link), members_(std::move(members)), block_(block) {
  auto* const start = reinterpret_cast<std::byte*>(block);
  id_ = {.leader_client = leader_client,
         .offset = static_cast<uint64_t>(start - link.memory().control(leader_client)),
         .generation = block->generation.load(std::memory_order_acquire)};
  progress_ = reinterpret_cast<shm::MemberProgress*>(start + block->progress_offset);
  const RecordLayout& layout = record_layout(*block);
  records_ = records(block);
  record_stride_ = layout.record_stride;
  entries_offset_ = layout.entries_offset;
  entry_stride_ = layout.entry_stride;
  last_record_ = layout.num_records - 1;
}

void GroupRecords::ring_bells() {
  for (const shm::GroupMember& member : members_) {
    bells_.push_back(
        &shm::activity_slot(link_->memory().control(member.client_id), member.ordinal));
  }
}

void GroupRecords::fetch_lines(uint32_t seq, int member) const {
  fetch_to_write(&memory(seq).state);
  fetch_to_write(&entry(seq, member));
}

bool GroupRecords::was_freed(uint32_t seq) const {
  const State now = load(seq);
  return is_free(now, seq) || !is_later(seq, now.seq);
}

bool GroupRecords::is_next(uint32_t seq) const {
  const State state = load(seq);
  if (state.seq == seq) return true;
  // On the first lap there is no operation before it.
  if (state.is_unused()) return seq <= num_records();
  return state.seq == seq_before(seq, num_records()) && is_free(state, seq);
}

bool GroupRecords::all_have_passed_before(uint32_t seq) const {
  const State state = load(seq);
  if (state.is_unused()) return seq <= num_records();
  if (state.seq == seq) return true;
  return state.seq == seq_before(seq, num_records()) &&
         record(seq).is_done_by_all(state, [&](uint32_t met) { return all_left(met, seq); });
}

uint32_t newest_of(const GroupRecords& group) {
  uint32_t newest = 0;
  for (uint32_t i = 0; i < group.num_records(); ++i) {
    const State state = group.load(i);
    if (!state.is_unused() && (newest == 0 || is_later(state.seq, newest))) newest = state.seq;
  }
  return newest;
}

bool GroupRecords::is_being_settled(uint32_t seq) const {
  return record(seq).is_being_settled(seq, [this](uint32_t settler) {
    const int client = static_cast<int>(settler) - 1;
    if (client < 0 || client >= link_->members().num_clients()) return true;
    return client != link_->members().client_id() && link_->liveness().is_dead(client);
  });
}

bool failed_on_the_move(const GroupRecords& group, uint32_t seq) {
  const State state = group.load(seq);
  if (state.seq != seq || !state.is_settled()) return true;
  return state.after_arrival && state.kind != VerdictKind::kMismatch;
}

bool GroupRecords::all_are_done_with(uint32_t seq) const {
  const State state = load(seq);
  // A record is reused only when all that have arrived have acknowledged the verdict.
  if (is_later(state.seq, seq)) return true;
  if (state.seq == seq && state.is_settled() && record(seq).is_acknowledged(state)) return true;
  for (int m = 0; m < size(); ++m) {
    if (!has_left(seq, m) && !link_->liveness().is_gone(members_[m].client_id)) return false;
  }
  return true;
}

std::vector<bool> GroupRecords::arrivals(uint32_t seq, const State& state) const {
  const bool all = state.phase == Phase::kRunning || state.phase == Phase::kMet;
  constexpr int kTries = shm::kStepped ? 1 : 200;
  std::vector<bool> arrived(size(), all);
  // A member writes its place into the entry before it is counted. A member that was held up in
  // between has a place beyond those counted, or the same place as another one: it finds the record
  // settled, and then clears its place.
  for (int tries = 0; !all && tries < kTries; ++tries) {
    for (int m = 0; m < size(); ++m) {
      const MemberEntry& other = entry(seq, m);
      arrived[m] =
          other.seq.load(std::memory_order_acquire) == seq &&
          (state.is_settled() || other.place.load(std::memory_order_relaxed) <= state.arrived);
    }
    if (state.is_settled()) break;
    if (std::count(arrived.begin(), arrived.end(), true) <= static_cast<int>(state.arrived)) break;
    sched_yield();
  }
  return arrived;
}

}  // namespace tessera::host
