// SPDX-License-Identifier: Apache-2.0
//
// What a member of a HostGroup tells the others of its operation, and what it reads of them: where
// the memory lies, what the operation is, what its device is doing.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "collectives/counts.h"
#include "collectives/host/activity.h"
#include "collectives/host/host_group.h"

namespace tessera::host {

Rendezvous::Op HostGroup::describe(const HostOp& op, absl::Time start, absl::Time deadline) const {
  if (op.arguments_.deadline.has_value() && op.arguments_.timeout.has_value()) {
    deadline = *op.arguments_.deadline;
    start = op.start_of(deadline);
  }
  const Rendezvous::Op& meeting = op.meeting_;
  return {.seq = meeting.seq,
          .member = meeting.member,
          .label = meeting.label,
          .detail_field = meeting.detail_field,
          .signature = meeting.signature,
          .name_hash = meeting.name_hash,
          .holds_device = meeting.holds_device,
          .ends_at_arrival = meeting.ends_at_arrival,
          .start = start,
          .deadline = deadline};
}

bool HostGroup::shares_addresses(const HostOp& op) const {
  return !is_on_device(op) || !spans_clients_;
}

StatusOr<SharedAddress> HostGroup::share(HostOp& op, const void* memory, int64_t num_bytes,
                                         ArenaPool::Block HostOp::Copies::*copy) const {
  if (memory == nullptr || num_bytes == 0) return SharedAddress{};
  if (!spans_clients_) {
    return SharedAddress{SharedAddress::kPointer, 0, reinterpret_cast<uint64_t>(memory)};
  }
  const HostLink& link = backend_.link_;
  const auto located = link.locate(static_cast<const std::byte*>(memory), num_bytes);
  if (located.has_value()) return *located;
  StatusOr<ArenaPool::Block> block = backend_.pool_->allocate(num_bytes);
  if (!block.ok()) return op.labelled(block.status());
  const ArenaAddress address = block->address();
  if (!op.copies_.has_value()) op.copies_.emplace();
  (*op.copies_).*copy = *std::move(block);
  return SharedAddress{address.arena, link.client_id(), address.offset};
}

// Writes the member's entry: where its memory is, and what it believes the operation to be.
Status HostGroup::fill_entry(HostOp& op) {
  const Collective& collective = *op.collective_;
  const Arguments& arguments = op.arguments_;
  const int64_t in_bytes = op.in_bytes();
  MemberEntry& entry = rendezvous_->entry(op.meeting_.seq, op.meeting_.member);
  // After a timeout other members may still look at what the record held before.
  entry.seq.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  if (is_on_device(op)) {
    TESSERA_RETURN_IF_ERROR(mover_->arrive(collective, arguments, op.meeting_.seq,
                                           op.meeting_.member, absl::MakeSpan(entry.inlined)));
  }
  if (op.inlined_) {
    if (in_bytes > 0) std::memcpy(entry.inlined, arguments.in, in_bytes);
    entry.in_count = op.in_count();
    fill_signature(op);
    return absl::OkStatus();
  }
  SharedAddress in;
  if (shares_addresses(op) || op.is_message()) {
    TESSERA_ASSIGN_OR_RETURN(in, share(op, arguments.in, in_bytes, &HostOp::Copies::in));
  }
  std::byte* const in_copy = op.copy(&HostOp::Copies::in);
  if (in_copy != nullptr && shares_addresses(op)) {
    std::memcpy(in_copy, arguments.in, in_bytes);
  } else if (in_copy != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        op.labelled(mover_->fetch(collective, arguments, op.meeting_.seq, in_copy)));
  }
  SharedAddress out;
  if (shares_addresses(op) && collective.do_peers_write_output()) {
    TESSERA_ASSIGN_OR_RETURN(out, share(op, arguments.out, op.out_bytes(), &HostOp::Copies::out));
  }
  SharedAddress counts;
  if (collective.needs_peer_counts()) {
    op.peer_counts_ = collective.own_counts();
  } else if (is_on_device(op)) {
    op.peer_counts_ = mover_->encode_request(collective);
  }
  if (!op.peer_counts_.empty()) {
    const int64_t bytes = static_cast<int64_t>(op.peer_counts_.size() * sizeof(int64_t));
    TESSERA_ASSIGN_OR_RETURN(counts,
                             share(op, op.peer_counts_.data(), bytes, &HostOp::Copies::counts));
    if (std::byte* const copy = op.copy(&HostOp::Copies::counts)) {
      std::memcpy(copy, op.peer_counts_.data(), bytes);
    }
  }
  entry.in_count = op.in_count();
  entry.in = in;
  entry.out = out;
  entry.counts = counts;
  fill_signature(op);
  return absl::OkStatus();
}

