// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/rendezvous.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "collectives/host/activity.h"
#include "collectives/host/conflicts.h"

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

StatusOr<Rendezvous> Rendezvous::open(HostLink& link, std::vector<GroupMember> members,
                                      uint32_t num_records, uint64_t salt, const Room& room) {
  if (members.size() > kMaxMembers) {
    return absl::UnimplementedError(absl::StrCat(
        "a group of ", members.size(), " devices on one host; the most is ", kMaxMembers));
  }
  if (link.num_clients() > kMaxMembers) {
    return absl::UnimplementedError(
        absl::StrCat(link.num_clients(), " clients on one host; the most is ", kMaxMembers));
  }
  TESSERA_CHECK((num_records & (num_records - 1)) == 0, "a power of two");
  const int leader = members[0].client_id;
  const RecordLayout layout = RecordLayout::create(members.size(), num_records, room);
  const auto clear = [&](std::byte* first) { layout.clear(first, members.size()); };
  const BlockBody body = {
      layout.num_bytes(), {reinterpret_cast<const std::byte*>(&layout), sizeof(layout)}, clear};
  TESSERA_ASSIGN_OR_RETURN(GroupBlock * block,
                           link.groups_led_by(leader).open(members, salt, body));
  Rendezvous result(link, std::move(members), leader, block);
  result.held_.value = true;
  result.held_.link = link.openness();
  return result;
}

Rendezvous::Rendezvous(HostLink& link, std::vector<GroupMember> members, int leader_client,
                       GroupBlock* block)
    : link_(&link),
      members_(std::move(members)),
      leader_client_(leader_client),
      block_offset_(reinterpret_cast<std::byte*>(block) - link.control(leader_client)),
      block_(block),
      generation_(block->generation.load(std::memory_order_acquire)) {
  auto* const start = reinterpret_cast<std::byte*>(block);
  progress_ = reinterpret_cast<MemberProgress*>(start + block->progress_offset);
  const RecordLayout& layout = record_layout(*block);
  records_ = records(block);
  record_stride_ = layout.record_stride;
  entries_offset_ = layout.entries_offset;
  entry_stride_ = layout.entry_stride;
  last_record_ = layout.num_records - 1;
}

void Rendezvous::close() {
  if (!std::exchange(held_.value, false)) return;
  std::lock_guard<std::mutex> lock(held_.link->mutex);
  if (!held_.link->is_open) return;
  link_->groups_led_by(leader_client_).close(block_, generation_, members_);
}

void Rendezvous::ring_bells() {
  for (const GroupMember& member : members_) {
    bells_.push_back(&activity_slot(link_->control(member.client_id), member.ordinal));
  }
}

bool Rendezvous::sleep_while(uint32_t seq, absl::Time deadline, const Op* check,
                             absl::FunctionRef<bool(const State&)> waiting) {
  const Record own = record(seq);
  if (check == nullptr) return own.sleep_while(seq, deadline, waiting);
  check_conflicts(*this, *check);
  // In the test of all orders a wait without a deadline has no end in time.
  while (!kStepped) {
    const absl::Time is_long = steady_now() + kLongWait;
    if (own.sleep_while(seq, std::min(deadline, is_long), waiting)) return true;
    if (deadline <= is_long) return false;
    link_->note_long_wait();
  }
  return own.sleep_while(seq, deadline, waiting);
}

bool Rendezvous::all_have_passed_before(uint32_t seq) const {
  const State state = load(seq);
  if (state.is_unused()) return seq <= num_records();
  if (state.seq == seq) return true;
  return state.seq == seq_before(seq, num_records()) && is_done_by_all(state, seq);
}

bool Rendezvous::all_left(uint32_t met, uint32_t seq) const {
  // The fast path, which reads no line that a member is writing. A member leaves an operation
  // before it arrives at the next one, so if all have arrived at the previous one, all have left
  // those before it. Reading the state with their arrivals orders what they did before. Not so
  // after failures.
  const uint32_t previous = seq_before(seq, 1);
  if (previous != met && all_arrived(previous)) return true;
  for (int m = 0; m < size(); ++m) {
    // Pairs with leave(): the member has read what the caller is going to overwrite.
    if (is_later(met, progress_[m].left.load(std::memory_order_acquire))) return false;
  }
  return true;
}

void Rendezvous::fetch_lines(uint32_t seq, int member) const {
  fetch_to_write(&memory(seq).state);
  fetch_to_write(&entry(seq, member));
}

bool Rendezvous::was_freed(uint32_t seq) const {
  const State now = load(seq);
  return is_free(now, seq) || !is_later(seq, now.seq);
}

bool Rendezvous::wait_free(uint32_t seq, absl::Time deadline) {
  const auto waiting = [&](const State& state) { return !is_free(state, seq); };
  while (true) {
    // One reading: a record that has gone on to `seq` meanwhile is not waited for.
    const State now = load(seq);
    if (is_free(now, seq) || !is_later(seq, now.seq)) return true;
    if (!wait_while(now.seq, deadline, nullptr, waiting)) return false;
  }
}

bool Rendezvous::is_next(uint32_t seq) const {
  const State state = load(seq);
  if (state.seq == seq) return true;
  // On the first lap there is no operation before it.
  if (state.is_unused()) return seq <= num_records();
  return state.seq == seq_before(seq, num_records()) && is_free(state, seq);
}

