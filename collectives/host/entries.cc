// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/entries.h"

#include <atomic>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "collectives/counts.h"

namespace tessera::host {

StatusOr<SharedAddress> Entries::share(JointRun& run, const void* memory, int64_t num_bytes,
                                       ArenaPool::Block JointRun::Copies::*copy) const {
  if (memory == nullptr || num_bytes == 0) return SharedAddress{};
  if (!group_.spans_clients()) {
    return SharedAddress{SharedAddress::kPointer, 0, reinterpret_cast<uint64_t>(memory)};
  }
  const HostLink& link = group_.resources().link();
  const auto located = link.locate(static_cast<const std::byte*>(memory), num_bytes);
  if (located.has_value()) return *located;
  StatusOr<ArenaPool::Block> block = group_.resources().pool().allocate(num_bytes);
  if (!block.ok()) return run.labelled(block.status());
  const ArenaAddress address = block->address();
  if (!run.copies.has_value()) run.copies.emplace();
  (*run.copies).*copy = *std::move(block);
  return SharedAddress{address.arena, link.client_id(), address.offset};
}

StatusOr<SharedAddress> Entries::share_input(JointRun& run) const {
  const Collective& collective = run.collective();
  const Arguments& arguments = run.arguments();
  const bool shares_addresses = group_.mover().shares_addresses(collective);
  if (!shares_addresses && collective.kind() != OpKind::kSendRecv) return SharedAddress{};
  TESSERA_ASSIGN_OR_RETURN(const SharedAddress address,
                           share(run, arguments.in, run.in_bytes(), &JointRun::Copies::in));
  std::byte* const copy = run.copy(&JointRun::Copies::in);
  if (copy != nullptr && shares_addresses) {
    std::memcpy(copy, arguments.in, run.in_bytes());
  } else if (copy != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        run.labelled(group_.mover().fetch(collective, arguments, run.op.seq, copy)));
  }
  return address;
}

StatusOr<SharedAddress> Entries::share_counts(JointRun& run) const {
  run.peer_counts = group_.mover().encode_request(run.collective());
  if (run.peer_counts.empty()) return SharedAddress{};
  const int64_t bytes = static_cast<int64_t>(run.peer_counts.size() * sizeof(int64_t));
  TESSERA_ASSIGN_OR_RETURN(const SharedAddress address,
                           share(run, run.peer_counts.data(), bytes, &JointRun::Copies::counts));
  if (std::byte* const copy = run.copy(&JointRun::Copies::counts)) {
    std::memcpy(copy, run.peer_counts.data(), bytes);
  }
  return address;
}

