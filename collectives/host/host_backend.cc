// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/host_backend.h"

#include <cstdint>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/host/host_group.h"

namespace tessera::host {
namespace {

// Operations of a group may follow each other this closely; a verdict is kept for as many.
constexpr uint32_t kGroupRecords = 8;
// Messages to one device that may wait to be received.
constexpr uint32_t kMessageRecords = 16;
constexpr uint64_t kGroupSalt = 0;
constexpr uint64_t kMessageSalt = 1;

}  // namespace

HostBackend::HostBackend(HostLink& link, std::shared_ptr<ArenaPool> pool,
                         std::vector<Device> devices, std::vector<Stream*> streams,
                         absl::Duration collective_timeout, MakeDeviceMover make_mover)
    : link_(link),
      pool_(std::move(pool)),
      loans_(std::make_shared<ReplicaLoans>(
          // A client that has left in order, or was declared lost, may still read its tensors.
          pool_, [&link](int client) { return link.has_died(client); })),
      devices_(std::move(devices)),
      streams_(std::move(streams)),
      collective_timeout_(collective_timeout),
      make_mover_(std::move(make_mover)) {
  link_.set_lost_listener([this](int client, const Status& reason) { on_lost(client, reason); });
  pool_->set_reclaim([this] {
    loans_->reclaim();
    wait_until_read();
  });
}

HostBackend::~HostBackend() { stop(); }

void HostBackend::stop() {
  link_.set_lost_listener(nullptr);
  pool_->set_reclaim(nullptr);
  loans_->close();
  std::vector<CpuStream*> streams;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    for (Groups& groups : groups_) {
      for (auto& [ids, group] : groups) group->close();
    }
    for (auto& [key, stream] : message_streams_) streams.push_back(stream.get());
  }
  for (CpuStream* stream : streams) stream->stop();
  std::lock_guard<std::mutex> lock(mutex_);
  for (Groups& groups : groups_) {
    for (auto& [ids, group] : groups) group->forget_ops();
  }
}

void HostBackend::wait_until_read() {
  std::vector<std::shared_ptr<HostGroup>> groups;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [ids, group] : groups_[kGroupSalt]) groups.push_back(group);
  }
  const absl::Time deadline = steady_now() + collective_timeout_;
  for (const auto& group : groups) group->wait_until_read(deadline);
}

StatusOr<std::shared_ptr<GroupBackend>> HostBackend::group(absl::Span<const int> device_ids) {
  std::lock_guard<std::mutex> lock(mutex_);
  // A list that is known is good.
  const Groups& known = groups_[kGroupSalt];
  if (const auto it = known.find(device_ids); it != known.end()) return it->second;
  TESSERA_RETURN_IF_ERROR(validate_devices(device_ids));
  return group_locked({device_ids.begin(), device_ids.end()}, kGroupSalt, kGroupRecords);
}

Status HostBackend::validate_devices(absl::Span<const int> device_ids) const {
  if (device_ids.empty()) {
    return absl::InvalidArgumentError("a group of no devices; name at least one");
  }
  std::set<int> seen;
  for (const int id : device_ids) {
    if (id < 0 || id >= static_cast<int>(devices_.size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "device ", id, " does not exist; the job has devices 0 to ", devices_.size() - 1));
    }
    if (!seen.insert(id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("device ", id, " appears twice in a group; name each device once"));
    }
  }
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<HostGroup>> HostBackend::message_group(int from_device, int to_device) {
  std::lock_guard<std::mutex> lock(mutex_);
  return group_locked({from_device, to_device}, kMessageSalt, kMessageRecords);
}

StatusOr<std::shared_ptr<HostGroup>> HostBackend::group_locked(std::vector<int> device_ids,
                                                               uint64_t salt,
                                                               uint32_t num_records) {
  if (const auto it = groups_[salt].find(device_ids); it != groups_[salt].end()) return it->second;
  std::vector<GroupMember> members;
  for (const int id : device_ids) {
    const Device& device = devices_[id];
    TESSERA_RETURN_IF_ERROR(link_.client_status(device.client_id));
    members.push_back({device.id, device.client_id, device.ordinal});
  }
  std::optional<Rendezvous> rendezvous;
  if (members.size() > 1) {
    TESSERA_ASSIGN_OR_RETURN(rendezvous, Rendezvous::open(link_, members, num_records, salt));
  }
  std::unique_ptr<DeviceMover> mover;
  if (make_mover_ != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(mover, make_mover_(device_ids));
  }
  auto group = std::make_shared<HostGroup>(*this, std::move(members), std::move(rendezvous),
                                           std::move(mover));
  if (stopped_) group->close();
  groups_[salt].emplace(std::move(device_ids), group);
  return group;
}

StatusOr<Stream*> HostBackend::message_stream(int from_device, int to_device, bool sends) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::tuple<int, int, bool> key(from_device, to_device, sends);
  if (const auto it = message_streams_.find(key); it != message_streams_.end()) {
    return it->second.get();
  }
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<CpuStream> stream,
      CpuStream::create(
          absl::StrCat("messages from device ", from_device, " to device ", to_device), nullptr));
  if (stopped_) stream->stop();
  return message_streams_.emplace(key, std::move(stream)).first->second.get();
}

void HostBackend::on_lost(int client, const Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Groups& groups : groups_) {
    for (auto& [ids, group] : groups) group->on_lost(client, reason);
  }
}

}  // namespace tessera::host