Status Rendezvous::arrive(const Op& op) {
  MemberEntry& own = entry(op.seq, op.member);
  if (own.seq.load(std::memory_order_relaxed) == op.seq) return absl::OkStatus();
  // Also before the member is counted, as its place is.
  own.place.store(MemberEntry::kNoPlace, std::memory_order_relaxed);
  own.seq.store(op.seq, std::memory_order_release);
  const bool has_arrived = record(op.seq).arrive(op.seq, op.signature.inlined, own);
  return has_arrived ? absl::OkStatus() : verdict(op.seq, &op);
}

Status Rendezvous::wait_arrived(const Op& op) {
  const bool in_time = wait_while(op.seq, op.deadline, op.holds_device ? &op : nullptr,
                                  [](const State& state) { return state.phase == Phase::kOpen; });
  if (!in_time) {
    // The last member may have arrived just now: then the operation goes on.
    TESSERA_RETURN_IF_ERROR(settle_timed_out(op, From::kOpen));
  }
  if (all_arrived(op.seq)) return absl::OkStatus();
  return verdict(op.seq, &op);
}

bool Rendezvous::wait_all_arrived(uint32_t seq, absl::Time deadline,
                                  const std::atomic<bool>& has_news) {
  wait_while(seq, deadline, nullptr, [&](const State& state) {
    return state.phase == Phase::kOpen && !has_news.load(std::memory_order_seq_cst);
  });
  const State state = load(seq);
  return state.seq != seq || state.phase != Phase::kOpen;
}

bool Rendezvous::wait_for_news(uint32_t seq, absl::Time deadline,
                               absl::FunctionRef<bool()> waiting) {
  return wait_while(seq, deadline, nullptr, [&](const State& state) {
    const bool has_failed = state.phase == Phase::kFailed || state.phase == Phase::kOrphaned;
    return !has_failed && waiting();
  });
}

Status Rendezvous::finish(uint32_t seq, int num_members, Then then, const Op* op) {
  const bool is_counted = record(seq).finish(seq, num_members, then);
  return is_counted ? absl::OkStatus() : verdict(seq, op);
}

Status Rendezvous::wait_finished(const Op& op, From from) {
  Status late;
  if (!wait_left(op.seq, op.deadline)) {
    late = settle_timed_out(op, from);
    // All members of this process have arrived, and access memory that must stay valid until they
    // are done.
    if (from == From::kOpen) wait_left(op.seq, absl::InfiniteFuture());
  }
  const State state = load(op.seq);
  // A record that is used by a later operation: all members have left this one.
  if (state.seq != op.seq || state.phase == Phase::kRunning) return absl::OkStatus();
  return late.ok() ? verdict(op.seq, &op) : late;
}

bool Rendezvous::wait_left(uint32_t seq, absl::Time deadline, const std::atomic<bool>& has_news) {
  wait_while(seq, deadline, nullptr, [&](const State& state) {
    return record(seq).is_under_way(state) && !has_news.load(std::memory_order_seq_cst);
  });
  return is_finished(seq);
}

bool Rendezvous::is_finished(uint32_t seq) const {
  const State state = load(seq);
  return state.seq != seq || !record(seq).is_under_way(state);
}

bool Rendezvous::has_result(uint32_t seq) const {
  return is_finished(seq) && !is_being_settled(seq);
}

bool Rendezvous::all_are_done_with(uint32_t seq) const {
  const State state = load(seq);
  // A record is reused only when all that have arrived have acknowledged the verdict.
  if (is_later(state.seq, seq)) return true;
  if (state.seq == seq && state.is_settled() && record(seq).is_acknowledged(state)) return true;
  for (int m = 0; m < size(); ++m) {
    // Pairs with leave().
    const uint32_t left = progress_[m].left.load(std::memory_order_acquire);
    if (is_later(seq, left) && !link_->is_gone(members_[m].client_id)) {
      return false;
    }
  }
  return true;
}

uint32_t Rendezvous::newest() const {
  uint32_t newest = 0;
  for (uint32_t i = 0; i <= last_record_; ++i) {
    const State state = load(i);
    if (!state.is_unused() && (newest == 0 || is_later(state.seq, newest))) newest = state.seq;
  }
  return newest;
}

void Rendezvous::pass_over(uint32_t from, uint32_t to) {
  // The records of earlier operations have been reused.
  const bool is_far = to - from > num_records();
  for (uint32_t seq = is_far ? seq_before(to, num_records()) : from; seq != to;
       seq = seq_after(seq)) {
    const State state = load(seq);
    if (state.seq == seq && state.is_settled() && !state.has_timed_out()) acknowledge(seq);
  }
}

Rendezvous::Place Rendezvous::align(uint32_t seq, const Signature& signature) const {
  while (true) {
    const State state = load(seq);
    if (!state.is_unused() && is_later(state.seq, seq)) {
      const uint32_t last = newest();
      return {load(last).phase == Phase::kOpen ? last : seq_after(last), /*is_left_behind=*/true};
    }
    if (state.seq != seq || !state.has_timed_out() || !state.is_settled() ||
        state.phase == Phase::kSettling) {
      return {seq};
    }
    bool any = false;
    bool is_ours = false;
    for (int m = 0; m < size() && !is_ours; ++m) {
      const MemberEntry& other = entry(seq, m);
      if (other.seq.load(std::memory_order_acquire) != seq) continue;
      any = true;
      is_ours = other.signature == signature;
    }
    // The others do not wait for this member, so the record may be reused while it is read: what
    // was read is valid only if the number is still the same.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (load(seq).seq != seq) continue;
    if (!any || is_ours) return {seq};
    seq = seq_after(seq);
  }
}

std::vector<bool> Rendezvous::arrivals(uint32_t seq, const State& state) const {
  const bool all = state.phase == Phase::kRunning || state.phase == Phase::kMet;
  constexpr int kTries = kStepped ? 1 : 200;
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
