// SPDX-License-Identifier: Apache-2.0
#include "collectives/platform/device_waits.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "collectives/host/doing.h"
#include "collectives/host/member_texts.h"
#include "collectives/host/rendezvous.h"
#include "collectives/span/network.h"
#include "shm/activity.h"
#include "shm/control.h"

namespace tessera {

using shm::DeviceActivity;
using shm::GroupMember;

DeviceWaits::DeviceWaits(shm::HostLink& link, span::Network* network)
    : link_(link), network_(network) {
  int device_id = 0;
  for (int client = 0; client < link_.members().num_clients(); ++client) {
    first_.push_back({device_id, client, 0});
    for (int ordinal = 0; ordinal < link_.members()[client].num_local_devices; ++ordinal) {
      if (client == link_.members().client_id()) local_.push_back({device_id, client, ordinal});
      ++device_id;
    }
  }
}

std::vector<WaitReports::Wait> DeviceWaits::list() {
  struct Found {
    absl::Time since = absl::InfiniteFuture();
    std::vector<int> ordinals;
  };
  std::map<std::string, Found> by_operation;
  for (const GroupMember& device : local_) {
    const DeviceActivity::Kind kind = shm::read_kind(link_.own_control().activity(device.ordinal));
    if (kind != DeviceActivity::kWaiting && kind != DeviceActivity::kRunning) continue;
    const std::optional<host::OperationWait> wait = host::operation_of(link_, device);
    if (!wait.has_value()) continue;
    Found& found = by_operation[wait->label];
    found.since = std::min(found.since, wait->since);
    found.ordinals.push_back(device.ordinal);
  }
  std::vector<WaitReports::Wait> waits;
  for (const auto& [operation, found] : by_operation) {
    waits.push_back({operation, found.since, [this, operation = operation, found = found] {
                       return describe(operation, found.ordinals);
                     }});
  }
  return waits;
}

std::optional<WaitReports::Missing> DeviceWaits::describe(const std::string& operation,
                                                          absl::Span<const int> ordinals) {
  std::map<int, Awaited> by_device;
  bool all_arrived = true;
  for (const int ordinal : ordinals) {
    const std::optional<host::OperationWait> wait = host::operation_of(link_, local_[ordinal]);
    if (!wait.has_value() || wait->label != operation) continue;
    const Group group = find_awaited(*wait);
    all_arrived &= group.all_arrived;
    for (size_t m = 0; m < group.members.size(); ++m) {
      const GroupMember& member = group.members[m];
      Awaited& known = by_device.try_emplace(member.device_id, Awaited{member}).first->second;
      known.is_awaited |= group.awaited[m] && member.device_id != local_[ordinal].device_id;
    }
  }
  std::vector<GroupMember> members, missing;
  std::vector<bool> is_awaited;
  for (const auto& [id, member] : by_device) {
    members.push_back(member.device);
    is_awaited.push_back(member.is_awaited);
    if (member.is_awaited) missing.push_back(member.device);
  }
  if (missing.empty()) return std::nullopt;
  const std::vector<GroupMember> ends = find_ends(missing);
  const std::map<int, std::string> doing = find_doing(missing);
  WaitReports::Missing result;
  result.text = host::describe_awaited(
      {members, is_awaited, all_arrived},
      [&](int client) { return link_.members()[client].to_string(); },
      [&](const GroupMember& device) { return doing.at(device.device_id); });
  if (!ends.empty()) {
    const auto describe = [&](std::string* out, const GroupMember& device) {
      absl::StrAppend(out, link_.members()[device.client_id].to_string(), ", ",
                      host::describe_doing(link_, device));
    };
    absl::StrAppend(&result.text, "; in turn for ", absl::StrJoin(ends, "; ", describe));
  }
  for (const GroupMember& device : missing) result.clients.push_back(device.client_id);
  for (const GroupMember& device : ends) result.clients.push_back(device.client_id);
  return result;
}

std::vector<GroupMember> DeviceWaits::find_ends(absl::Span<const GroupMember> awaited) {
  constexpr size_t kMostEnds = 4;
  std::vector<GroupMember> next(awaited.begin(), awaited.end());
  std::set<int> visited;
  std::set<int> named;  // clients
  for (const GroupMember& device : awaited) {
    visited.insert(device.device_id);
    named.insert(device.client_id);
  }
  std::vector<GroupMember> ends;
  for (size_t at = 0; at < next.size() && ends.size() < kMostEnds; ++at) {
    const GroupMember device = next[at];
    const std::optional<host::OperationWait> wait = host::wait_of(link_, device);
    if (!wait.has_value() && named.insert(device.client_id).second) ends.push_back(device);
    if (!wait.has_value()) continue;
    const std::vector<bool> missing = wait->awaited().members;
    for (int m = 0; m < wait->group.size(); ++m) {
      const GroupMember& member = wait->group.members()[m];
      if (missing[m] && visited.insert(member.device_id).second) next.push_back(member);
    }
  }
  return ends;
}

DeviceWaits::Group DeviceWaits::find_awaited(const host::OperationWait& wait) {
  if (network_ != nullptr && wait.has_arrived) {
    const std::optional<span::GroupWait> span = network_->awaited(wait);
    const bool is_known = span.has_value() && std::find(span->awaited.begin(), span->awaited.end(),
                                                        true) != span->awaited.end();
    if (is_known) return {span->members, span->awaited, span->all_arrived};
  }
  const host::OperationWait::Awaited here = wait.awaited();
  const absl::Span<const GroupMember> members = wait.group.members();
  return {{members.begin(), members.end()}, here.members, here.all_arrived};
}

std::map<int, std::string> DeviceWaits::find_doing(absl::Span<const GroupMember> devices) {
  // How long to wait for the answer of a client, before the text says that it does not answer.
  constexpr absl::Duration kAnswerLimit = absl::Seconds(1);
  std::map<int, std::string> doing;
  std::map<int, int> asked;  // a device of each client
  for (const GroupMember& device : devices) {
    const bool is_here = link_.members().is_on_host(device.client_id);
    doing[device.device_id] = is_here ? host::describe_doing(link_, device) : "does not answer";
    if (!is_here) asked.emplace(device.client_id, device.device_id);
  }
  if (asked.empty() || network_ == nullptr) return doing;
  std::vector<int> ids;
  for (const auto& [client, id] : asked) ids.push_back(id);
  for (const auto& [id, text] : network_->ask_doing(ids, kAnswerLimit)) doing[id] = text;
  return doing;
}

WaitReports::Missing DeviceWaits::describe_clients(absl::Span<const int> clients,
                                                   absl::Span<const int> silent) {
  constexpr size_t kMostNamed = 8;
  const size_t num_named = std::min(clients.size(), kMostNamed);
  std::vector<GroupMember> devices;
  for (size_t i = 0; i < num_named; ++i) devices.push_back(first_[clients[i]]);
  const std::map<int, std::string> doing = find_doing(devices);
  WaitReports::Missing missing = {.text = {}, .clients = {clients.begin(), clients.end()}};
  for (size_t i = 0; i < num_named; ++i) {
    const bool is_silent = std::find(silent.begin(), silent.end(), clients[i]) != silent.end();
    const std::string& text = doing.at(devices[i].device_id);
    absl::StrAppend(
        &missing.text, i == 0 ? "" : "; ", link_.members()[clients[i]].to_string(), ", ",
        is_silent && !link_.members().is_on_host(clients[i]) ? "does not answer" : text);
  }
  if (clients.size() > num_named) {
    absl::StrAppend(&missing.text, "; and ", clients.size() - num_named, " more");
  }
  return missing;
}

}  // namespace tessera
