// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/reach.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/format.h"
#include "job/coordinator/id_ranges.h"

namespace tessera::span {

Reach::Reach(absl::Duration heartbeat_interval)
    : interval_(std::max(heartbeat_interval, kShortestInterval)) {}

void Reach::note_contact(int client, absl::Time now) { contacts_[client] = {.last = now}; }

std::vector<int> Reach::to_ask(absl::Span<const int> clients, absl::Time now) {
  std::vector<int> asked;
  for (const int client : clients) {
    Contact& contact = contacts_.try_emplace(client, Contact{.last = now}).first->second;
    if (now - contact.last < interval_) continue;
    contact.last = now;
    ++contact.num_unanswered;
    asked.push_back(client);
  }
  return asked;
}

std::vector<int> Reach::silent(absl::Span<const int> clients) const {
  std::vector<int> silent;
  for (const int client : clients) {
    const auto it = contacts_.find(client);
    if (it != contacts_.end() && it->second.num_unanswered > kMostUnanswered) {
      silent.push_back(client);
    }
  }
  return silent;
}

Status describe_unreachable(const MemberInfo& self, absl::Span<const MemberInfo> silent,
                            absl::Duration limit) {
  std::vector<std::string> hosts;
  std::vector<int> clients;
  for (const MemberInfo& member : silent) {
    clients.push_back(member.client_id);
    if (std::find(hosts.begin(), hosts.end(), member.host) == hosts.end()) {
      hosts.push_back(member.host);
    }
  }
  constexpr size_t kMostHosts = 4;
  const size_t num_more = hosts.size() - std::min(hosts.size(), kMostHosts);
  hosts.resize(hosts.size() - num_more);
  const std::string more = num_more == 0 ? "" : absl::StrCat(" and ", num_more, " more");
  return absl::UnavailableError(absl::StrCat(
      absl::StrJoin(hosts, ", "), more, " cannot be reached from ", self.host, ": client ",
      self.client_id, " asked ", clients.size() == 1 ? "client " : "clients ",
      IdRanges::of(clients).to_list(), " in vain for ", format_duration(limit),
      ", while all reach the coordinator; see whether the network and firewalls between these "
      "hosts let their connections pass"));
}

}  // namespace tessera::span
