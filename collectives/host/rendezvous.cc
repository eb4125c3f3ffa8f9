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

int32_t* device_ids(GroupBlock* block) {
  return reinterpret_cast<int32_t*>(reinterpret_cast<std::byte*>(block) + sizeof(GroupBlock));
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

uint64_t align64(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

GroupBlock* make_block(std::byte* region, ControlHeader* header,
                       const std::vector<GroupMember>& members, uint32_t num_records) {
  const uint64_t n = members.size();
  const uint64_t progress_offset = align64(sizeof(GroupBlock) + n * sizeof(int32_t));
  const uint64_t records_offset = progress_offset + n * sizeof(MemberProgress);
  const uint64_t stride = sizeof(OpRecord) + n * sizeof(MemberEntry);
  const uint64_t bytes = records_offset + num_records * stride;
  const uint64_t offset = header->heap_used.fetch_add(bytes);
  if (offset + bytes > kControlBytes) return nullptr;
  auto* block = reinterpret_cast<GroupBlock*>(region + offset);
  block->num_members = static_cast<uint32_t>(n);
  block->num_records = num_records;
  block->progress_offset = progress_offset;
  block->records_offset = records_offset;
  block->record_stride = stride;
  for (uint64_t i = 0; i < n; ++i) device_ids(block)[i] = members[i].device_id;
  return block;
}

bool same_devices(GroupBlock* block, const std::vector<GroupMember>& members) {
  if (block->num_members != members.size()) return false;
  for (size_t i = 0; i < members.size(); ++i) {
    if (device_ids(block)[i] != members[i].device_id) return false;
  }
  return true;
}

// Waits until the slot is ready, or abandoned because its maker is lost. The loss of another client
// says nothing of this slot: to go on to the next one would make a second block of one group.
uint32_t settled_state(const HostLink& link, GroupSlot& slot) {
  while (true) {
    uint32_t state = slot.state.load(std::memory_order_acquire);
    if (state < GroupSlot::kClaimedBy) return state;
    const bool lost = !link.client_status(static_cast<int>(state - GroupSlot::kClaimedBy)).ok();
    if (lost && slot.state.compare_exchange_strong(state, GroupSlot::kAbandoned)) {
      return GroupSlot::kAbandoned;
    }
    sched_yield();
  }
}

}  // namespace

StatusOr<Rendezvous> Rendezvous::open(HostLink& link, std::vector<GroupMember> members,
                                      uint32_t num_records, uint64_t salt) {
  if (members.size() > kMaxMembers) {
    return absl::UnimplementedError(absl::StrCat(
        "a group of ", members.size(), " devices on one host; the most is ", kMaxMembers));
  }
  TESSERA_CHECK((num_records & (num_records - 1)) == 0, "a power of two");
  uint64_t key = salt + 1;
  for (const GroupMember& member : members) {
    key = stable_hash(absl::StrCat(member.device_id, ","), key);
  }
  Rendezvous result(link, std::move(members));
  result.leader_client_ = result.members_[0].client_id;
  std::byte* region = link.control(result.leader_client_);
  auto* header = reinterpret_cast<ControlHeader*>(region);
  auto* slots = reinterpret_cast<GroupSlot*>(region + header->slots_offset);
  // Slots are claimed in probing order and never freed, so that two clients which look for the
  // same group at once meet at the same slot.
  for (int i = 0; i < kMaxGroups; ++i) {
    GroupSlot& slot = slots[(key + i) % kMaxGroups];
    uint32_t claimed = GroupSlot::kClaimedBy + static_cast<uint32_t>(link.client_id());
    uint32_t empty = GroupSlot::kEmpty;
    if (slot.state.compare_exchange_strong(empty, claimed)) {
      GroupBlock* block = make_block(region, header, result.members_, num_records);
      slot.key = key;
      slot.block_offset = block == nullptr ? 0 : reinterpret_cast<std::byte*>(block) - region;
      // Fails where the others have declared this client lost in the meantime.
      slot.state.compare_exchange_strong(claimed, GroupSlot::kReady);
    }
    if (settled_state(link, slot) != GroupSlot::kReady || slot.key != key) continue;
    if (slot.block_offset == 0) break;  // its maker found the region full
    auto* block = reinterpret_cast<GroupBlock*>(region + slot.block_offset);
    if (!same_devices(block, result.members_)) continue;
    result.block_offset_ = slot.block_offset;
    result.use(block);
    return result;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("no room for another group in the control region of client ",
                   result.leader_client_, " (", kControlBytes >> 20, " MiB); use fewer groups"));
}

void Rendezvous::use(GroupBlock* block) {
  block_ = block;
  auto* const start = reinterpret_cast<std::byte*>(block);
  progress_ = reinterpret_cast<MemberProgress*>(start + block->progress_offset);
  records_ = start + block->records_offset;
  record_stride_ = block->record_stride;
  last_record_ = block->num_records - 1;
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

void Rendezvous::check_conflicts(const Op& op) {
  // Between what this device has written down and what it reads of others.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const Status mismatch = find_mismatch(op);
  if (!mismatch.ok()) {
    settle(op.seq, VerdictKind::kError, From::kOpen, mismatch).IgnoreError();
    return;
  }
  for (int m = 0; m < size(); ++m) {
    const GroupMember& member = members_[m];
    const bool missing = entry(op.seq, m).seq.load(std::memory_order_acquire) != op.seq;
    if (missing && conflicts_with(op, member.client_id, member.ordinal, true)) return;
  }
  if (op.name_hash == 0) return;
  for (int client = 0; client < link_->num_clients(); ++client) {
    for (int ordinal = 0; ordinal < link_->member(client).num_local_devices; ++ordinal) {
      if (conflicts_with(op, client, ordinal, false)) return;
    }
  }
}

bool Rendezvous::conflicts_with(const Op& op, int client, int ordinal, bool is_missing_member) {
  const ActivitySnapshot other = last_seen(client, ordinal);
  // A device that is about to wait writes that down first, and then looks for conflicts itself: of
  // two that wait for each other, the later one finds the other's words complete.
  if (!other.consistent || other.kind != DeviceActivity::kWaiting) return false;
  std::byte* region = link_->control(static_cast<int>(other.leader_client));
  auto* other_block = reinterpret_cast<GroupBlock*>(region + other.block_offset);
  if (other_block == block_) return false;
  // Two waits are a deadlock where each needs the other's device: streams are in order. Two
  // barriers of one name on meshes that overlap are a mistake, whoever waits for whom.
  const absl::Span<const int32_t> their_ids = ids_of(other_block);
  const auto waits_for = [&](int device_id) {
    return std::find(their_ids.begin(), their_ids.end(), device_id) != their_ids.end();
  };
  const bool mutual = is_missing_member && waits_for(members_[op.member].device_id);
  const bool same_name =
      op.name_hash != 0 && op.name_hash == other.name_hash &&
      std::any_of(members_.begin(), members_.end(),
                  [&](const GroupMember& member) { return waits_for(member.device_id); });
  if (!mutual && !same_name) return false;
  // Who knows of a death passes over what it cannot do any more, while another still waits there:
  // the loss ends that wait, and nobody has made a mistake.
  const auto is_dead = [this](int device_id) { return link_->is_dead(client_of(device_id)); };
  if (std::any_of(members_.begin(), members_.end(),
                  [&](const GroupMember& member) { return link_->is_dead(member.client_id); }) ||
      std::any_of(their_ids.begin(), their_ids.end(), is_dead)) {
    return false;
  }
  Rendezvous theirs(*link_, {});
  theirs.use(other_block);
  theirs.members_.resize(other_block->num_members);
  const State state = theirs.load(other.seq);
  if (state.seq != other.seq || state.phase != Phase::kOpen) return false;
  // Still open after the other one was seen to wait: so it was not on its way to this operation.
  const State ours = load(op.seq);
  if (ours.seq != op.seq || ours.phase != Phase::kOpen) return false;
  // Both sides may find this at once: they make one text of it.
  const GroupMember& self = members_[op.member];
  const auto describe = [&](int waiting_client, absl::string_view label) {
    return absl::StrCat(link_->member(waiting_client).to_string(), " waits in ",
                        label.substr(0, kLabelBytes - 1));
  };
  std::string first = describe(self.client_id, label_of(op));
  std::string second = describe(client, other.label);
  if (std::pair(client, ordinal) < std::pair(self.client_id, self.ordinal))
    std::swap(first, second);
  const Status error = absl::InvalidArgumentError(
      absl::StrCat("operations differ between clients: ", first, ", ", second,
                   "; make the same calls in the same order on every client"));
  // Ours first: theirs cannot go on before this member comes to it, but a member of theirs that is
  // let go could come to ours.
  settle(op.seq, VerdictKind::kError, From::kOpen, error).IgnoreError();
  theirs.settle(other.seq, VerdictKind::kError, From::kOpen, error).IgnoreError();
  return true;
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
  absl::Span<const int32_t> ids(&own_id, 1);
  // An offset that need not be that of a group is not followed.
  if (!seen.consistent) ids = {};
  if (seen.consistent && seen.block_offset != 0) {
    ids = ids_of(reinterpret_cast<GroupBlock*>(
        link_->control(static_cast<int>(seen.leader_client)) + seen.block_offset));
  }
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
