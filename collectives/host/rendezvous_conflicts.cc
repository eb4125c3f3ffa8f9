// SPDX-License-Identifier: Apache-2.0
//
// How a member of a Rendezvous finds that its operation can never be joined: members called
// different operations, or operations of several groups wait for each other in a circle.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
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
#include "collectives/host/activity.h"
#include "collectives/host/rendezvous.h"
#include "collectives/label.h"

namespace tessera::host {

std::vector<int> Rendezvous::Wait::missing() const {
  std::vector<int> ids;
  for (int m = 0; m < group->size(); ++m) {
    if (group->is_missing(seq, m)) ids.push_back(group->members_[m].device_id);
  }
  return ids;
}

Rendezvous::Wait::Awaited Rendezvous::Wait::awaited() const {
  const State state = group->load(seq);
  const bool is_current = state.seq == seq;
  Awaited awaited = {std::vector<bool>(group->size()), false};
  if (is_current && (state.is_settled() || state.phase == Phase::kMet)) return awaited;
  awaited.all_arrived = is_current && state.phase == Phase::kRunning;
  if (is_current && !awaited.all_arrived) {
    awaited.members = group->arrivals(seq, state);
    awaited.members.flip();
    return awaited;
  }
  const uint32_t last = is_current ? seq : seq_before(seq, group->num_records());
  for (int m = 0; m < group->size(); ++m) {
    // Where all have arrived the device itself is not done either.
    const bool is_self = group->members_[m].device_id == device.device_id;
    awaited.members[m] = !group->has_left(last, m) && !is_self;
  }
  return awaited;
}

void Rendezvous::Wait::end(const Status& error) const {
  GroupTable table = group->link_->groups_led_by(group->leader_client_);
  table.with_block(group->block_, group->generation_,
                   [&] { group->settle_at_once(seq, From::kOpen, error); });
}

void Rendezvous::check_conflicts(const Op& op) {
  // Between what this device has written down and what it reads of others.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const Status mismatch = find_mismatch(op);
  if (!mismatch.ok()) {
    settle_at_once(op.seq, From::kOpen, mismatch);
    return;
  }
  std::vector<Wait> others = find_circle(op);
  if (others.empty() && op.name_hash != 0) {
    if (std::optional<Wait> other = find_same_name(op)) others.push_back(*std::move(other));
  }
  if (!others.empty()) settle_conflict(op, std::move(others));
}

std::optional<Rendezvous::Wait> Rendezvous::other_wait_of(const GroupMember& device) const {
  std::optional<Wait> wait = wait_of(*link_, device);
  if (wait.has_value() && wait->group->block_ == block_) return std::nullopt;
  return wait;
}

std::string Rendezvous::describe_wait(int member) const {
  const std::optional<Wait> wait = wait_of(*link_, members_[member]);
  if (!wait.has_value()) return "";
  const Label label(wait->label);
  Op op;
  op.seq = wait->seq;
  op.label = &label;
  op.start = wait->since;
  return std::string(wait->group->describe_missing(op).message());
}

std::optional<Rendezvous::Wait> Rendezvous::wait_of(HostLink& link, const GroupMember& device) {
  if (!link.is_on_host(device.client_id)) return std::nullopt;
  const DeviceActivity& slot = activity_slot(link.control(device.client_id), device.ordinal);
  if (read_kind(slot) != DeviceActivity::kWaiting) return std::nullopt;
  // A device that is about to wait writes that down first, and then looks for conflicts itself: of
  // several that wait for each other, the last one finds the words of all others complete.
  std::optional<Wait> wait = operation_of(link, device);
  if (!wait.has_value() || !wait->has_arrived || !wait->group->is_open(wait->seq)) {
    return std::nullopt;
  }
  return wait;
}

std::optional<Rendezvous::Wait> Rendezvous::operation_of(HostLink& link,
                                                         const GroupMember& device) {
  if (!link.is_on_host(device.client_id)) return std::nullopt;
  ActivitySnapshot seen = last_seen(link, device.client_id, device.ordinal);
  const bool has_arrived = seen.kind == DeviceActivity::kWaiting;
  const bool is_active = has_arrived || seen.kind == DeviceActivity::kRunning;
  if (!seen.consistent || !is_active || seen.block_offset == 0) return std::nullopt;
  const std::vector<int32_t> ids = ids_in(link, seen);
  const int leader = static_cast<int>(seen.leader_client);
  GroupBlock* const block =
      ids.empty() ? nullptr
                  : GroupTable::find(link.control(leader), seen.block_offset, seen.generation);
  if (block == nullptr) return std::nullopt;
  std::vector<GroupMember> members;
  for (const int32_t id : ids) members.push_back(member_of(link, id));
  auto group = std::unique_ptr<Rendezvous>(new Rendezvous(link, std::move(members), leader, block));
  // A read of the block counts only if the block is still that group's.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (GroupTable::find(link.control(leader), seen.block_offset, seen.generation) != block ||
      group->generation_ != seen.generation) {
    return std::nullopt;
  }
  return Wait{.device = device,
              .group = std::move(group),
              .seq = seen.seq,
              .label = std::move(seen.label),
              .since = since_of(seen),
              .name_hash = seen.name_hash,
              .waited_for_by = 0,
              .has_arrived = has_arrived};
}

