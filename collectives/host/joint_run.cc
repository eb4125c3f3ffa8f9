// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/joint_run.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/format.h"
#include "collectives/counts.h"
#include "collectives/host/device_mover.h"
#include "collectives/host/host_group.h"
#include "collectives/host/quarantine.h"
#include "collectives/host/rendezvous_texts.h"

namespace tessera::host {

JointRun::JointRun(Meetings& meetings, int member, Collective::Ptr collective,
                   Arguments&& run_arguments, Clock clock)
    : Run(meetings.group().shared_from_this(), member, std::move(collective),
          std::move(run_arguments), clock),
      meetings_(meetings) {
  const Arguments& own = arguments();
  op.member = member;
  op.label = &own.label;
  op.detail_field = own.detail_field.empty() ? absl::string_view("counts") : own.detail_field;
  op.is_given_up = &run_stage().is_given_up();
  op.signature = this->collective().signature();
  do_peers_write_output = this->collective().access().do_peers_write_output;
  if (!own.detail.empty()) op.signature.detail_hash = own.detail.hash();
  // The name is quoted: an empty one has two characters.
  const bool is_barrier = this->collective().kind() == OpKind::kBarrier;
  if (is_barrier && own.detail.view().size() > 2) op.name_hash = op.signature.detail_hash;
}

// ---- The protocol.

void JointRun::start_clock() {
  const Arguments& own = arguments();
  const absl::Duration timeout = own.timeout.value_or(group().resources().collective_timeout());
  op.start = called().begun(timeout);
  op.deadline = op.start + timeout;
  if (own.deadline.has_value()) {
    op.deadline = *own.deadline;
    op.start = own.timeout.has_value() ? op.deadline - timeout : called().exactly();
  }
}

Rendezvous::Op JointRun::describe(absl::Time start, absl::Time deadline) const {
  const Arguments& own = arguments();
  if (own.deadline.has_value() && own.timeout.has_value()) {
    deadline = *own.deadline;
    start = deadline - *own.timeout;
  }
  // Field by field: the running thread may be setting start and deadline of `op`.
  return {.seq = op.seq,
          .member = op.member,
          .label = op.label,
          .detail_field = op.detail_field,
          .signature = op.signature,
          .name_hash = op.name_hash,
          .holds_device = op.holds_device,
          .start = start,
          .deadline = deadline};
}

Status JointRun::reserve(const Rendezvous::Op& own) {
  // A member is done with an operation before it arrives at the next one.
  const uint32_t all_came = meetings_.all_came(own.member);
  if (own.seq - all_came < rendezvous().records().num_records() && all_came != 0)
    return absl::OkStatus();
  if (rendezvous().records().was_freed(own.seq)) return absl::OkStatus();
  publish_running();
  while (true) {
    // First: a member that is gone never frees its record. Errors of the call itself are not
    // returned here: the others must read them in the record.
    TESSERA_RETURN_IF_ERROR(interruption());
    const absl::Time deadline = std::min(own.deadline, steady_now() + Meetings::kLossCheckInterval);
    if (rendezvous().wait_free(own.seq, deadline)) return absl::OkStatus();
    if (steady_now() >= own.deadline) return describe_behind(rendezvous().records(), own);
  }
}

Status JointRun::fail(const Rendezvous::Op& own, VerdictKind kind, const Status& error) {
  publish_running();
  // With a lost member the record may never be free again, and the others detect the loss
  // themselves: there is nothing to wait for.
  if (group().lost_member().ok() && !reserve(own).ok()) return error;
  const Status verdict = rendezvous().settle(own.seq, kind, Rendezvous::From::kOpen, error, &own);
  return verdict.ok() ? error : verdict;
}

Status JointRun::settle_running(VerdictKind kind, const Status& error) const {
  return rendezvous().settle(op.seq, kind, Rendezvous::From::kRunning, error, &op);
}

Status JointRun::local_error() {
  if (!collective().error().ok()) return labelled(collective().error());
  if (group().may_be_interrupted()) TESSERA_RETURN_IF_ERROR(interruption());
  if (is_on_device()) {
    TESSERA_RETURN_IF_ERROR(labelled(group().device_mover()->check(collective())));
  }
  if (arguments().in_buffer == nullptr && arguments().out_buffer == nullptr) {
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(find_input());
  return take_output();
}

// Errors that only this member can detect become the verdict of all, before it arrives.
Status JointRun::join() {
  Status local = local_error();
  if (local.ok() && group().device_mover() != nullptr) {
    const Status waited = wait_for_device(op.deadline);
    if (absl::IsDeadlineExceeded(waited)) {
      // This member itself is late.
      TESSERA_RETURN_IF_ERROR(reserve(op));
      Rendezvous::Op late = op;
      late.deadline = std::min(op.deadline, steady_now());
      return rendezvous().settle_timed_out(late, Rendezvous::From::kOpen);
    }
    local = labelled(waited);
  }
  if (!local.ok()) return fail(op, VerdictKind::kError, local);
  TESSERA_RETURN_IF_ERROR(reserve(op));
  const Status filled = fill();
  if (!filled.ok()) return fail(op, VerdictKind::kError, filled);
  publish_waiting();
  TESSERA_RETURN_IF_ERROR(rendezvous().arrive(op));
  return group().may_be_interrupted() ? interrupted_meanwhile() : absl::OkStatus();
}

// fail_pending() settles only operations at which a member has arrived, so it misses an
// interruption between local_error() and the arrival.
Status JointRun::interrupted_meanwhile() const {
  const Status why = interruption();
  if (why.ok()) return why;
  return rendezvous().settle(op.seq, VerdictKind::kError, meetings_.give_up_from(), why, &op);
}

Status JointRun::meet() {
  if (!rendezvous().records().all_arrived(op.seq))
    TESSERA_RETURN_IF_ERROR(rendezvous().wait_arrived(op));
  // Not for messages: a sender reads the verdict of a message that fails later.
  if (op.holds_device) meetings_.all_came(op.member) = op.seq;
  return rendezvous().check_signatures(op);
}

Status JointRun::leave_device() const {
  return is_on_device() ? group().device_mover()->leave(op.seq, op.member) : absl::OkStatus();
}

void JointRun::fail_on_devices(absl::Duration waited, absl::string_view why) const {
  if (shares_addresses()) return;
  group().device_mover()->fail(
      op.seq, op.member,
      absl::DeadlineExceededError(absl::StrCat(not_in_time("not done", waited), why)));
}

// A peer that was held up may go on writing after this member has given up. The group cannot keep
// memory that is the caller's, so the pool must not reuse it.
void JointRun::abandon(const Status& error, bool found_mismatch) {
  if (has_moved() && is_on_device()) group().device_mover()->fail(op.seq, op.member, error);
  const bool on_the_move =
      group().spans_clients() && failed_on_the_move(rendezvous().records(), op.seq);
  const bool is_callers = arguments().out_buffer == nullptr && copy(&Copies::out) == nullptr;
  if (on_the_move && is_callers && shares_addresses() && do_peers_write_output) {
    group().resources().pool().withhold(arguments().out, out_bytes(collective()));
  }
  // Members that have not detected the mismatch yet still read the entry of this member.
  if (!on_the_move && !found_mismatch) return;
  using Until = Quarantine::Until;
  // A GPU may still run work that it received.
  meetings_.quarantine().keep(executor_ref(), op.seq,
                              is_on_device() ? Until::kShutdown : Until::kOthersAreDone);
}

void JointRun::acknowledge() {
  if (is_acknowledged_.exchange(true)) return;
  rendezvous().acknowledge(op.seq, op.member);
}

// ---- The entry.

StatusOr<shm::SharedAddress> JointRun::share(const void* memory, int64_t num_bytes,
                                             ArenaPool::Block Copies::*copy) {
  if (memory == nullptr || num_bytes == 0) return shm::SharedAddress{};
  if (!group().spans_clients()) {
    return shm::SharedAddress{shm::SharedAddress::kPointer, 0, reinterpret_cast<uint64_t>(memory)};
  }
  const shm::HostLink& link = group().resources().link();
  const auto located = link.memory().locate(static_cast<const std::byte*>(memory), num_bytes);
  if (located.has_value()) return *located;
  StatusOr<ArenaPool::Block> block = group().resources().pool().allocate(num_bytes);
  if (!block.ok()) return labelled(block.status());
  const ArenaAddress address = block->address();
  if (!copies.has_value()) copies.emplace();
  (*copies).*copy = *std::move(block);
  return shm::SharedAddress{address.arena, link.members().client_id(), address.offset};
}

StatusOr<shm::SharedAddress> JointRun::share_input() {
  if (!shares_addresses() && collective().kind() != OpKind::kSendRecv) return shm::SharedAddress{};
  TESSERA_ASSIGN_OR_RETURN(const shm::SharedAddress address,
                           share(arguments().in, in_bytes(collective()), &Copies::in));
  std::byte* const to = copy(&Copies::in);
  if (to != nullptr && shares_addresses()) {
    std::memcpy(to, arguments().in, in_bytes(collective()));
  } else if (to != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        labelled(group().device_mover()->fetch(collective(), arguments(), op.seq, to)));
  }
  return address;
}

StatusOr<shm::SharedAddress> JointRun::share_counts() {
  if (collective().needs_peer_counts()) {
    peer_counts = own_counts(collective());
  } else if (is_on_device()) {
    peer_counts = group().device_mover()->encode_request(collective());
  }
  if (peer_counts.empty()) return shm::SharedAddress{};
  const int64_t bytes = static_cast<int64_t>(peer_counts.size() * sizeof(int64_t));
  TESSERA_ASSIGN_OR_RETURN(const shm::SharedAddress address,
                           share(peer_counts.data(), bytes, &Copies::counts));
  if (std::byte* const to = copy(&Copies::counts)) std::memcpy(to, peer_counts.data(), bytes);
  return address;
}

Status JointRun::fill() {
  MemberEntry& entry = rendezvous().records().entry(op.seq, op.member);
  // After a timeout other members may still look at the previous contents of the record.
  entry.seq.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.in_count = collective().in_count().value_or(0);
  if (op.signature.inlined) {
    const int64_t size = in_bytes(collective());
    if (size > 0) std::memcpy(entry.inlined, arguments().in, size);
    fill_signature(entry);
    return absl::OkStatus();
  }
  if (is_on_device()) {
    TESSERA_RETURN_IF_ERROR(group().device_mover()->arrive(
        collective(), arguments(), op.seq, op.member, absl::MakeSpan(entry.inlined)));
  }
  TESSERA_ASSIGN_OR_RETURN(entry.in, share_input());
  entry.out = shm::SharedAddress{};
  if (shares_addresses() && do_peers_write_output) {
    TESSERA_ASSIGN_OR_RETURN(entry.out,
                             share(arguments().out, out_bytes(collective()), &Copies::out));
  }
  TESSERA_ASSIGN_OR_RETURN(entry.counts, share_counts());
  fill_signature(entry);
  return absl::OkStatus();
}

bool JointRun::has_detail() const {
  const bool has_counts = collective().are_counts_agreed() && !collective().counts().are_equal();
  return !arguments().detail.empty() || has_counts;
}

void JointRun::fill_signature(MemberEntry& entry) const {
  entry.signature = op.signature;
  const Counts& counts = collective().counts();
  const Arguments& own = arguments();
  if (!own.detail.empty()) {
    copy_cut(absl::MakeSpan(entry.detail), own.detail);
  } else if (collective().are_counts_agreed() && counts.are_equal()) {
    entry.part_count = counts[0];
  } else if (collective().are_counts_agreed()) {
    copy_cut(absl::MakeSpan(entry.detail), counts.to_string());
  }
  entry.label_size = 0;
  if (!own.label.empty()) {
    entry.label_size = static_cast<uint16_t>(own.label.copy_to(absl::MakeSpan(entry.label)));
  }
}

void JointRun::publish_running() const {
  if (!op.holds_device) return;
  char text[shm::kLabelBytes];
  const size_t size = arguments().label.copy_to(absl::MakeSpan(text));
  publish(shm::DeviceActivity::kRunning, {text, size});
}

void JointRun::publish_waiting() const {
  if (!op.holds_device) return;
  const MemberEntry& entry = rendezvous().records().entry(op.seq, op.member);
  publish(shm::DeviceActivity::kWaiting, {entry.label, entry.label_size});
}

void JointRun::publish(shm::DeviceActivity::Kind kind, absl::string_view label) const {
  shm::Activity activity = activity_of(collective(), kind);
  activity.seq = op.seq;
  activity.leader_client = rendezvous().records().id().leader_client;
  activity.block_offset = rendezvous().records().id().offset;
  activity.generation = rendezvous().records().id().generation;
  activity.name_hash = op.name_hash;
  shm::publish_activity(group().activity(op.member), activity, label);
}

JointRun::Memories JointRun::inlined_memory() const {
  Memories memory;
  for (int m = 0; m < rendezvous().records().size(); ++m) {
    const MemberEntry& entry = rendezvous().records().entry(op.seq, m);
    memory.push_back({entry.inlined, entry.in_count});
  }
  memory[op.member].out = arguments().out;
  return memory;
}

StatusOr<JointRun::Memories> JointRun::memory() const {
  const absl::Span<const int> replicas = collective().replicas();
  const int64_t element_bytes = dtype_size(collective().dtype());
  const int64_t num_counts = collective().needs_peer_counts() ? peer_counts.size() : 0;
  Memories memory(rendezvous().records().size());
  for (int m = 0; m < rendezvous().records().size(); ++m) {
    const MemberEntry& entry = rendezvous().records().entry(op.seq, m);
    const auto resolve = [&](shm::SharedAddress address, int64_t count,
                             int64_t size) -> StatusOr<std::byte*> {
      // Plain pointers are valid only in a group within one process.
      if (address.arena == shm::SharedAddress::kPointer && !group().spans_clients()) {
        return reinterpret_cast<std::byte*>(address.offset);
      }
      // A negative count is an error too: no arena is as large.
      return group().resources().link().memory().resolve(
          address, static_cast<uint64_t>(count) * size, op.deadline);
    };
    // The outputs of other replicas are not used.
    int64_t out_count = collective().count();
    if (!replicas.empty()) out_count = m == replicas[0] ? *collective().out_count() : 0;
    memory[m].in_count = entry.in_count;
    TESSERA_ASSIGN_OR_RETURN(memory[m].in, resolve(entry.in, entry.in_count, element_bytes));
    TESSERA_ASSIGN_OR_RETURN(memory[m].out, resolve(entry.out, out_count, element_bytes));
    TESSERA_ASSIGN_OR_RETURN(const std::byte* counts,
                             resolve(entry.counts, num_counts, sizeof(int64_t)));
    memory[m].counts = reinterpret_cast<const int64_t*>(counts);
    memory[m].board = entry.inlined;
  }
  MemberMemory& own = memory[op.member];
  if (!shares_addresses() && collective().kind() != OpKind::kSendRecv) own.in = arguments().in;
  if (!replicas.empty()) {
    own.out = memory[replicas[0]].out;
  } else if (!shares_addresses() || !do_peers_write_output) {
    own.out = arguments().out;
  }
  return memory;
}

}  // namespace tessera::host
