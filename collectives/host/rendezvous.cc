// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/rendezvous.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/format.h"
#include "collectives/counts.h"
#include "collectives/host/activity.h"

namespace tessera::host {
namespace {

// So often a member that waits gives its core away before it sleeps. Who has the core to itself
// gets it back at once, and to be woken from sleep takes longest (docs/performance.md).
constexpr int kYields = 200;

// The low half of the state word. x86-64 and arm64 are little-endian.
uint32_t* futex_word(OpRecord& record) { return reinterpret_cast<uint32_t*>(&record.state); }

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void fetch_to_write(const void* line) {
#if defined(__x86_64__)
  // What the builtin becomes only where the compiler may assume the instruction. Processors without
  // it take it for one that does nothing.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

absl::Span<const int32_t> ids_of(GroupBlock* block) {
  return {device_ids(block), block->num_members};
}

// Nobody writes a text for equal parts unless somebody reads it.
std::string detail_of(const MemberEntry& entry, int num_members) {
  if (entry.signature.detail_hash == stable_hash("")) return "";
  const Counts equal = Counts::equal(num_members, entry.part_count);
  if (entry.signature.detail_hash != equal.hash()) return entry.detail;
  return equal.to_string().substr(0, kDetailBytes - 1);
}

}  // namespace

StatusOr<Rendezvous> Rendezvous::open(HostLink& link, std::vector<GroupMember> members,
                                      uint32_t num_records, uint64_t salt) {
  if (members.size() > kMaxMembers) {
    return absl::UnimplementedError(absl::StrCat(
        "a group of ", members.size(), " devices on one host; the most is ", kMaxMembers));
  }
  TESSERA_CHECK((num_records & (num_records - 1)) == 0, "a power of two");
  const int leader = members[0].client_id;
  TESSERA_ASSIGN_OR_RETURN(GroupBlock * block,
                           link.groups_led_by(leader).open(members, num_records, salt));
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
  last_record_ = block->num_records - 1;
}

void Rendezvous::close() {
  if (!std::exchange(held_.value, false)) return;
  std::lock_guard<std::mutex> lock(held_.link->mutex);
  if (!held_.link->is_open) return;
  link_->groups_led_by(leader_client_).close(block_, generation_, members_);
}

bool Rendezvous::is_free(const State& state, uint32_t seq) const {
  if (static_cast<int32_t>(seq - state.seq) <= 0) return false;
  if (state.seq == 0) return true;
  if (state.phase == Phase::kRunning) return state.finished == members_.size();
  if (state.phase == Phase::kMet) return all_left(state.seq, seq);
  if (state.phase != Phase::kFailed) return false;
  if (state.finished == members_.size()) return true;
  // Members that had all arrived are in the operation, and come for its verdict.
  const OpRecord& op_record = record(seq);
  return op_record.verdict_kind.load(std::memory_order_relaxed) == VerdictKind::kTimedOut &&
         op_record.verdict_after_arrival.load(std::memory_order_relaxed) == 0;
}

bool Rendezvous::all_left(uint32_t met, uint32_t seq) const {
  // Members come to one operation after the other: where all have arrived at the one before, they
  // have left those before it. Their arrivals are in the state that is read here, so what they did
  // before is done. That is so but after failures, and takes no line from those who write it.
  if (seq - 1 != met && all_arrived(seq - 1)) return true;
  for (int m = 0; m < size(); ++m) {
    // Pairs with leave(): the member has read what this one is going to overwrite.
    if (static_cast<int32_t>(progress_[m].left.load(std::memory_order_acquire) - met) < 0) {
      return false;
    }
  }
  return true;
}

void Rendezvous::fetch_lines(uint32_t seq, int member) const {
  fetch_to_write(&record(seq).state);
  fetch_to_write(&entry(seq, member));
}

bool Rendezvous::was_freed(uint32_t seq) const {
  const State now = load(seq);
  return static_cast<int32_t>(now.seq - seq) >= 0 || is_free(now, seq);
}

bool Rendezvous::wait_free(uint32_t seq, absl::Time deadline) {
  while (!was_freed(seq)) {
    const auto waiting = [&](const State& state) { return !is_free(state, seq); };
    if (!wait_while(load(seq).seq, deadline, nullptr, waiting)) return false;
  }
  return true;
}

bool Rendezvous::is_next(uint32_t seq) const {
  const State state = load(seq);
  if (state.seq == seq) return true;
  const uint32_t previous = seq > num_records() ? seq - num_records() : 0;
  return state.seq == previous && is_free(state, seq);
}

void Rendezvous::wake(OpRecord& record) const {
  if (record.num_sleepers.load(std::memory_order_seq_cst) == 0) return;
  syscall(SYS_futex, futex_word(record), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

template <class Waiting>
bool Rendezvous::wait_while(uint32_t seq, absl::Time deadline, const Op* check, Waiting waiting) {
  OpRecord& op_record = record(seq);
  const auto still = [&](uint64_t word) {
    const State state = State::unpack(word);
    return state.seq == seq && waiting(state);
  };
  for (int i = 0; i < link_->num_spins(); ++i) {
    if (!still(op_record.state.load(std::memory_order_acquire))) return true;
    pause_cpu();
  }
  for (int i = 0; i < kYields; ++i) {
    if (!still(op_record.state.load(std::memory_order_acquire))) return true;
    sched_yield();
  }
  if (check != nullptr) check_conflicts(*check);
  op_record.num_sleepers.fetch_add(1, std::memory_order_seq_cst);
  bool in_time = true;
  while (true) {
    const uint64_t word = op_record.state.load(std::memory_order_seq_cst);
    if (!still(word)) break;
    timespec left;
    timespec* timeout = nullptr;
    if (deadline != absl::InfiniteFuture()) {
      const absl::Duration remaining = deadline - steady_now();
      in_time = remaining > absl::ZeroDuration();
      if (!in_time) break;
      left = absl::ToTimespec(remaining);
      timeout = &left;
    }
    syscall(SYS_futex, futex_word(op_record), FUTEX_WAIT, static_cast<uint32_t>(word), timeout,
            nullptr, 0);
  }
  op_record.num_sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return in_time;
}

Status Rendezvous::verdict(uint32_t seq) const {
  OpRecord& op_record = record(seq);
  // Settling takes microseconds; a settler that dies at it is given up after a second.
  for (int i = 0; i < 1'000'000 && load(seq).phase == Phase::kSettling; ++i) {
    if (i > 100) sched_yield();
  }
  const State state = load(seq);
  if (state.seq != seq || state.phase != Phase::kFailed) {
    return absl::UnavailableError(
        absl::StrCat("operation ", seq, " of the group was given up without this client"));
  }
  const auto code = static_cast<absl::StatusCode>(op_record.verdict_code.load());
  std::string text(std::min<uint32_t>(op_record.verdict_bytes.load(), kVerdictBytes), '\0');
  // After a timeout nobody is waited for: the record may go on meanwhile.
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = std::atomic_ref(op_record.verdict[i]).load(std::memory_order_acquire);
  }
  if (load(seq).seq != seq) return verdict(seq);
  return Status(code, text);
}

Status Rendezvous::arrive(const Op& op) {
  OpRecord& op_record = record(op.seq);
  MemberEntry& own = entry(op.seq, op.member);
  if (own.seq.load(std::memory_order_relaxed) == op.seq) return absl::OkStatus();
  own.seq.store(op.seq, std::memory_order_release);
  uint64_t word = op_record.state.load(std::memory_order_seq_cst);
  while (true) {
    State state = State::unpack(word);
    if (state.seq != op.seq) {
      if (static_cast<int32_t>(state.seq - op.seq) > 0) return verdict(op.seq);
      // wait_free() has seen the record free, and that does not change but by this operation.
      state = {op.seq, 0, 0, Phase::kOpen};
    }
    if (state.phase != Phase::kOpen) return verdict(op.seq);
    ++state.arrived;
    const bool last = state.arrived == members_.size();
    if (last) state.phase = op.ends_at_arrival ? Phase::kMet : Phase::kRunning;
    if (op_record.state.compare_exchange_weak(word, state.pack(), std::memory_order_seq_cst)) {
      if (last) wake(op_record);
      return absl::OkStatus();
    }
  }
}

Status Rendezvous::wait_arrived(const Op& op) {
  const bool in_time = wait_while(op.seq, op.deadline, op.holds_device ? &op : nullptr,
                                  [](const State& state) { return state.phase == Phase::kOpen; });
  if (!in_time) {
    // The last member may have come just now: then the operation goes on.
    settle_timed_out(op, From::kOpen).IgnoreError();
  }
  if (all_arrived(op.seq)) return absl::OkStatus();
  return verdict(op.seq);
}

Status Rendezvous::finish(uint32_t seq, int num_members) {
  OpRecord& op_record = record(seq);
  uint64_t word = op_record.state.load(std::memory_order_seq_cst);
  while (true) {
    State state = State::unpack(word);
    if (state.seq != seq || state.phase != Phase::kRunning) return verdict(seq);
    state.finished += num_members;
    if (op_record.state.compare_exchange_weak(word, state.pack(), std::memory_order_seq_cst)) {
      if (state.finished == members_.size()) wake(op_record);
      return absl::OkStatus();
    }
  }
}

Status Rendezvous::wait_finished(const Op& op, From from) {
  if (!wait_left(op.seq, op.deadline)) {
    settle_timed_out(op, from).IgnoreError();
    // All arrived in the last moment, and are at work on memory that is not ours to take away.
    if (from == From::kOpen) wait_left(op.seq, absl::InfiniteFuture());
  }
  const State state = load(op.seq);
  // A record that describes a later operation has been left by all members of this one.
  if (state.seq != op.seq || state.phase == Phase::kRunning) return absl::OkStatus();
  return verdict(op.seq);
}

bool Rendezvous::wait_left(uint32_t seq, absl::Time deadline) {
  return wait_while(seq, deadline, nullptr,
                    [this](const State& state) { return is_under_way(state); });
}

bool Rendezvous::is_finished(uint32_t seq) const {
  const State state = load(seq);
  return state.seq != seq || !is_under_way(state);
}

Status Rendezvous::settle(uint32_t seq, VerdictKind kind, From from, const Status& error) {
  return settle_with(seq, kind, from, [&] { return error; });
}

Status Rendezvous::settle_with(uint32_t seq, VerdictKind kind, From from,
                               absl::FunctionRef<Status()> make_error) {
  OpRecord& op_record = record(seq);
  uint64_t word = op_record.state.load(std::memory_order_seq_cst);
  bool after_arrival = false;
  while (true) {
    State state = State::unpack(word);
    if (state.seq != seq) {
      if (static_cast<int32_t>(state.seq - seq) > 0) return verdict(seq);
      if (!is_free(state, seq)) return make_error();
      state = {seq, 0, 0, Phase::kOpen};
    }
    if (state.phase >= Phase::kSettling) return verdict(seq);
    after_arrival = state.phase != Phase::kOpen;
    const bool is_over = state.finished == members_.size() ||
                         (state.phase == Phase::kMet && kind != VerdictKind::kMismatch);
    if (after_arrival && (from == From::kOpen || is_over)) return absl::OkStatus();
    state.phase = Phase::kSettling;
    state.finished = 0;  // from here on it counts who has read the verdict
    if (op_record.state.compare_exchange_weak(word, state.pack(), std::memory_order_seq_cst)) {
      word = state.pack();
      break;
    }
  }
  // From here on the entries stay what they are until the verdict is read.
  const Status error = make_error();
  const absl::string_view message = error.message().substr(0, kVerdictBytes);
  op_record.verdict_kind.store(kind, std::memory_order_relaxed);
  op_record.verdict_after_arrival.store(after_arrival ? 1 : 0, std::memory_order_relaxed);
  op_record.verdict_code = static_cast<int32_t>(error.code());
  op_record.verdict_bytes = static_cast<uint32_t>(message.size());
  for (size_t i = 0; i < message.size(); ++i) {
    std::atomic_ref(op_record.verdict[i]).store(message[i], std::memory_order_release);
  }
  State settled = State::unpack(word);  // nobody changes a record that is being settled
  settled.phase = Phase::kFailed;
  // Unless this thread was held up for so long that the others have gone on without its verdict.
  op_record.state.compare_exchange_strong(word, settled.pack(), std::memory_order_seq_cst);
  wake(op_record);
  return verdict(seq);
}

void Rendezvous::settle_arrived(int member, uint32_t done, From from, const Status& error) {
  for (uint32_t i = 0; i <= last_record_; ++i) {
    // Before the member's entry: it is what the member wrote before it arrived.
    const State state = load(i);
    const MemberEntry& own = entry(i, member);
    const bool has_arrived = own.seq.load(std::memory_order_acquire) == state.seq;
    if (!has_arrived || static_cast<int32_t>(state.seq - done) <= 0) continue;
    settle_with(state.seq, VerdictKind::kError, from, [&] {
      return with_context(error, label_of(own));
    }).IgnoreError();
  }
}

Status Rendezvous::settle_timed_out(const Op& op, From from) {
  return settle(op.seq, VerdictKind::kTimedOut, from, describe_missing(op));
}

void Rendezvous::acknowledge(uint32_t seq) {
  OpRecord& op_record = record(seq);
  uint64_t word = op_record.state.load(std::memory_order_seq_cst);
  while (true) {
    State state = State::unpack(word);
    if (state.seq != seq || state.phase != Phase::kFailed) return;
    ++state.finished;
    if (op_record.state.compare_exchange_weak(word, state.pack(), std::memory_order_seq_cst)) {
      if (state.finished == members_.size()) wake(op_record);
      return;
    }
  }
}

bool Rendezvous::failed_on_the_move(uint32_t seq) const {
  const State state = load(seq);
  if (state.seq != seq || state.phase != Phase::kFailed) return true;
  const OpRecord& op_record = record(seq);
  return op_record.verdict_after_arrival.load(std::memory_order_relaxed) != 0 &&
         op_record.verdict_kind.load(std::memory_order_relaxed) != VerdictKind::kMismatch;
}

bool Rendezvous::all_are_done_with(uint32_t seq) const {
  const State state = load(seq);
  // A record goes on when all that have arrived have acknowledged the verdict.
  if (static_cast<int32_t>(state.seq - seq) > 0) return true;
  if (state.seq == seq && state.phase == Phase::kFailed && state.finished == members_.size()) {
    return true;
  }
  for (int m = 0; m < size(); ++m) {
    // Pairs with leave().
    const uint32_t left = progress_[m].left.load(std::memory_order_acquire);
    if (static_cast<int32_t>(left - seq) < 0 && !link_->is_gone(members_[m].client_id)) {
      return false;
    }
  }
  return true;
}

Status Rendezvous::describe_missing(const Op& op) const {
  std::map<int, std::vector<int>> missing;  // client -> its ordinals that have not arrived
  std::set<int> clients;
  for (int m = 0; m < size(); ++m) {
    clients.insert(members_[m].client_id);
    if (entry(op.seq, m).seq.load(std::memory_order_acquire) != op.seq) {
      missing[members_[m].client_id].push_back(members_[m].ordinal);
    }
  }
  const std::string waited = format_duration(
      op.deadline == absl::InfiniteFuture() ? steady_now() - op.start : op.deadline - op.start);
  std::string text = absl::StrCat(label_of(op), ": ", clients.size() - missing.size(), " of ",
                                  clients.size(), " clients arrived in ", waited);
  if (missing.empty()) absl::StrAppend(&text, "; some had not finished");
  const char* separator = "; missing ";
  for (const auto& [client, ordinals] : missing) {
    absl::StrAppend(&text, separator, link_->member(client).to_string(), ", ",
                    last_seen(client, ordinals[0]).to_string());
    separator = "; ";
  }
  return absl::DeadlineExceededError(text);
}

Status Rendezvous::find_mismatch(const Op& op) const {
  // The first member that has arrived is compared with the others in order, so that all members
  // that see the same arrivals name the same two.
  int first = 0;
  while (entry(op.seq, first).seq.load(std::memory_order_acquire) != op.seq) ++first;
  const MemberEntry& a = entry(op.seq, first);
  for (int m = first + 1; m < size(); ++m) {
    const MemberEntry& b = entry(op.seq, m);
    if (b.seq.load(std::memory_order_acquire) != op.seq || a.signature == b.signature) continue;
    const auto differ = [&](absl::string_view field, const auto& x, const auto& y) {
      return absl::InvalidArgumentError(absl::StrCat(
          label_of(a), ": ", field,
          " differs between clients: ", link_->member(members_[first].client_id).to_string(),
          " device ", members_[first].device_id, " has ", x, ", ",
          link_->member(members_[m].client_id).to_string(), " device ", members_[m].device_id,
          " has ", y, "; make the same call on every client"));
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
  return settle(op.seq, VerdictKind::kMismatch, From::kRunning, find_mismatch(op));
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
  return entry.label_size != 0 ? entry.label : label_of(entry.signature, ids_of(block_));
}

ActivitySnapshot Rendezvous::last_seen(int client, int ordinal) const {
  ActivitySnapshot seen = read_activity(activity_slot(link_->control(client), ordinal));
  if (seen.has_label) return seen;
  int32_t own_id = ordinal;
  for (int i = 0; i < client; ++i) own_id += link_->member(i).num_local_devices;
  std::vector<int32_t> ids;
  // An offset that need not be that of a group is not followed.
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
  for (uint32_t i = 0; i <= last_record_; ++i) newest = std::max(newest, load(i).seq);
  return newest;
}

void Rendezvous::pass_over(uint32_t from, uint32_t to) {
  // Of those before the last ones the records have gone on.
  for (uint32_t seq = std::max(from, to - std::min(to, num_records())); seq != to; ++seq) {
    if (load(seq).seq != seq || load(seq).phase < Phase::kSettling) continue;
    verdict(seq).IgnoreError();  // it is there now
    if (record(seq).verdict_kind.load(std::memory_order_relaxed) != VerdictKind::kTimedOut) {
      acknowledge(seq);
    }
  }
}

uint32_t Rendezvous::align(uint32_t seq, const Signature& signature) const {
  while (true) {
    const State state = load(seq);
    // Left behind by more than the records hold: join what is going on now.
    if (static_cast<int32_t>(state.seq - seq) > 0) {
      const uint32_t last = newest();
      return load(last).phase == Phase::kOpen ? last : last + 1;
    }
    if (state.seq != seq || state.phase != Phase::kFailed ||
        record(seq).verdict_kind.load(std::memory_order_relaxed) != VerdictKind::kTimedOut) {
      return seq;
    }
    bool anyone = false;
    for (int m = 0; m < size(); ++m) {
      const MemberEntry& other = entry(seq, m);
      if (other.seq.load(std::memory_order_acquire) != seq) continue;
      anyone = true;
      if (other.signature == signature) return seq;
    }
    if (!anyone) return seq;
    ++seq;
  }
}

}  // namespace tessera::host