void HostGroup::fill_signature(HostOp& op) {
  MemberEntry& entry = rendezvous_->entry(op.meeting_.seq, op.meeting_.member);
  entry.signature = op.meeting_.signature;
  const Counts& counts = op.collective_->counts();
  const Arguments& arguments = op.arguments_;
  if (!arguments.detail.empty()) {
    copy_cut(absl::MakeSpan(entry.detail), arguments.detail);
  } else if (op.collective_->are_counts_agreed() && counts.are_equal()) {
    entry.part_count = counts[0];
  } else if (op.collective_->are_counts_agreed()) {
    copy_cut(absl::MakeSpan(entry.detail), counts.to_string());
  }
  entry.label_size = 0;
  if (!arguments.label.empty()) {
    entry.label_size = static_cast<uint16_t>(arguments.label.copy_to(absl::MakeSpan(entry.label)));
  }
}

void HostGroup::publish_running(const HostOp& op) {
  char text[kLabelBytes];
  const size_t size = op.arguments_.label.copy_to(absl::MakeSpan(text));
  publish(op, DeviceActivity::kRunning, {text, size});
}

void HostGroup::publish_waiting(const HostOp& op) {
  const MemberEntry& entry = rendezvous_->entry(op.meeting_.seq, op.meeting_.member);
  publish(op, DeviceActivity::kWaiting, {entry.label, entry.label_size});
}

void HostGroup::publish(const HostOp& op, DeviceActivity::Kind kind, absl::string_view label) {
  if (op.is_message()) return;
  const Signature& agreed = op.collective_->signature();
  Activity activity;
  activity.kind = kind;
  activity.op = agreed.kind;
  activity.dtype = agreed.dtype;
  activity.reduction = agreed.reduction;
  activity.count = agreed.count;
  if (rendezvous_.has_value()) {
    activity.seq = op.meeting_.seq;
    activity.leader_client = rendezvous_->leader_client();
    activity.block_offset = rendezvous_->block_offset();
    activity.generation = rendezvous_->generation();
  }
  activity.name_hash = op.meeting_.name_hash;
  publish_collective(backend_.link_.activity(members_[op.meeting_.member].ordinal), activity,
                     label);
}

StatusOr<HostGroup::MemberMemories> HostGroup::member_memory(const HostOp& op) {
  const Collective& collective = *op.collective_;
  const absl::Span<const int> replicas = collective.replicas();
  const int64_t element_bytes = dtype_size(collective.dtype());
  const int64_t num_counts = collective.needs_peer_counts() ? op.peer_counts_.size() : 0;
  MemberMemories memory(members_.size());
  for (int m = 0; m < static_cast<int>(members_.size()); ++m) {
    const MemberEntry& entry = rendezvous_->entry(op.meeting_.seq, m);
    const auto resolve = [&](SharedAddress address, int64_t count,
                             int64_t size) -> StatusOr<std::byte*> {
      // Of a group within one process alone.
      if (address.arena == SharedAddress::kPointer && !spans_clients_) {
        return reinterpret_cast<std::byte*>(address.offset);
      }
      // A negative count is an error too: no arena is as large.
      return backend_.link_.resolve(address, static_cast<uint64_t>(count) * size,
                                    op.meeting_.deadline);
    };
    // Of other replicas' outputs nothing is used.
    int64_t out_count = collective.count();
    if (!replicas.empty()) out_count = m == replicas[0] ? *collective.out_count() : 0;
    memory[m].in_count = entry.in_count;
    TESSERA_ASSIGN_OR_RETURN(memory[m].in, resolve(entry.in, entry.in_count, element_bytes));
    TESSERA_ASSIGN_OR_RETURN(memory[m].out, resolve(entry.out, out_count, element_bytes));
    TESSERA_ASSIGN_OR_RETURN(const std::byte* counts,
                             resolve(entry.counts, num_counts, sizeof(int64_t)));
    memory[m].counts = reinterpret_cast<const int64_t*>(counts);
    memory[m].board = entry.inlined;
  }
  MemberMemory& own = memory[op.meeting_.member];
  if (!shares_addresses(op) && !op.is_message()) own.in = op.arguments_.in;
  if (!replicas.empty()) {
    own.out = memory[replicas[0]].out;
  } else if (!shares_addresses(op) || !collective.do_peers_write_output()) {
    own.out = op.arguments_.out;
  }
  return memory;
}

}  // namespace tessera::host
