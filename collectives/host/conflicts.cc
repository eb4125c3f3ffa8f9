// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/conflicts.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/host/last_seen.h"
#include "collectives/host/op_record.h"
#include "collectives/host/rendezvous_texts.h"
#include "collectives/host/verdicts.h"
#include "collectives/label.h"
#include "shm/activity.h"
#include "shm/control.h"
#include "shm/group_table.h"

namespace tessera::host {

namespace {

// As wait_of(), for a wait in another group than this one.
std::optional<OperationWait> other_wait_of(const GroupRecords& group,
                                           const shm::GroupMember& device) {
  std::optional<OperationWait> wait = wait_of(group.link(), device);
  if (wait.has_value() && wait->group.block() == group.block()) return std::nullopt;
  return wait;
}

// Breadth first, from each operation to what its missing members wait in: each device that waits is
// followed once, and the circle that is found is a shortest one.
std::vector<OperationWait> find_circle(const GroupRecords& own, const MemberOp& op) {
  const int own_id = own.members()[op.member].device_id;
  std::deque<OperationWait> found;  // references to its elements stay valid
  std::set<int> visited = {own_id};
  // Position 0 is this operation, position k is found[k - 1].
  for (size_t at = 0; at <= found.size(); ++at) {
    const GroupRecords& group = at == 0 ? own : found[at - 1].group;
    const uint32_t seq = at == 0 ? op.seq : found[at - 1].seq;
    for (int m = 0; m < group.size(); ++m) {
      const shm::GroupMember member = group.members()[m];
      if (!group.is_missing(seq, m)) continue;
      if (member.device_id == own_id && at > 0) {
        std::vector<OperationWait> circle;
        for (size_t k = at; k > 0;) {
          const size_t next = found[k - 1].waited_for_by;
          circle.insert(circle.begin(), std::move(found[k - 1]));
          k = next;
        }
        return circle;
      }
      if (visited.count(member.device_id) > 0) continue;
      std::optional<OperationWait> wait = other_wait_of(own, member);
      if (!wait.has_value()) continue;
      // Most missing members are on their way: noting each would be quadratic in the group.
      visited.insert(member.device_id);
      wait->waited_for_by = at;
      found.push_back(*std::move(wait));
    }
  }
  return {};
}

// Makes it an error of all these operations that they wait for each other.
void settle_conflict(const GroupRecords& own, const MemberOp& op,
                     std::vector<OperationWait> others) {
  // A client that knows of a death skips calls that cannot succeed any more, while another client
  // still waits in one of them. The loss ends that wait, and is no mistake of the clients.
  const auto is_dead = [&own](const shm::GroupMember& member) {
    return own.link().liveness().is_dead(member.client_id);
  };
  const absl::Span<const shm::GroupMember> members = own.members();
  bool is_over = std::any_of(members.begin(), members.end(), is_dead) || !own.is_open(op.seq);
  for (const OperationWait& other : others) {
    const absl::Span<const shm::GroupMember> theirs = other.group.members();
    is_over |= std::any_of(theirs.begin(), theirs.end(), is_dead);
    // Still open after all of them were seen to wait: none was on its way to another of these.
    is_over |= !other.group.is_open(other.seq);
  }
  if (is_over) return;
  // Several members may find this at once: they make one text of it.
  std::vector<ConflictingWait> waits;
  const auto add = [&](const shm::GroupMember& device, const GroupRecords& group,
                       absl::string_view label) {
    char text[shm::kLabelBytes];
    waits.push_back({device.device_id,
                     own.link().members()[device.client_id].to_string(),
                     std::string(text, copy_cut(absl::MakeSpan(text), label)),
                     {}});
    for (const shm::GroupMember& member : group.members())
      waits.back().group.push_back(member.device_id);
  };
  add(members[op.member], own, label_of(own, op));
  for (const OperationWait& other : others) add(other.device, other.group, other.label);
  const Status error = describe_conflict(std::move(waits));
  // Ours first, and then in the order in which one waits for the next: a member that is told goes
  // on, and may go to the operation before, which has its verdict by then. This member goes on when
  // the last one has it.
  settle_at_once(own, op.seq, Record::From::kOpen, error);
  for (const OperationWait& other : others) other.end(error);
}

}  // namespace

std::vector<int> OperationWait::missing() const {
  std::vector<int> ids;
  for (int m = 0; m < group.size(); ++m) {
    if (group.is_missing(seq, m)) ids.push_back(group.members()[m].device_id);
  }
  return ids;
}

OperationWait::Awaited OperationWait::awaited() const {
  const State state = group.load(seq);
  const bool is_current = state.seq == seq;
  Awaited awaited = {std::vector<bool>(group.size()), false};
  if (is_current && (state.is_settled() || state.phase == Phase::kMet)) return awaited;
  awaited.all_arrived = is_current && state.phase == Phase::kRunning;
  if (is_current && !awaited.all_arrived) {
    awaited.members = group.arrivals(seq, state);
    awaited.members.flip();
    return awaited;
  }
  const uint32_t last = is_current ? seq : seq_before(seq, group.num_records());
  for (int m = 0; m < group.size(); ++m) {
    // Where all have arrived the device itself is not done either.
    const bool is_self = group.members()[m].device_id == device.device_id;
    awaited.members[m] = !group.has_left(last, m) && !is_self;
  }
  return awaited;
}

void OperationWait::end(const Status& error) const {
  shm::GroupTable table = group.link().groups_led_by(group.id().leader_client);
  table.with_block(group.block(), group.id().generation,
                   [&] { settle_at_once(group, seq, Record::From::kOpen, error); });
}

void check_conflicts(const GroupRecords& group, const MemberOp& op) {
  // Orders this device's writes before its reads of other devices' waits.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const Status mismatch = find_mismatch(group, op);
  if (!mismatch.ok()) {
    settle_at_once(group, op.seq, Record::From::kOpen, mismatch);
    return;
  }
  std::vector<OperationWait> others = find_circle(group, op);
  if (others.empty() && op.name_hash != 0) {
    if (std::optional<OperationWait> other = find_same_name(group, op))
      others.push_back(*std::move(other));
  }
  if (!others.empty()) settle_conflict(group, op, std::move(others));
}

std::string describe_wait(const GroupRecords& group, int member) {
  const std::optional<OperationWait> wait = wait_of(group.link(), group.members()[member]);
  if (!wait.has_value()) return "";
  const Label label(wait->label);
  MemberOp op;
  op.seq = wait->seq;
  op.label = &label;
  op.start = wait->since;
  return std::string(describe_missing(wait->group, op).message());
}

std::optional<OperationWait> wait_of(shm::HostLink& link, const shm::GroupMember& device) {
  if (!link.members().is_on_host(device.client_id)) return std::nullopt;
  const shm::DeviceActivity& slot =
      shm::activity_slot(link.memory().control(device.client_id), device.ordinal);
  if (shm::read_kind(slot) != shm::DeviceActivity::kWaiting) return std::nullopt;
  // A device that is about to wait writes that down first, and then looks for conflicts itself: of
  // several that wait for each other, the last one finds the words of all others complete.
  std::optional<OperationWait> wait = operation_of(link, device);
  if (!wait.has_value() || !wait->has_arrived || !wait->group.is_open(wait->seq)) {
    return std::nullopt;
  }
  return wait;
}

std::optional<OperationWait> operation_of(shm::HostLink& link, const shm::GroupMember& device) {
  if (!link.members().is_on_host(device.client_id)) return std::nullopt;
  shm::ActivitySnapshot seen = last_seen(link, device.client_id, device.ordinal);
  const bool has_arrived = seen.kind == shm::DeviceActivity::kWaiting;
  const bool is_active = has_arrived || seen.kind == shm::DeviceActivity::kRunning;
  if (!seen.consistent || !is_active || seen.block_offset == 0) return std::nullopt;
  const std::vector<int32_t> ids = devices_in(link, seen);
  const int leader = static_cast<int>(seen.leader_client);
  shm::GroupBlock* const block = ids.empty()
                                     ? nullptr
                                     : shm::GroupTable::find(link.memory().control(leader),
                                                             seen.block_offset, seen.generation);
  if (block == nullptr) return std::nullopt;
  std::vector<shm::GroupMember> members;
  for (const int32_t id : ids) members.push_back(device_of_id(link, id));
  GroupRecords group(link, std::move(members), leader, block);
  // A read of the block counts only if the block is still that group's.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (shm::GroupTable::find(link.memory().control(leader), seen.block_offset, seen.generation) !=
          block ||
      group.id().generation != seen.generation) {
    return std::nullopt;
  }
  return OperationWait{.device = device,
                       .group = std::move(group),
                       .seq = seen.seq,
                       .label = std::move(seen.label),
                       .since = shm::since_of(seen),
                       .name_hash = seen.name_hash,
                       .waited_for_by = 0,
                       .has_arrived = has_arrived};
}

std::optional<OperationWait> find_same_name(const GroupRecords& group, const MemberOp& op) {
  const absl::Span<const shm::GroupMember> members = group.members();
  shm::HostLink& link = group.link();
  const auto is_member_here = [&](const shm::GroupMember& other) {
    return std::any_of(members.begin(), members.end(), [&](const shm::GroupMember& member) {
      return member.device_id == other.device_id;
    });
  };
  for (int client = 0; client < link.members().num_clients(); ++client) {
    for (int ordinal = 0; ordinal < link.members()[client].num_local_devices; ++ordinal) {
      std::optional<OperationWait> wait = other_wait_of(group, {0, client, ordinal});
      if (!wait.has_value() || wait->name_hash != op.name_hash) continue;
      const absl::Span<const shm::GroupMember> theirs = wait->group.members();
      if (std::any_of(theirs.begin(), theirs.end(), is_member_here)) return wait;
    }
  }
  return std::nullopt;
}

}  // namespace tessera::host