// Breadth first, from each operation to what its missing members wait in: each device that waits is
// followed once, and the circle that is found is a shortest one.
std::vector<Rendezvous::Wait> Rendezvous::find_circle(const Op& op) {
  const int own_id = members_[op.member].device_id;
  std::vector<Wait> found;
  std::set<int> visited = {own_id};
  // Position 0 is this operation, position k is found[k - 1].
  for (size_t at = 0; at <= found.size(); ++at) {
    const Rendezvous& group = at == 0 ? *this : *found[at - 1].group;
    const uint32_t seq = at == 0 ? op.seq : found[at - 1].seq;
    for (int m = 0; m < group.size(); ++m) {
      const GroupMember member = group.members_[m];
      if (!group.is_missing(seq, m)) continue;
      if (member.device_id == own_id && at > 0) {
        std::vector<Wait> circle;
        for (size_t k = at; k > 0;) {
          const size_t next = found[k - 1].waited_for_by;
          circle.insert(circle.begin(), std::move(found[k - 1]));
          k = next;
        }
        return circle;
      }
      if (visited.count(member.device_id) > 0) continue;
      std::optional<Wait> wait = other_wait_of(member);
      if (!wait.has_value()) continue;
      // Most missing members are on their way: noting each would be quadratic in the group.
      visited.insert(member.device_id);
      wait->waited_for_by = at;
      found.push_back(*std::move(wait));
    }
  }
  return {};
}

std::optional<Rendezvous::Wait> Rendezvous::find_same_name(const Op& op) const {
  const auto is_member_here = [&](const GroupMember& other) {
    return std::any_of(members_.begin(), members_.end(), [&](const GroupMember& member) {
      return member.device_id == other.device_id;
    });
  };
  for (int client = 0; client < link_->num_clients(); ++client) {
    for (int ordinal = 0; ordinal < link_->member(client).num_local_devices; ++ordinal) {
      std::optional<Wait> wait = other_wait_of({0, client, ordinal});
      if (!wait.has_value() || wait->name_hash != op.name_hash) continue;
      const std::vector<GroupMember>& theirs = wait->group->members_;
      if (std::any_of(theirs.begin(), theirs.end(), is_member_here)) return wait;
    }
  }
  return std::nullopt;
}

void Rendezvous::settle_conflict(const Op& op, std::vector<Wait> others) {
  // A client that knows of a death passes over what it cannot do any more, while another one still
  // waits there: the loss ends that wait, and is no mistake of theirs.
  const auto is_dead = [this](const GroupMember& member) {
    return link_->is_dead(member.client_id);
  };
  bool is_over = std::any_of(members_.begin(), members_.end(), is_dead) || !is_open(op.seq);
  for (const Wait& other : others) {
    const std::vector<GroupMember>& theirs = other.group->members_;
    is_over |= std::any_of(theirs.begin(), theirs.end(), is_dead);
    // Still open after all of them were seen to wait: none was on its way to another of these.
    is_over |= !other.group->is_open(other.seq);
  }
  if (is_over) return;
  // Several members may find this at once: they make one text of it.
  std::vector<ConflictingWait> waits;
  const auto add = [&](const GroupMember& device, const Rendezvous& group,
                       absl::string_view label) {
    char text[kLabelBytes];
    waits.push_back({device.device_id,
                     link_->member(device.client_id).to_string(),
                     std::string(text, copy_cut(absl::MakeSpan(text), label)),
                     {}});
    for (const GroupMember& member : group.members_) waits.back().group.push_back(member.device_id);
  };
  add(members_[op.member], *this, label_of(op));
  for (const Wait& other : others) add(other.device, *other.group, other.label);
  const Status error = describe_conflict(std::move(waits));
  // Ours first, and then in the order in which one waits for the next: a member that is told goes
  // on, and may go to the operation before, which has its verdict by then. This member goes on when
  // the last one has it.
  settle_at_once(op.seq, From::kOpen, error);
  for (const Wait& other : others) other.end(error);
}

GroupMember Rendezvous::member_of(const HostLink& link, int device_id) {
  const int client = client_of(link, device_id);
  int ordinal = device_id;
  for (int i = 0; i < client; ++i) ordinal -= link.member(i).num_local_devices;
  return {device_id, client, ordinal};
}

std::vector<int32_t> Rendezvous::ids_in(const HostLink& link, const Activity& activity) {
  if (activity.leader_client >= static_cast<uint64_t>(link.num_clients())) return {};
  std::byte* const region = link.control(static_cast<int>(activity.leader_client));
  const auto find = [&] {
    return GroupTable::find(region, activity.block_offset, activity.generation);
  };
  GroupBlock* const block = find();
  if (block == nullptr) return {};
  // All that another process has written is compared with what there can be.
  const uint32_t num_ids = block->num_members;
  if (num_ids > kMaxMembers ||
      link.find_in_control(activity.leader_client, activity.block_offset,
                           sizeof(GroupBlock) + num_ids * sizeof(int32_t)) == nullptr) {
    return {};
  }
  std::vector<int32_t> ids(num_ids);
  const int32_t* const first = device_ids(block);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = std::atomic_ref(first[i]).load(std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  // The memory may have become another block's meanwhile.
  if (find() == nullptr) return {};
  int num_devices = 0;
  for (int i = 0; i < link.num_clients(); ++i) num_devices += link.member(i).num_local_devices;
  const bool are_devices =
      std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return id >= 0 && id < num_devices; });
  return are_devices ? ids : std::vector<int32_t>();
}

}  // namespace tessera::host
