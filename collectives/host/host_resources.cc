// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/host_resources.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::host {

HostResources::HostResources(shm::HostLink& link, std::shared_ptr<ArenaPool> pool,
                             std::vector<Device> devices, std::vector<Stream*> streams,
                             absl::Duration collective_timeout, FindMessages find_messages)
    : link_(link),
      pool_(std::move(pool)),
      loans_(std::make_shared<ReplicaLoans>(
          // A client that has left in order, or was declared lost, may still read this client's
          // tensors.
          pool_, [&link](int client) { return link.liveness().has_died(client); })),
      devices_(std::move(devices)),
      streams_(std::move(streams)),
      collective_timeout_(collective_timeout),
      find_messages_(std::move(find_messages)) {}

Status HostResources::check_process() const {
  if (!fork_guard_.in_child()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "client ", link_.members().client_id(), " is of the process that forked this one (pid ", pid_,
      "); a forked child cannot use it: fork before Client::connect, or start "
      "the child by exec"));
}

Status HostResources::check_may_wait(absl::string_view call) const {
  TESSERA_RETURN_IF_ERROR(check_process());
  for (size_t ordinal = 0; ordinal < streams_.size(); ++ordinal) {
    const std::optional<absl::string_view> task = streams_[ordinal]->task_here();
    if (!task.has_value()) continue;
    const auto device = std::find_if(devices_.begin(), devices_.end(), [&](const Device& d) {
      return d.client_id == link_.members().client_id() && d.ordinal == static_cast<int>(ordinal);
    });
    return absl::FailedPreconditionError(
        absl::StrCat(call, ": called inside ", task->empty() ? "a task" : *task, " on device ",
                     device->id, ", which it would wait for; call it outside of the function"));
  }
  return absl::OkStatus();
}

StatusOr<MessagePump*> HostResources::message_pump(int ordinal) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto it = message_pumps_.find(ordinal); it != message_pumps_.end()) {
    return it->second.get();
  }
  int device_id = ordinal;
  for (int i = 0; i < link_.members().client_id(); ++i)
    device_id += link_.members()[i].num_local_devices;
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<MessagePump> pump,
                           MessagePump::create(device_id, link_.own_control().activity(ordinal)));
  if (stopped_) pump->stop();
  return message_pumps_.emplace(ordinal, std::move(pump)).first->second.get();
}

StatusOr<Stream*> HostResources::message_stream(int from_device, int to_device, bool sends) {
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

void HostResources::look_at_messages_again() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [ordinal, pump] : message_pumps_) pump->look_again();
}

void HostResources::stop() {
  std::vector<CpuStream*> streams;
  std::vector<MessagePump*> pumps;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    for (auto& [key, stream] : message_streams_) streams.push_back(stream.get());
    for (auto& [ordinal, pump] : message_pumps_) pumps.push_back(pump.get());
  }
  for (MessagePump* pump : pumps) pump->stop();
  for (CpuStream* stream : streams) stream->stop();
}

}  // namespace tessera::host
