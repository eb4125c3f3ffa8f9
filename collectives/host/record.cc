// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/record.h"

#include <algorithm>
#include <string>

#include "absl/strings/string_view.h"
#include "shm/activity.h"

namespace tessera::host {

bool Record::is_done_by_all(const State& state, AllLeft all_left) const {
  if (state.phase == Phase::kRunning) return state.finished == num_members_;
  if (state.phase == Phase::kMet) return all_left(state.seq);
  const bool has_verdict = state.phase == Phase::kFailed || state.phase == Phase::kOrphaned;
  return has_verdict && is_acknowledged(state);
}

bool Record::is_free(const State& state, uint32_t seq, AllLeft all_left) const {
  if (state.is_unused()) return true;
  if (!is_later(seq, state.seq)) return false;
  if (is_done_by_all(state, all_left)) return true;
  // Free without acknowledgements if the deadline passed before all had arrived: absent members may
  // never acknowledge. Members that had all arrived are inside the operation, and read the verdict.
  const bool has_verdict = state.phase == Phase::kFailed || state.phase == Phase::kOrphaned;
  return has_verdict && state.has_timed_out() && !is_for_messages();
}

// The entry's place is written before the member is counted in the state, so that a settler that
// reads the count can tell which members it counts (GroupRecords::arrivals()).
bool Record::arrive(uint32_t seq, bool is_inlined, MemberEntry& entry) const {
  bool is_last = false;
  const bool has_arrived = change([&](State& state) {
    if (state.seq != seq) {
      const bool is_over = !state.is_unused() && is_later(state.seq, seq);
      if (is_over) return false;
      state = {.seq = seq};
    }
    if (state.phase != Phase::kOpen) return false;
    ++state.arrived;
    entry.place.store(static_cast<uint16_t>(state.arrived), std::memory_order_relaxed);
    is_last = state.arrived == num_members_;
    if (is_last) state.phase = is_inlined ? Phase::kMet : Phase::kRunning;
    return true;
  });
  if (has_arrived && is_last) wake(Ring::kReceiver);
  if (!has_arrived) entry.place.store(MemberEntry::kNoPlace, std::memory_order_relaxed);
  return has_arrived;
}

bool Record::finish(uint32_t seq, int num_members, Then then) const {
  bool is_last = false;
  const bool is_counted = change([&](State& state) {
    if (state.seq != seq || state.phase != Phase::kRunning) return false;
    state.finished += num_members;
    if (then == Then::kLeave) ++state.gone;
    is_last = state.finished == num_members_;
    return true;
  });
  if (is_counted && is_last) wake(Ring::kSender);
  return is_counted;
}

Record::Claim Record::claim(uint32_t seq, VerdictKind kind, From from, int client, AllLeft all_left,
                            absl::FunctionRef<uint32_t()> absent) const {
  Claim claim;
  change([&](State& state) {
    claim = {.result = Claim::kSettled, .before = state};
    if (state.seq != seq) {
      if (!state.is_unused() && is_later(state.seq, seq)) return false;
      claim = {.result = Claim::kNotFree, .before = {.seq = seq}};
      if (!is_free(state, seq, all_left)) return false;
    }
    const State& before = claim.before;
    claim.result = Claim::kSettled;
    if (before.is_settled()) return false;
    claim.result = Claim::kGoesOn;
    const bool after_arrival = before.phase != Phase::kOpen;
    const bool is_over = before.finished == num_members_ ||
                         (before.phase == Phase::kMet && kind != VerdictKind::kMismatch);
    if (after_arrival && (from == From::kOpen || is_over)) return false;
    claim.result = Claim::kMine;
    // Read inside the loop: the entries of the members counted in `before` are visible.
    const bool has_absent = kind == VerdictKind::kTimedOut && !after_arrival;
    const uint32_t acknowledged = is_for_messages() ? (has_absent ? absent() : 0) : before.gone;
    state = {.seq = seq,
             .finished = acknowledged,
             .phase = Phase::kSettling,
             .kind = kind,
             .after_arrival = after_arrival,
             .settler = static_cast<uint32_t>(client) + 1};
    return true;
  });
  // A member that died between a change of the state and the wake-up left others asleep: they are
  // woken here, since its death makes another member settle.
  const bool is_of_seq = claim.before.seq == seq && claim.result != Claim::kNotFree;
  if (is_of_seq && claim.result != Claim::kMine) wake();
  return claim;
}

bool Record::settle(uint32_t seq, const Status& verdict) const {
  const absl::string_view text = verdict.message();
  memory_->verdict_code = static_cast<int32_t>(verdict.code());
  memory_->verdict_bytes = static_cast<uint32_t>(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    std::atomic_ref(memory_->verdict[i]).store(text[i], std::memory_order_release);
  }
  // Another client may have declared this one lost meanwhile, and orphaned the record.
  const bool is_settled = change([&](State& state) {
    if (state.seq != seq || state.phase != Phase::kSettling) return false;
    state.phase = Phase::kFailed;
    return true;
  });
  if (is_settled) wake();
  return is_settled;
}

bool Record::is_being_settled(uint32_t seq,
                              absl::FunctionRef<bool(uint32_t settler)> is_lost) const {
  bool is_settling = false;
  const bool is_orphaned = change([&](State& state) {
    is_settling = state.seq == seq && state.phase == Phase::kSettling;
    if (!is_settling || !is_lost(state.settler)) return false;
    state.phase = Phase::kOrphaned;
    return true;
  });
  if (is_orphaned) wake();
  return is_settling && !is_orphaned;
}

Status Record::read_verdict(size_t most_bytes) const {
  const auto code = static_cast<absl::StatusCode>(memory_->verdict_code.load());
  std::string text(std::min<size_t>(memory_->verdict_bytes.load(), most_bytes), '\0');
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = std::atomic_ref(memory_->verdict[i]).load(std::memory_order_acquire);
  }
  return Status(code, text);
}

void Record::acknowledge(uint32_t seq, int member) const {
  bool is_last = false;
  change([&](State& state) {
    is_last = false;
    if (state.seq != seq || !state.is_settled()) return false;
    if (is_for_messages()) {
      state.finished |= 1u << member;
    } else {
      ++state.finished;
    }
    is_last = is_acknowledged(state);
    return true;
  });
  if (is_last) wake();
}

void Record::wake(Ring ring) const {
  if (is_for_messages() && ring != Ring::kReceiver) shm::ring(*bells_[0]);
  if (is_for_messages() && ring != Ring::kSender) shm::ring(*bells_[1]);
  if (memory_->num_sleepers.load(std::memory_order_seq_cst) == 0) return;
  memory_->num_wakes.fetch_add(1, std::memory_order_seq_cst);
  shm::wake_all(memory_->num_wakes);
}

// Invariant 7 of op_record.h.
bool Record::sleep_while(uint32_t seq, absl::Time deadline,
                         absl::FunctionRef<bool(const State&)> waiting) const {
  memory_->num_sleepers.fetch_add(1, std::memory_order_seq_cst);
  bool in_time = true;
  while (in_time) {
    const uint32_t num_wakes = memory_->num_wakes.load(std::memory_order_seq_cst);
    const State state = load();
    if (state.seq != seq || !waiting(state)) break;
    in_time = shm::sleep_while(memory_->num_wakes, num_wakes, deadline);
  }
  memory_->num_sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return in_time;
}

}  // namespace tessera::host
