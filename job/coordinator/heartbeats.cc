// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/heartbeats.h"

#include "absl/strings/str_cat.h"
#include "base/format.h"
#include "job/environment/host.h"

namespace tessera {

Heartbeats::Heartbeats(const std::vector<MemberInfo>& members, std::string host_id)
    : members_(members),
      host_id_(std::move(host_id)),
      clients_(members.size()),
      host_of_(number_hosts(members)) {
  for (size_t id = 0; id < members.size(); ++id) {
    if (host_of_[id] == static_cast<int>(clients_of_.size())) clients_of_.emplace_back();
    clients_of_[host_of_[id]].push_back(static_cast<int>(id));
  }
}

void Heartbeats::client_gone(int client) {
  if (!std::exchange(clients_[client].is_gone, true)) ++num_gone_;
}

std::vector<int> Heartbeats::not_gone() const {
  std::vector<int> clients;
  for (size_t id = 0; id < clients_.size(); ++id) {
    if (!clients_[id].is_gone) clients.push_back(static_cast<int>(id));
  }
  return clients;
}

void Heartbeats::tick(absl::Duration interval,
                      absl::FunctionRef<void(const IdRanges&, const Status&)> lose) {
  for (Client& client : clients_) ++client.num_silent_ticks;
  const std::string heartbeats = absl::StrCat(" missed more than ", kMissedHeartbeats,
                                              " heartbeats of ", format_duration(interval));
  for (const MemberInfo& member : members_) {
    const Client& client = clients_[member.client_id];
    if (client.is_gone || client.num_silent_ticks <= kMissedHeartbeats) continue;
    const IdRanges of_host = find_unreachable_host(member.client_id);
    if (of_host.empty()) {
      lose(IdRanges::of({member.client_id}),
           absl::UnavailableError(
               absl::StrCat(member.to_string(), " was declared lost: it", heartbeats)));
    } else {
      lose(of_host, absl::UnavailableError(absl::StrCat(member.host, " is unreachable: clients ",
                                                        of_host.to_list(), heartbeats)));
    }
  }
}

IdRanges Heartbeats::find_unreachable_host(int client) const {
  const bool is_own = clients_of_.size() == 1 || members_[client].host_id == host_id_;
  if (is_own) return {};
  std::vector<int> silent;
  for (const int id : clients_of_[host_of_[client]]) {
    if (clients_[id].is_gone) continue;
    // Their heartbeats are at different times of an interval.
    if (clients_[id].num_silent_ticks < kMissedHeartbeats) return {};
    silent.push_back(id);
  }
  return silent.size() > 1 ? IdRanges::of(silent) : IdRanges();
}

}  // namespace tessera
