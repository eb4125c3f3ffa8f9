// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/host_backend.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/host/collective_runs.h"
#include "collectives/host/lone_runs.h"
#include "collectives/host/message_runs.h"

namespace tessera::host {
namespace {

// Operations of a group may follow each other this closely; a verdict is kept for as many
// operations.
constexpr uint32_t kGroupRecords = 8;
// Messages from one device to another that may wait to be received.
constexpr uint32_t kMessageRecords = 16;
constexpr uint64_t kGroupSalt = 0;
constexpr uint64_t kMessageSalt = 1;
// The bytes of a control region that unused groups may take, over all clients of the host.
constexpr uint64_t kUnusedBytes = shm::kControlBytes / 4;
// The bytes that a group takes beside its block, roughly.
constexpr uint64_t kBytesOfGroup = 16 << 10;

}  // namespace

HostBackend::HostBackend(shm::HostLink& link, std::shared_ptr<ArenaPool> pool,
                         std::vector<Device> devices, std::vector<Stream*> streams,
                         absl::Duration collective_timeout, MakeDeviceMover make_mover,
                         MakeSpan make_span)
    : resources_(link, std::move(pool), std::move(devices), std::move(streams), collective_timeout,
                 [this](int from, int to) {
                   return find_or_make({{from, to}}, kMessageSalt, kMessageRecords);
                 }),
      make_mover_(std::move(make_mover)),
      make_span_(std::move(make_span)),
      budget_bytes_(kUnusedBytes / link.members().num_clients()) {
  link.liveness().set_lost_listener(
      [this](int client, const Status& reason) { on_lost(client, reason); });
  resources_.pool().set_reclaim([this] {
    resources_.loans().reclaim();
    return reclaim_lent();
  });
}

HostBackend::~HostBackend() { stop(); }

void HostBackend::stop() {
  resources_.link().liveness().set_lost_listener(nullptr);
  resources_.pool().set_reclaim(nullptr);
  resources_.loans().close();
  std::vector<std::shared_ptr<HostGroup>> all;
  {
    // A group that is being made is the last one.
    std::lock_guard<std::mutex> making(making_mutex_);
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    for (Groups& groups : groups_) {
      for (auto& [ids, known] : groups) {
        known.group->close();
        all.push_back(known.group);
      }
    }
  }
  resources_.stop();
  // A group waits for the lock of its table. on_lost() takes mutex_ and does not wait.
  for (const std::shared_ptr<HostGroup>& group : all) group->forget_runs();
}

std::vector<std::shared_ptr<HostGroup>> HostBackend::lenders() const {
  std::vector<std::shared_ptr<HostGroup>> groups;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [ids, known] : groups_[kGroupSalt]) groups.push_back(known.group);
  return groups;
}

void HostBackend::wait_until_read() {
  const absl::Time deadline = steady_now() + resources_.collective_timeout();
  for (const auto& group : lenders()) group->wait_until_read(deadline);
}

int HostBackend::reclaim_lent() {
  int num_lent = 0;
  for (const auto& group : lenders()) {
    group->reap();
    num_lent += group->num_lent();
  }
  return num_lent;
}

StatusOr<std::shared_ptr<GroupBackend>> HostBackend::group(absl::Span<const int> device_ids) {
  return find_or_make(device_ids, kGroupSalt, kGroupRecords);
}

StatusOr<std::shared_ptr<HostGroup>> HostBackend::find_or_make(absl::Span<const int> device_ids,
                                                               uint64_t salt,
                                                               uint32_t num_records) {
  const auto make = [&]() -> StatusOr<std::shared_ptr<HostGroup>> {
    std::lock_guard<std::mutex> making(making_mutex_);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (std::shared_ptr<HostGroup> known = find_group(device_ids, salt)) return known;
      if (stopped_) return too_late();
    }
    return make_group({device_ids.begin(), device_ids.end()}, salt, num_records);
  };
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // A list that is known is good.
    if (std::shared_ptr<HostGroup> known = find_group(device_ids, salt)) return known;
  }
  TESSERA_RETURN_IF_ERROR(validate_devices(device_ids));
  reap_groups(Forget::kAboveBudget);
  StatusOr<std::shared_ptr<HostGroup>> made = make();
  if (!absl::IsResourceExhausted(made.status())) return made;
  reap_groups(Forget::kAllUnused);
  return make();
}

void HostBackend::reap_groups(Forget which) {
  std::vector<std::shared_ptr<HostGroup>> groups;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (which == Forget::kAboveBudget && known_bytes_ <= budget_bytes_) return;
    const size_t num_looks = which == Forget::kAllUnused ? by_use_.size() : kLooksPerGroup;
    for (auto name = by_use_.rbegin(); name != by_use_.rend() && groups.size() < num_looks;
         ++name) {
      groups.push_back(groups_[name->salt].find(*name->device_ids)->second.group);
    }
  }
  for (const std::shared_ptr<HostGroup>& group : groups) group->reap();
}

int HostBackend::num_groups() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(by_use_.size());
}

Status HostBackend::validate_devices(absl::Span<const int> device_ids) const {
  if (device_ids.empty()) {
    return absl::InvalidArgumentError("a group of no devices; name at least one");
  }
  std::set<int> seen;
  for (const int id : device_ids) {
    if (id < 0 || id >= static_cast<int>(resources_.devices().size())) {
      return absl::InvalidArgumentError(absl::StrCat("device ", id,
                                                     " does not exist; the job has devices 0 to ",
                                                     resources_.devices().size() - 1));
    }
    if (!seen.insert(id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("device ", id, " appears twice in a group; name each device once"));
    }
  }
  return absl::OkStatus();
}

uint64_t HostBackend::num_group_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return known_bytes_;
}

