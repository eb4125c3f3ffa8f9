// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/rendezvous.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/stable_hash.h"
#include "collectives/counts.h"
#include "collectives/host/activity.h"

namespace tessera::host {
namespace {

// Yields before a waiter sleeps on the futex. A yield is nearly free on an idle core; a futex
// wake-up is the slowest path (docs/performance.md).
constexpr int kYields = kStepped ? 0 : 200;
// A settler takes microseconds. A stopped one is waited for up to this limit; by a caller whose
// deadline has passed up to the second one, which a settler needs where its core is taken from it.
// Its loss is checked at this interval.
constexpr absl::Duration kSettleLimit = absl::Seconds(20);
constexpr absl::Duration kLateSettleLimit = absl::Seconds(1);
constexpr absl::Duration kSettlerCheckInterval = absl::Milliseconds(5);

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void fetch_to_write(const void* line) {
#if defined(__x86_64__)
  // The builtin compiles to this only where the compiler may assume the instruction. Processors
  // without it execute it as a no-op.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

absl::Span<const int32_t> ids_of(GroupBlock* block) {
  return {device_ids(block), block->num_members};
}

// A text that another process has written: it may be overwritten while it is read.
std::string read_text(const char* text, size_t size) { return {text, strnlen(text, size)}; }

// The text of equal parts is built only when it is read: members write none.
std::string detail_of(const MemberEntry& entry, int num_members) {
  if (entry.signature.detail_hash == stable_hash("")) return "";
  const Counts equal = Counts::equal(num_members, entry.part_count);
  if (entry.signature.detail_hash != equal.hash()) return read_text(entry.detail, kDetailBytes);
  return equal.to_string().substr(0, kDetailBytes - 1);
}

// "relayout #12" of "relayout #12 [x, -] -> [-, x] on {x=2}, ...": where the message goes on with
// what both clients have, the layouts would be in it twice. Other labels as they are.
absl::string_view name_of(absl::string_view label) {
  constexpr absl::string_view kNumbered = "relayout #";
  if (label.substr(0, kNumbered.size()) != kNumbered) return label;
  return label.substr(0, label.find(' ', kNumbered.size()));
}

}  // namespace

StatusOr<Rendezvous> Rendezvous::open(HostLink& link, std::vector<GroupMember> members,
                                      uint32_t num_records, uint64_t salt, Records records) {
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
  TESSERA_ASSIGN_OR_RETURN(GroupBlock * block,
                           link.groups_led_by(leader).open(members, num_records, salt, records));
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
  records_ = start + block->records_offset;
  record_stride_ = block->record_stride;
  entries_offset_ = block->entries_offset;
  entry_stride_ = block->entry_stride;
  last_record_ = block->num_records - 1;
}

void Rendezvous::close() {
  if (!std::exchange(held_.value, false)) return;
  std::lock_guard<std::mutex> lock(held_.link->mutex);
  if (!held_.link->is_open) return;
  link_->groups_led_by(leader_client_).close(block_, generation_, members_);
}

bool Rendezvous::is_acknowledged(const State& state) const {
  constexpr uint32_t kBoth = 3;
  return state.finished == (is_for_messages() ? kBoth : members_.size());
}

uint32_t Rendezvous::acknowledged_from(uint32_t seq, const State& before, VerdictKind kind) const {
  if (!is_for_messages()) return before.gone;
  uint32_t absent = 0;
  for (int m = 0; m < size(); ++m) absent |= is_missing(seq, m) ? 1u << m : 0;
  return kind == VerdictKind::kTimedOut && before.phase == Phase::kOpen ? absent : 0;
}

bool Rendezvous::is_done_by_all(const State& state, uint32_t seq) const {
  if (state.phase == Phase::kRunning) return state.finished == members_.size();
  if (state.phase == Phase::kMet) return all_left(state.seq, seq);
  const bool has_verdict = state.phase == Phase::kFailed || state.phase == Phase::kOrphaned;
  return has_verdict && is_acknowledged(state);
}

bool Rendezvous::is_free(const State& state, uint32_t seq) const {
  if (state.is_unused()) return true;
  if (!is_later(seq, state.seq)) return false;
  if (is_done_by_all(state, seq)) return true;
  // Free without acknowledgements if the deadline passed before all had arrived: absent members may
  // never acknowledge. Members that had all arrived are inside the operation, and read the verdict.
  const bool has_verdict = state.phase == Phase::kFailed || state.phase == Phase::kOrphaned;
  return has_verdict && state.has_timed_out() && !is_for_messages();
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
  fetch_to_write(&record(seq).state);
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

void Rendezvous::ring_bells() {
  for (const GroupMember& member : members_) {
    bells_.push_back(&activity_slot(link_->control(member.client_id), member.ordinal));
  }
}

void Rendezvous::wake(OpRecord& record, Ring ring) const {
  if (is_for_messages() && ring != Ring::kReceiver) host::ring(*bells_[0]);
  if (is_for_messages() && ring != Ring::kSender) host::ring(*bells_[1]);
  if (record.num_sleepers.load(std::memory_order_seq_cst) == 0) return;
  record.num_wakes.fetch_add(1, std::memory_order_seq_cst);
  wake_all(record.num_wakes);
}

// The one wait of the host protocol: spins, then yields, then sleeps on the record's futex until
// wake(). `check` is looked into for circles before the sleep, since a circle never ends by itself.
template <class Waiting>
bool Rendezvous::wait_while(uint32_t seq, absl::Time deadline, const Op* check, Waiting waiting) {
  OpRecord& op_record = record(seq);
  const auto still = [&](uint64_t word) {
    const State state = State::unpack(word);
    return state.seq == seq && waiting(state);
  };
  const int num_spins = kStepped ? 0 : link_->num_spins();
  for (int i = 0; i < num_spins; ++i) {
    if (!still(op_record.state.load(std::memory_order_acquire))) return true;
    pause_cpu();
  }
  for (int i = 0; i < kYields; ++i) {
    if (!still(op_record.state.load(std::memory_order_acquire))) return true;
    sched_yield();
  }
  if (check != nullptr) check_conflicts(*check);
  // Invariant 7 of control.h.
  op_record.num_sleepers.fetch_add(1, std::memory_order_seq_cst);
  bool in_time = true;
  while (in_time) {
    const uint32_t num_wakes = op_record.num_wakes.load(std::memory_order_seq_cst);
    if (!still(op_record.state.load(std::memory_order_seq_cst))) break;
    in_time = sleep_while(op_record.num_wakes, num_wakes, deadline);
  }
  op_record.num_sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return in_time;
}

bool Rendezvous::is_being_settled(uint32_t seq) {
  OpRecord& op_record = record(seq);
  uint64_t word = op_record.state.load(std::memory_order_seq_cst);
  while (true) {
    State state = State::unpack(word);
    if (state.seq != seq || state.phase != Phase::kSettling) return false;
    if (!is_lost(state.settler)) return true;
    state.phase = Phase::kOrphaned;
    if (op_record.state.compare_exchange_strong(word, state.pack(), std::memory_order_seq_cst)) {
      wake(op_record);
      return false;
    }
  }
}

absl::Duration Rendezvous::wait_settled(uint32_t seq, const Op* op) {
  if (!is_being_settled(seq)) return absl::ZeroDuration();
  const absl::Time start = steady_now();
  absl::Time limit = start + kSettleLimit;
  if (op != nullptr) limit = std::min(limit, std::max(start, op->deadline) + kLateSettleLimit);
  bool was_given_up = false;
  while (is_being_settled(seq)) {
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

bool Rendezvous::is_lost(uint32_t settler) const {
  const int client = static_cast<int>(settler) - 1;
  if (client < 0 || client >= link_->num_clients()) return true;
  return client != link_->client_id() && link_->is_dead(client);
}

Status Rendezvous::verdict(uint32_t seq, const Op* op) {
  OpRecord& op_record = record(seq);
  const absl::Duration waited = wait_settled(seq, op);
  const State state = load(seq);
  const auto operation = [&] {
    return absl::StrCat("operation ", seq, " of the group of devices ",
                        absl::StrJoin(ids_of(block_), ", "));
  };
  if (state.seq != seq || !state.is_settled()) {
    return absl::UnavailableError(absl::StrCat(operation(), " was given up without this client"));
  }
  const auto settler = [&] {
    const int client = static_cast<int>(state.settler) - 1;
    const bool is_known = client >= 0 && client < link_->num_clients();
    return is_known ? link_->member(client).to_string() : std::string("a client");
  };
  if (state.phase == Phase::kOrphaned) {
    return absl::UnavailableError(
        absl::StrCat(operation(), " failed, and ", settler(), " was lost before it could say why"));
  }
  if (state.phase == Phase::kSettling) {
    return absl::DeadlineExceededError(absl::StrCat(
        operation(), " failed, and ", settler(), " has not said why in ", format_duration(waited)));
  }
  const auto code = static_cast<absl::StatusCode>(op_record.verdict_code.load());
  std::string text(std::min<uint32_t>(op_record.verdict_bytes.load(), block_->verdict_bytes), '\0');
  // After a timeout the record does not wait for this member, and may be reused meanwhile.
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = std::atomic_ref(op_record.verdict[i]).load(std::memory_order_acquire);
  }
  if (load(seq).seq != seq) return verdict(seq, op);
  return Status(code, text);
}

// The entry's number and place are written before the member is counted in the state, so that a
// settler that reads the count can tell which members it counts (arrivals()).
Status Rendezvous::arrive(const Op& op) {
  OpRecord& op_record = record(op.seq);
  MemberEntry& own = entry(op.seq, op.member);
  if (own.seq.load(std::memory_order_relaxed) == op.seq) return absl::OkStatus();
  own.place.store(MemberEntry::kNoPlace, std::memory_order_relaxed);
  own.seq.store(op.seq, std::memory_order_release);
  uint64_t word = op_record.state.load(std::memory_order_seq_cst);
  while (true) {
    State state = State::unpack(word);
    if (state.seq != op.seq) {
      const bool is_over = !state.is_unused() && is_later(state.seq, op.seq);
      if (is_over) return is_too_late(own, op);
      // The caller has seen the record free (wait_free()), and only this operation may use it.
      state = {.seq = op.seq};
    }
    if (state.phase != Phase::kOpen) return is_too_late(own, op);
    ++state.arrived;
    own.place.store(static_cast<uint16_t>(state.arrived), std::memory_order_relaxed);
    const bool last = state.arrived == members_.size();
    if (last) state.phase = op.ends_at_arrival ? Phase::kMet : Phase::kRunning;
    if (op_record.state.compare_exchange_weak(word, state.pack(), std::memory_order_seq_cst)) {
      if (last) wake(op_record, Ring::kReceiver);
      return absl::OkStatus();
    }
  }
}

Status Rendezvous::is_too_late(MemberEntry& own, const Op& op) {
  own.place.store(MemberEntry::kNoPlace, std::memory_order_relaxed);
  return verdict(op.seq, &op);
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

Status Rendezvous::finish(uint32_t seq, int num_members, Then then, const Op* op) {
  OpRecord& op_record = record(seq);
  uint64_t word = op_record.state.load(std::memory_order_seq_cst);
  while (true) {
    State state = State::unpack(word);
    if (state.seq != seq || state.phase != Phase::kRunning) return verdict(seq, op);
    state.finished += num_members;
    if (then == Then::kLeave) ++state.gone;
    if (op_record.state.compare_exchange_weak(word, state.pack(), std::memory_order_seq_cst)) {
      if (state.finished == members_.size()) wake(op_record, Ring::kSender);
      return absl::OkStatus();
    }
  }
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

bool Rendezvous::wait_left(uint32_t seq, absl::Time deadline) {
  return wait_while(seq, deadline, nullptr,
                    [this](const State& state) { return is_under_way(state); });
}

bool Rendezvous::is_finished(uint32_t seq) const {
  const State state = load(seq);
  return state.seq != seq || !is_under_way(state);
}

bool Rendezvous::has_result(uint32_t seq) { return is_finished(seq) && !is_being_settled(seq); }

Status Rendezvous::settle(uint32_t seq, VerdictKind kind, From from, const Status& error,
                          const Op* op) {
  return settle_with(seq, kind, from, op, [&](const State&) { return error; });
}

void Rendezvous::settle_at_once(uint32_t seq, From from, const Status& error) {
  try_settle(seq, VerdictKind::kError, from, [&](const State&) { return error; });
}

Status Rendezvous::settle_with(uint32_t seq, VerdictKind kind, From from, const Op* op,
                               absl::FunctionRef<Status(const State& before)> make_error) {
  const std::optional<Status> settled = try_settle(seq, kind, from, make_error);
  return settled.has_value() ? *settled : verdict(seq, op);
}

// Two steps. First a compare-and-swap to kSettling decides which settler wins, and freezes the
// arrivals. Then the winner writes the text and changes the phase to kFailed. A winner that dies in
// between leaves the record to is_being_settled(), which changes it to kOrphaned.
std::optional<Status> Rendezvous::try_settle(
    uint32_t seq, VerdictKind kind, From from,
    absl::FunctionRef<Status(const State& before)> make_error) {
  OpRecord& op_record = record(seq);
  uint64_t word = op_record.state.load(std::memory_order_seq_cst);
  State before;
  while (true) {
    before = State::unpack(word);
    if (before.seq != seq) {
      if (!before.is_unused() && is_later(before.seq, seq)) return std::nullopt;
      if (!is_free(before, seq)) return make_error({.seq = seq});
      before = {.seq = seq};
    }
    // A member that died between a change of the state and the wake-up left others asleep: they are
    // woken here, since its death makes another member settle.
    if (before.is_settled()) {
      wake(op_record);
      return std::nullopt;
    }
    const bool after_arrival = before.phase != Phase::kOpen;
    const bool is_over = before.finished == members_.size() ||
                         (before.phase == Phase::kMet && kind != VerdictKind::kMismatch);
    if (after_arrival && (from == From::kOpen || is_over)) {
      wake(op_record);
      return absl::OkStatus();
    }
    // Built inside the loop: the entries of the members counted in `before` are visible.
    const State settling = {.seq = seq,
                            .finished = acknowledged_from(seq, before, kind),
                            .phase = Phase::kSettling,
                            .kind = kind,
                            .after_arrival = after_arrival,
                            .settler = static_cast<uint32_t>(link_->client_id()) + 1};
    const uint64_t next = settling.pack();
    if (op_record.state.compare_exchange_weak(word, next, std::memory_order_seq_cst)) {
      word = next;
      break;
    }
  }
  // From here on no member arrives, and the entries do not change until the verdict is read.
  const Status error = make_error(before);
  std::string message(error.message());
  const size_t most = block_->verdict_bytes;
  if (message.size() > most) message.replace(most - 3, message.npos, "...");
  op_record.verdict_code = static_cast<int32_t>(error.code());
  op_record.verdict_bytes = static_cast<uint32_t>(message.size());
  for (size_t i = 0; i < message.size(); ++i) {
    std::atomic_ref(op_record.verdict[i]).store(message[i], std::memory_order_release);
  }
  while (true) {
    State settled = State::unpack(word);
    // Another client may have declared this one lost meanwhile, and orphaned the record.
    if (settled.seq != seq || settled.phase != Phase::kSettling) return std::nullopt;
    settled.phase = Phase::kFailed;
    // The exchange fails if a member has acknowledged meanwhile; then it is repeated.
    if (op_record.state.compare_exchange_weak(word, settled.pack(), std::memory_order_seq_cst)) {
      break;
    }
  }
  wake(op_record);
  // Not read back from the record, which may be reused at once after a timeout.
  return Status(error.code(), message);
}

void Rendezvous::settle_arrived(int member, uint32_t done, From from, const Status& error) {
  for (uint32_t i = 0; i <= last_record_; ++i) {
    // The state first, then the entry: the entry is what the member wrote before it arrived.
    const State state = load(i);
    const MemberEntry& own = entry(i, member);
    const bool has_arrived = own.seq.load(std::memory_order_acquire) == state.seq;
    if (state.is_unused() || !has_arrived || !is_later(state.seq, done)) continue;
    try_settle(state.seq, VerdictKind::kError, from,
               [&](const State&) { return with_context(error, label_of(own)); });
  }
}

Status Rendezvous::settle_timed_out(const Op& op, From from) {
  return settle_with(op.seq, VerdictKind::kTimedOut, from, &op,
                     [&](const State& before) { return describe_missing(op, before); });
}

void Rendezvous::acknowledge(uint32_t seq, int member) {
  OpRecord& op_record = record(seq);
  uint64_t word = op_record.state.load(std::memory_order_seq_cst);
  while (true) {
    State state = State::unpack(word);
    if (state.seq != seq || !state.is_settled()) return;
    if (is_for_messages()) {
      state.finished |= 1u << member;
    } else {
      ++state.finished;
    }
    if (op_record.state.compare_exchange_weak(word, state.pack(), std::memory_order_seq_cst)) {
      if (is_acknowledged(state)) wake(op_record);
      return;
    }
  }
}

bool Rendezvous::failed_on_the_move(uint32_t seq) const {
  const State state = load(seq);
  if (state.seq != seq || !state.is_settled()) return true;
  return state.after_arrival && state.kind != VerdictKind::kMismatch;
}

bool Rendezvous::all_are_done_with(uint32_t seq) const {
  const State state = load(seq);
  // A record is reused only when all that have arrived have acknowledged the verdict.
  if (is_later(state.seq, seq)) return true;
  if (state.seq == seq && state.is_settled() && is_acknowledged(state)) return true;
  for (int m = 0; m < size(); ++m) {
    // Pairs with leave().
    const uint32_t left = progress_[m].left.load(std::memory_order_acquire);
    if (is_later(seq, left) && !link_->is_gone(members_[m].client_id)) {
      return false;
    }
  }
  return true;
}

std::vector<bool> Rendezvous::arrivals(uint32_t seq, const State& state) const {
  const bool all = state.phase != Phase::kOpen;
  std::vector<bool> arrived(size(), all);
  // A member writes its place into the entry before it is counted. A member that was held up in
  // between has a place beyond those counted, or the same place as another one: it finds the record
  // settled, and then clears its place.
  for (int tries = 0; !all && tries < kYields + 1; ++tries) {
    for (int m = 0; m < size(); ++m) {
      const MemberEntry& other = entry(seq, m);
      arrived[m] = other.seq.load(std::memory_order_acquire) == seq &&
                   other.place.load(std::memory_order_relaxed) <= state.arrived;
    }
    if (std::count(arrived.begin(), arrived.end(), true) <= static_cast<int>(state.arrived)) break;
    sched_yield();
  }
  return arrived;
}

Status Rendezvous::describe_missing(const Op& op, const State& before) const {
  struct Client {
    int num_members = 0;
    std::vector<int> missing;  // members
  };
  std::map<int, Client> clients;
  const std::vector<bool> arrived = arrivals(op.seq, before);
  int num_missing_clients = 0;
  for (int m = 0; m < size(); ++m) {
    Client& client = clients[members_[m].client_id];
    ++client.num_members;
    if (arrived[m]) continue;
    if (client.missing.empty()) ++num_missing_clients;
    client.missing.push_back(m);
  }
  const std::string waited = format_duration(
      op.deadline == absl::InfiniteFuture() ? steady_now() - op.start : op.deadline - op.start);
  const bool one_client = clients.size() == 1;
  const int num_all = one_client ? size() : static_cast<int>(clients.size());
  int num_missing = num_missing_clients;
  if (one_client) num_missing = static_cast<int>(clients.begin()->second.missing.size());
  const bool is_unclear = num_missing == 0 && before.phase == Phase::kOpen;
  if (is_unclear) num_missing = 1;
  std::string text = absl::StrCat(label_of(op), ": ", num_all - num_missing, " of ", num_all,
                                  one_client ? " devices" : " clients", " arrived in ", waited);
  if (is_unclear) absl::StrAppend(&text, "; one was about to arrive");
  if (num_missing == 0) absl::StrAppend(&text, "; some had not finished");
  const char* separator = "; missing ";
  int num_named = 0;
  for (const auto& [id, client] : clients) {
    if (client.missing.empty()) continue;
    std::string name = link_->member(id).to_string();
    // Devices are named if other devices of the client have arrived, or if it is the only client.
    if (one_client || static_cast<int>(client.missing.size()) < client.num_members) {
      absl::StrAppend(&name, client.missing.size() == 1 ? " device " : " devices ",
                      absl::StrJoin(client.missing, ", ", [&](std::string* out, int m) {
                        absl::StrAppend(out, members_[m].device_id);
                      }));
    }
    absl::StrAppend(&name, ", ", last_seen(id, members_[client.missing[0]].ordinal).to_string());
    constexpr size_t kMoreBytes = 32;
    if (num_named > 0 && text.size() + name.size() + kMoreBytes > block_->verdict_bytes) {
      absl::StrAppend(&text, "; and ", num_missing_clients - num_named, " more");
      break;
    }
    absl::StrAppend(&text, separator, name);
    separator = "; ";
    ++num_named;
  }
  return absl::DeadlineExceededError(text);
}

// Where a member has not arrived (check_conflicts()), the operation may time out and its record be
// reused in the middle of this: then what is found is wrong. It becomes the verdict only by a
// compare-and-swap from the state in which the operation is still open, and a record is not reused
// before that state has changed.
Status Rendezvous::find_mismatch(const Op& op) const {
  // The first member that has arrived is compared with the others in order, so that all members
  // that see the same arrivals name the same two.
  int first = 0;
  while (first < op.member && is_missing(op.seq, first)) ++first;
  const MemberEntry& a = entry(op.seq, first);
  for (int m = first + 1; m < size(); ++m) {
    const MemberEntry& b = entry(op.seq, m);
    if (b.seq.load(std::memory_order_acquire) != op.seq) continue;
    step();  // a member may be held up here while the record is reused
    if (a.signature == b.signature) continue;
    const auto differ = [&](absl::string_view field, const auto& x, const auto& y) {
      const bool is_plural = field == "layouts" || field == "counts";
      const bool says_both = field == "layouts" || field == "operation";
      const std::string label = label_of(a);
      const std::string x_text = absl::StrCat(x);
      const std::string y_text = absl::StrCat(y);
      // Entries have room for so much of a text.
      const bool is_cut = x_text == y_text;
      return absl::InvalidArgumentError(absl::StrCat(
          says_both ? name_of(label) : label, ": ", field, is_plural ? " differ" : " differs",
          " between clients: ", link_->member(members_[first].client_id).to_string(), " device ",
          members_[first].device_id, " has ", x_text, ", ",
          link_->member(members_[m].client_id).to_string(), " device ", members_[m].device_id,
          " has ", y_text, is_cut ? ", which differ in what is left out here" : "",
          "; it is operation ", op.seq, " of the group; make the same call on every client"));
    };
    const Signature& x = a.signature;
    const Signature& y = b.signature;
    if (x.kind != y.kind) return differ("operation", label_of(a), label_of(b));
    if (x.dtype != y.dtype) return differ("dtype", dtype_name(x.dtype), dtype_name(y.dtype));
    if (x.reduction != y.reduction) {
      return differ("reduction", reduce_op_name(x.reduction), reduce_op_name(y.reduction));
    }
    if (x.root != y.root) return differ("root", x.root, y.root);
    if (x.detail_hash != y.detail_hash) {
      return differ(op.detail_field, detail_of(a, size()), detail_of(b, size()));
    }
    if (x.count != y.count) return differ("count", x.count, y.count);
    const auto sharing = [](bool inlined) { return inlined ? "none" : "some"; };
    return differ("sharing of outputs", sharing(x.inlined), sharing(y.inlined));
  }
  return absl::OkStatus();
}

Status Rendezvous::settle_mismatch(const Op& op) {
  return settle(op.seq, VerdictKind::kMismatch, From::kRunning, find_mismatch(op), &op);
}

std::string Rendezvous::label_of(const Signature& signature,
                                 absl::Span<const int32_t> device_ids) const {
  return default_label(signature.kind, signature.dtype, signature.reduction, signature.count,
                       device_ids);
}

std::string Rendezvous::label_of(const Op& op) const {
  const bool has_label = op.label != nullptr && !op.label->empty();
  return has_label ? op.label->to_string() : label_of(op.signature, ids_of(block_));
}

std::string Rendezvous::label_of(const MemberEntry& entry) const {
  if (entry.label_size != 0) return read_text(entry.label, kLabelBytes);
  return label_of(entry.signature, ids_of(block_));
}

ActivitySnapshot Rendezvous::last_seen(int client, int ordinal) const {
  ActivitySnapshot seen = read_activity(activity_slot(link_->control(client), ordinal));
  if (seen.has_label) return seen;
  int32_t own_id = ordinal;
  for (int i = 0; i < client; ++i) own_id += link_->member(i).num_local_devices;
  std::vector<int32_t> ids;
  // A torn snapshot may have an invalid offset, which is not followed.
  if (seen.consistent && seen.block_offset != 0) ids = ids_in(seen);
  if (seen.consistent && seen.block_offset == 0) ids = {own_id};
  seen.label = default_label(seen.op, seen.dtype, seen.reduction, seen.count, ids);
  return seen;
}

int Rendezvous::client_of(int device_id) const {
  int client = 0;
  for (int first = 0; client + 1 < link_->num_clients(); ++client) {
    first += link_->member(client).num_local_devices;
    if (device_id < first) break;
  }
  return client;
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

}  // namespace tessera::host