Status Entries::fill(JointRun& run) {
  const Collective& collective = run.collective();
  const Arguments& arguments = run.arguments();
  Mover& mover = group_.mover();
  MemberEntry& entry = rendezvous_.entry(run.op.seq, run.op.member);
  // After a timeout other members may still look at what the record held before.
  entry.seq.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.in_count = run.in_count();
  if (run.op.signature.inlined) {
    if (run.in_bytes() > 0) std::memcpy(entry.inlined, arguments.in, run.in_bytes());
    fill_signature(run, entry);
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(mover.arrive(collective, arguments, run.op.seq, run.op.member,
                                       absl::MakeSpan(entry.inlined)));
  TESSERA_ASSIGN_OR_RETURN(entry.in, share_input(run));
  entry.out = SharedAddress{};
  if (mover.shares_addresses(collective) && run.do_peers_write_output) {
    TESSERA_ASSIGN_OR_RETURN(entry.out,
                             share(run, arguments.out, run.out_bytes(), &JointRun::Copies::out));
  }
  TESSERA_ASSIGN_OR_RETURN(entry.counts, share_counts(run));
  fill_signature(run, entry);
  return absl::OkStatus();
}

bool Entries::has_detail(const JointRun& run) {
  const Collective& collective = run.collective();
  const bool has_counts = collective.are_counts_agreed() && !collective.counts().are_equal();
  return !run.arguments().detail.empty() || has_counts;
}

void Entries::fill_signature(const JointRun& run, MemberEntry& entry) const {
  entry.signature = run.op.signature;
  const Collective& collective = run.collective();
  const Counts& counts = collective.counts();
  const Arguments& arguments = run.arguments();
  if (!arguments.detail.empty()) {
    copy_cut(absl::MakeSpan(entry.detail), arguments.detail);
  } else if (collective.are_counts_agreed() && counts.are_equal()) {
    entry.part_count = counts[0];
  } else if (collective.are_counts_agreed()) {
    copy_cut(absl::MakeSpan(entry.detail), counts.to_string());
  }
  entry.label_size = 0;
  if (!arguments.label.empty()) {
    entry.label_size = static_cast<uint16_t>(arguments.label.copy_to(absl::MakeSpan(entry.label)));
  }
}

void Entries::publish_running(const JointRun& run) {
  if (!run.op.holds_device) return;
  char text[kLabelBytes];
  const size_t size = run.arguments().label.copy_to(absl::MakeSpan(text));
  publish(run, DeviceActivity::kRunning, {text, size});
}

void Entries::publish_waiting(const JointRun& run) {
  if (!run.op.holds_device) return;
  const MemberEntry& entry = rendezvous_.entry(run.op.seq, run.op.member);
  publish(run, DeviceActivity::kWaiting, {entry.label, entry.label_size});
}

void Entries::publish(const JointRun& run, DeviceActivity::Kind kind, absl::string_view label) {
  Activity activity = run.activity(kind);
  activity.seq = run.op.seq;
  activity.leader_client = rendezvous_.leader_client();
  activity.block_offset = rendezvous_.block_offset();
  activity.generation = rendezvous_.generation();
  activity.name_hash = run.op.name_hash;
  publish_collective(group_.activity(run.op.member), activity, label);
}

Entries::Memories Entries::inlined_memory(const JointRun& run) const {
  Memories memory;
  for (int m = 0; m < rendezvous_.size(); ++m) {
    const MemberEntry& entry = rendezvous_.entry(run.op.seq, m);
    memory.push_back({entry.inlined, entry.in_count});
  }
  memory[run.op.member].out = run.arguments().out;
  return memory;
}

StatusOr<Entries::Memories> Entries::memory(const JointRun& run) const {
  const Collective& collective = run.collective();
  const absl::Span<const int> replicas = collective.replicas();
  const int64_t element_bytes = dtype_size(collective.dtype());
  const int64_t num_counts = collective.needs_peer_counts() ? run.peer_counts.size() : 0;
  Memories memory(rendezvous_.size());
  for (int m = 0; m < rendezvous_.size(); ++m) {
    const MemberEntry& entry = rendezvous_.entry(run.op.seq, m);
    const auto resolve = [&](SharedAddress address, int64_t count,
                             int64_t size) -> StatusOr<std::byte*> {
      // Plain pointers are valid only in a group within one process.
      if (address.arena == SharedAddress::kPointer && !group_.spans_clients()) {
        return reinterpret_cast<std::byte*>(address.offset);
      }
      // A negative count is an error too: no arena is as large.
      return group_.resources().link().resolve(address, static_cast<uint64_t>(count) * size,
                                               run.op.deadline);
    };
    // The outputs of other replicas are not used.
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
  MemberMemory& own = memory[run.op.member];
  const bool shares_addresses = group_.mover().shares_addresses(collective);
  if (!shares_addresses && collective.kind() != OpKind::kSendRecv) own.in = run.arguments().in;
  if (!replicas.empty()) {
    own.out = memory[replicas[0]].out;
  } else if (!shares_addresses || !run.do_peers_write_output) {
    own.out = run.arguments().out;
  }
  return memory;
}

}  // namespace tessera::host