void HostBackend::forget_unused_groups() {
  reap_groups(Forget::kAllUnused);
  std::lock_guard<std::mutex> making(making_mutex_);
  forget_unused(Forget::kAllUnused);
}

std::shared_ptr<HostGroup> HostBackend::find_group(absl::Span<const int> device_ids,
                                                   uint64_t salt) {
  const auto it = groups_[salt].find(device_ids);
  if (it == groups_[salt].end()) return nullptr;
  by_use_.splice(by_use_.begin(), by_use_, it->second.use);
  return it->second.group;
}

StatusOr<std::shared_ptr<HostGroup>> HostBackend::make_group(std::vector<int> device_ids,
                                                             uint64_t salt, uint32_t num_records) {
  forget_unused(Forget::kAboveBudget);
  std::vector<shm::GroupMember> members;
  for (const int id : device_ids) {
    const Device& device = resources_.devices()[id];
    members.push_back({device.id, device.client_id, device.ordinal});
  }
  uint64_t num_bytes = kBytesOfGroup;
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<HostGroup> group,
                           make_runs(std::move(members), salt, num_records, num_bytes));
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = groups_[salt].emplace(std::move(device_ids), Known{group, num_bytes, {}}).first;
  it->second.use = by_use_.insert(by_use_.begin(), {salt, &it->first});
  known_bytes_ += num_bytes;
  tell_of_losses(*group);
  return group;
}

StatusOr<std::shared_ptr<HostGroup>> HostBackend::make_runs(std::vector<shm::GroupMember> members,
                                                            uint64_t salt, uint32_t num_records,
                                                            uint64_t& num_bytes) {
  const bool takes_part =
      std::any_of(members.begin(), members.end(), [this](const shm::GroupMember& member) {
        return member.client_id == resources_.link().members().client_id();
      });
  const bool spans_hosts =
      std::any_of(members.begin(), members.end(), [this](const shm::GroupMember& member) {
        return !resources_.link().members().is_on_host(member.client_id);
      });
  if (takes_part && spans_hosts) {
    return make_span_(resources_, std::move(members), salt == kMessageSalt);
  }
  std::optional<Rendezvous> rendezvous;
  if (takes_part && members.size() > 1) {
    TESSERA_ASSIGN_OR_RETURN(Rendezvous opened, open_rendezvous(members, salt, num_records));
    const shm::GroupBlock& block = *opened.records().block();
    num_bytes += block.body_offset + record_layout(block).num_bytes();
    rendezvous.emplace(std::move(opened));
  }
  std::unique_ptr<DeviceMover> mover;
  if (takes_part && make_mover_ != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(mover, make_mover_(members));
  }
  std::shared_ptr<HostGroup> group;
  if (!rendezvous.has_value()) {
    group = std::make_shared<LoneRuns>(resources_, std::move(members), std::move(mover));
  } else if (salt == kMessageSalt) {
    group = std::make_shared<MessageRuns>(resources_, std::move(members), *std::move(rendezvous),
                                          std::move(mover));
  } else {
    group = std::make_shared<CollectiveRuns>(resources_, std::move(members), *std::move(rendezvous),
                                             std::move(mover));
  }
  return group;
}

StatusOr<Rendezvous> HostBackend::open_rendezvous(const std::vector<shm::GroupMember>& members,
                                                  uint64_t salt, uint32_t num_records) {
  // Messages among all pairs of 64 devices have to fit into one control region. Where devices move
  // the bytes they use the place for inputs.
  const bool is_small = salt == kMessageSalt && make_mover_ == nullptr;
  const Room room = {.records = is_small ? Records::kSmall : Records::kFull};
  StatusOr<Rendezvous> opened =
      Rendezvous::open(resources_.link(), members, num_records, salt, room);
  if (!absl::IsResourceExhausted(opened.status())) return opened;
  forget_unused(Forget::kAllUnused);
  return Rendezvous::open(resources_.link(), members, num_records, salt, room);
}

void HostBackend::forget_unused(Forget which) {
  // They wait for the lock of their table as they go: after mutex_ is released.
  std::vector<std::shared_ptr<HostGroup>> forgotten;
  std::lock_guard<std::mutex> lock(mutex_);
  size_t num_looks = which == Forget::kAllUnused ? by_use_.size() : kLooksPerGroup;
  for (; num_looks > 0 && !by_use_.empty(); --num_looks) {
    if (which == Forget::kAboveBudget && known_bytes_ <= budget_bytes_) return;
    Groups& groups = groups_[by_use_.back().salt];
    const auto oldest = groups.find(*by_use_.back().device_ids);
    const Known& known = oldest->second;
    // Only this list refers to the group, and more references come from this list alone. Groups
    // whose communicators of GPUs, or numbers of runs between hosts, are shared by all clients
    // stay.
    const bool is_of_all = make_mover_ != nullptr || known.group->spans_hosts();
    if (known.group.use_count() > 1 || is_of_all) {
      by_use_.splice(by_use_.begin(), by_use_, known.use);
      continue;
    }
    known_bytes_ -= known.num_bytes;
    forgotten.push_back(known.group);
    by_use_.pop_back();
    groups.erase(oldest);
  }
}

// A loss that the backend was told of before the group was made.
void HostBackend::tell_of_losses(HostGroup& group) const {
  const shm::HostLink& link = resources_.link();
  if (!link.liveness().any_lost()) return;
  for (int client = 0; client < link.members().num_clients(); ++client) {
    const Status status = link.liveness().client_status(client);
    if (!status.ok()) group.on_lost(client, status);
  }
}

void HostBackend::on_lost(int client, const Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Groups& groups : groups_) {
    for (auto& [ids, known] : groups) known.group->on_lost(client, reason);
  }
  resources_.look_at_messages_again();
}

}  // namespace tessera::host
