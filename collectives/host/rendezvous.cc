// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/rendezvous.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/format.h"
#include "collectives/host/conflicts.h"
#include "collectives/host/rendezvous_texts.h"
#include "collectives/host/verdicts.h"

namespace tessera::host {
namespace {

// A settler takes microseconds. A caller waits for a stopped settler up to the first limit. A
// caller whose deadline has passed waits up to the second one, which a settler needs if it loses
// its core. The loss of the settler is checked at this interval.
constexpr absl::Duration kSettleLimit = absl::Seconds(20);
constexpr absl::Duration kLateSettleLimit = absl::Seconds(1);
constexpr absl::Duration kSettlerCheckInterval = absl::Milliseconds(5);

}  // namespace

StatusOr<Rendezvous> Rendezvous::open(shm::HostLink& link, std::vector<shm::GroupMember> members,
                                      uint32_t num_records, uint64_t salt, const Room& room) {
  if (members.size() > kMaxMembers) {
    return absl::UnimplementedError(absl::StrCat(
        "a group of ", members.size(), " devices on one host; the most is ", kMaxMembers));
  }
  if (link.members().num_clients() > kMaxMembers) {
    return absl::UnimplementedError(absl::StrCat(
        link.members().num_clients(), " clients on one host; the most is ", kMaxMembers));
  }
  TESSERA_CHECK((num_records & (num_records - 1)) == 0, "a power of two");
  const int leader = members[0].client_id;
  const RecordLayout layout = RecordLayout::create(members.size(), num_records, room);
  const auto clear = [&](std::byte* first) { layout.clear(first, members.size()); };
  const shm::BlockBody body = {
      layout.num_bytes(), {reinterpret_cast<const std::byte*>(&layout), sizeof(layout)}, clear};
  TESSERA_ASSIGN_OR_RETURN(shm::GroupBlock * block,
                           link.groups_led_by(leader).open(members, salt, body));
  Rendezvous result(GroupRecords(link, std::move(members), leader, block));
  result.held_ = link.openness();
  return result;
}

void Rendezvous::close() {
  const std::shared_ptr<shm::HostLink::Openness> held = std::exchange(held_, nullptr);
  if (held == nullptr) return;
  std::lock_guard<std::mutex> lock(held->mutex);
  if (!held->is_open) return;
  const BlockId& id = records_.id();
  records_.link()
      .groups_led_by(id.leader_client)
      .close(records_.block(), id.generation, records_.members());
}

Rendezvous::Place Rendezvous::align(uint32_t seq, const Signature& signature) const {
  while (true) {
    const State state = records_.load(seq);
    if (!state.is_unused() && is_later(state.seq, seq)) {
      const uint32_t last = newest_of(records_);
      return {records_.load(last).phase == Phase::kOpen ? last : seq_after(last),
              /*is_left_behind=*/true};
    }
    if (state.seq != seq || !state.has_timed_out() || !state.is_settled() ||
        state.phase == Phase::kSettling) {
      return {seq};
    }
    bool any = false;
    bool is_ours = false;
    for (int m = 0; m < records_.size() && !is_ours; ++m) {
      const MemberEntry& other = records_.entry(seq, m);
      if (other.seq.load(std::memory_order_acquire) != seq) continue;
      any = true;
      is_ours = other.signature == signature;
    }
    // The others do not wait for this member, so the record may be reused while it is read: what
    // was read is valid only if the number is still the same.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (records_.load(seq).seq != seq) continue;
    if (!any || is_ours) return {seq};
    seq = seq_after(seq);
  }
}

void Rendezvous::pass_over(uint32_t from, uint32_t to) {
  // The records of earlier operations have been reused.
  const bool is_far = to - from > records_.num_records();
  for (uint32_t seq = is_far ? seq_before(to, records_.num_records()) : from; seq != to;
       seq = seq_after(seq)) {
    const State state = records_.load(seq);
    if (state.seq == seq && state.is_settled() && !state.has_timed_out()) acknowledge(seq);
  }
}

bool Rendezvous::sleep_while(uint32_t seq, absl::Time deadline, const Op* check,
                             absl::FunctionRef<bool(const State&)> waiting) {
  const Record own = records_.record(seq);
  if (check == nullptr) return own.sleep_while(seq, deadline, waiting);
  check_conflicts(records_, *check);
  // In the test of all orders a wait without a deadline has no end in time.
  while (!shm::kStepped) {
    const absl::Time is_long = steady_now() + shm::kLongWait;
    if (own.sleep_while(seq, std::min(deadline, is_long), waiting)) return true;
    if (deadline <= is_long) return false;
    records_.link().note_long_wait();
  }
  return own.sleep_while(seq, deadline, waiting);
}

bool Rendezvous::wait_free(uint32_t seq, absl::Time deadline) {
  const auto waiting = [&](const State& state) { return !records_.is_free(state, seq); };
  while (true) {
    // One reading: a record that has gone on to `seq` meanwhile is not waited for.
    const State now = records_.load(seq);
    if (records_.is_free(now, seq) || !is_later(seq, now.seq)) return true;
    if (!wait_while(now.seq, deadline, nullptr, waiting)) return false;
  }
}

Status Rendezvous::arrive(const Op& op) {
  MemberEntry& own = records_.entry(op.seq, op.member);
  if (own.seq.load(std::memory_order_relaxed) == op.seq) return absl::OkStatus();
  // Also before the member is counted, as its place is.
  own.place.store(MemberEntry::kNoPlace, std::memory_order_relaxed);
  own.seq.store(op.seq, std::memory_order_release);
  const bool has_arrived = records_.record(op.seq).arrive(op.seq, op.signature.inlined, own);
  return has_arrived ? absl::OkStatus() : verdict(op.seq, &op);
}

Status Rendezvous::wait_arrived(const Op& op) {
  const bool in_time = wait_while(op.seq, op.deadline, op.holds_device ? &op : nullptr,
                                  [](const State& state) { return state.phase == Phase::kOpen; });
  if (!in_time) {
    // The last member may have arrived just now: then the operation goes on.
    TESSERA_RETURN_IF_ERROR(settle_timed_out(op, From::kOpen));
  }
  if (records_.all_arrived(op.seq)) return absl::OkStatus();
  return verdict(op.seq, &op);
}

bool Rendezvous::wait_all_arrived(uint32_t seq, absl::Time deadline,
                                  const std::atomic<bool>& has_news) {
  wait_while(seq, deadline, nullptr, [&](const State& state) {
    return state.phase == Phase::kOpen && !has_news.load(std::memory_order_seq_cst);
  });
  const State state = records_.load(seq);
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
  const bool is_counted = records_.record(seq).finish(seq, num_members, then);
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
  const State state = records_.load(op.seq);
  // A record that is used by a later operation: all members have left this one.
  if (state.seq != op.seq || state.phase == Phase::kRunning) return absl::OkStatus();
  return late.ok() ? verdict(op.seq, &op) : late;
}

bool Rendezvous::wait_left(uint32_t seq, absl::Time deadline, const std::atomic<bool>& has_news) {
  wait_while(seq, deadline, nullptr, [&](const State& state) {
    return records_.record(seq).is_under_way(state) && !has_news.load(std::memory_order_seq_cst);
  });
  return records_.is_finished(seq);
}

absl::Duration Rendezvous::wait_settled(uint32_t seq, const Op* op) {
  if (!records_.is_being_settled(seq)) return absl::ZeroDuration();
  const absl::Time start = steady_now();
  absl::Time limit = start + kSettleLimit;
  if (op != nullptr) limit = std::min(limit, std::max(start, op->deadline) + kLateSettleLimit);
  bool was_given_up = false;
  while (records_.is_being_settled(seq)) {
    const absl::Time now = steady_now();
    if (now >= limit) return limit - start;
    wait_while(seq, now + kSettlerCheckInterval, nullptr,
               [](const State& state) { return state.phase == Phase::kSettling; });
    if (op == nullptr || op->is_given_up == nullptr || was_given_up) continue;
    was_given_up = op->is_given_up->load(std::memory_order_relaxed);
    if (was_given_up) limit = std::min(limit, now + kLateSettleLimit);
  }
  return absl::ZeroDuration();
}

Status Rendezvous::verdict(uint32_t seq, const Op* op) {
  const absl::Duration waited = wait_settled(seq, op);
  const State state = records_.load(seq);
  if (state.seq != seq || !state.is_settled()) {
    return absl::UnavailableError(
        absl::StrCat(name_of(records_, seq, op), " was given up without this client"));
  }
  const auto settler = [&] {
    const int client = static_cast<int>(state.settler) - 1;
    const bool is_known = client >= 0 && client < records_.link().members().num_clients();
    return is_known ? records_.link().members()[client].to_string() : std::string("a client");
  };
  if (state.phase == Phase::kOrphaned) {
    return absl::UnavailableError(absl::StrCat(name_of(records_, seq, op), " failed, and ",
                                               settler(), " was lost before it could say why"));
  }
  if (state.phase == Phase::kSettling) {
    return absl::DeadlineExceededError(absl::StrCat(name_of(records_, seq, op), " failed, and ",
                                                    settler(), " has not said why in ",
                                                    format_duration(waited)));
  }
  const Status read =
      records_.record(seq).read_verdict(record_layout(*records_.block()).verdict_bytes);
  // After a timeout the record does not wait for this member, and may be reused meanwhile.
  if (records_.load(seq).seq != seq) return verdict(seq, op);
  return read;
}

Status Rendezvous::settle(uint32_t seq, VerdictKind kind, From from, const Status& error,
                          const Op* op) {
  return settle_with(seq, kind, from, op, [&](const State&) { return error; });
}

Status Rendezvous::settle_with(uint32_t seq, VerdictKind kind, From from, const Op* op,
                               absl::FunctionRef<Status(const State& before)> make_error) {
  const std::optional<Status> settled = try_settle(records_, seq, kind, from, make_error);
  return settled.has_value() ? *settled : verdict(seq, op);
}

Status Rendezvous::settle_timed_out(const Op& op, From from) {
  return settle_with(op.seq, VerdictKind::kTimedOut, from, &op,
                     [&](const State& before) { return describe_missing(records_, op, before); });
}

Status Rendezvous::settle_mismatch(const Op& op) {
  return settle(op.seq, VerdictKind::kMismatch, From::kRunning, find_mismatch(records_, op), &op);
}

}  // namespace tessera::host
