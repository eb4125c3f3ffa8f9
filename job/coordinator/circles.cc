// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/circles.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tessera {

void Circles::report(int client, WaitsReport report, absl::Time now, absl::Time deadline,
                     Done done) {
  close(client, CircleStep());
  const bool is_reply = report.circle != 0;
  if (is_reply) take_reply(client, report, now);
  const bool is_empty = report.waits.empty() && circle_of_.count(client) == 0;
  Open& open =
      open_.insert_or_assign(client, Open{std::move(report), std::move(done), {}}).first->second;
  for (const DeviceWait& wait : open.report.waits) {
    waiting_.insert_or_assign(wait.device, Waiting{client, &wait});
    if (wait.name_hash != 0) names_.insert({wait.name_hash, wait.run.group, wait.device});
  }
  const auto step = steps_.find(client);
  if (step != steps_.end()) return close(client, steps_.extract(step).mapped());
  if (is_empty) return close(client, CircleStep());
  open.expiry = deadlines_.add(deadline, [this, client] { close(client, CircleStep()); });
  if (!is_reply) search(client, now);
}

void Circles::close(int client, const StatusOr<CircleStep>& answer) {
  const auto open = open_.find(client);
  if (open == open_.end()) return;
  deadlines_.remove(open->second.expiry);
  for (const DeviceWait& wait : open->second.report.waits) {
    names_.erase({wait.name_hash, wait.run.group, wait.device});
    const auto known = waiting_.find(wait.device);
    if (known != waiting_.end() && known->second.wait == &wait) waiting_.erase(known);
  }
  callbacks_.push_back([done = std::move(open->second.done), answer] { done(answer); });
  open_.erase(open);
}

void Circles::take_reply(int client, const WaitsReport& report, absl::Time now) {
  const auto known = circles_.find(report.circle);
  if (known == circles_.end() || circle_of_[client] != report.circle) return;
  Circle& circle = known->second;
  if (!report.is_done) return drop(report.circle);
  const bool is_confirming = !circle.unconfirmed.empty();
  if (is_confirming) {
    circle.unconfirmed.erase(client);
    if (!circle.unconfirmed.empty()) return;
  } else if (circle.clients[circle.at] == client) {
    ++circle.at;
  } else {
    return;
  }
  set_limit(report.circle, circle, now);
  if (circle.at < circle.waits.size()) {
    return give(circle.clients[circle.at], report.circle, CircleStep::kEnd);
  }
  for (const int member : std::set<int>(circle.clients.begin(), circle.clients.end())) {
    give(member, report.circle, CircleStep::kRelease);
    circle_of_.erase(member);
  }
  deadlines_.remove(circle.expiry);
  circles_.erase(known);
}

void Circles::search(int client, absl::Time now) {
  for (const DeviceWait& wait : open_.at(client).report.waits) {
    std::vector<Waiting> found = find_circle({client, &wait});
    if (found.empty() && wait.name_hash != 0) found = find_same_name({client, &wait});
    // The first run is one in which a device can be held. A circle of one host has none, and its
    // clients end it by themselves.
    const auto first = std::find_if(found.begin(), found.end(),
                                    [](const Waiting& w) { return w.wait->spans_hosts; });
    const bool is_free = std::none_of(found.begin(), found.end(), [this](const Waiting& w) {
      return circle_of_.count(w.client) > 0;
    });
    if (first == found.end() || !is_free) continue;
    std::rotate(found.begin(), first, found.end());
    return begin(found, now);
  }
}

// Breadth first, from each run to those in which its missing members wait.
std::vector<Circles::Waiting> Circles::find_circle(const Waiting& first) const {
  struct Visit {
    Waiting waiting;
    size_t from;
  };
  const RunId origin = first.wait->run;
  std::vector<Visit> visits = {{first, 0}};
  std::set<RunId> visited = {origin};
  for (size_t at = 0; at < visits.size(); ++at) {
    for (const IdRanges::Range& range : visits[at].waiting.wait->missing.ranges()) {
      for (auto it = waiting_.lower_bound(range.begin);
           it != waiting_.end() && it->first < range.end; ++it) {
        const RunId run = it->second.wait->run;
        if (run == origin && at > 0) {
          // The device waits there in place of the one that was followed from there.
          std::vector<Waiting> circle;
          for (size_t k = at; k > 0; k = visits[k].from) circle.push_back(visits[k].waiting);
          circle.push_back(it->second);
          std::reverse(circle.begin(), circle.end());
          return circle;
        }
        if (visited.insert(run).second) visits.push_back({it->second, at});
      }
    }
  }
  return {};
}

std::vector<Circles::Waiting> Circles::find_same_name(const Waiting& first) const {
  const DeviceWait& own = *first.wait;
  for (auto it = names_.lower_bound({own.name_hash, 0, 0});
       it != names_.end() && std::get<0>(*it) == own.name_hash;) {
    const auto& [hash, group, device] = *it;
    if (group == own.run.group) {
      it = names_.upper_bound({hash, group, std::numeric_limits<int>::max()});
      continue;
    }
    const Waiting& other = waiting_.at(device);
    if (own.missing.contains(device)) return {first, other};
    if (other.wait->missing.contains(own.device)) return {other, first};
    ++it;
  }
  return {};
}

void Circles::begin(const std::vector<Waiting>& waits, absl::Time now) {
  const uint64_t number = ++last_number_;
  Circle& circle = circles_[number];
  for (const Waiting& waiting : waits) {
    circle.waits.push_back(*waiting.wait);
    circle.clients.push_back(waiting.client);
    circle.unconfirmed.insert(waiting.client);
    circle_of_[waiting.client] = number;
  }
  set_limit(number, circle, now);
  for (const int client : circle.unconfirmed) give(client, number, CircleStep::kConfirm);
}

void Circles::set_limit(uint64_t number, Circle& circle, absl::Time now) {
  deadlines_.remove(circle.expiry);
  circle.expiry = deadlines_.add(now + kStepLimit, [this, number] { drop(number); });
}

void Circles::give(int client, uint64_t number, CircleStep::Kind kind) {
  const Circle& circle = circles_.at(number);
  CircleStep step = {kind, number, kind == CircleStep::kEnd ? circle.at : 0, circle.waits};
  if (open_.count(client) > 0) return close(client, std::move(step));
  steps_.insert_or_assign(client, std::move(step));
}

void Circles::drop(uint64_t number) {
  const auto known = circles_.find(number);
  if (known == circles_.end()) return;
  deadlines_.remove(known->second.expiry);
  for (const int client : known->second.clients) {
    circle_of_.erase(client);
    steps_.erase(client);
  }
  circles_.erase(known);
}

void Circles::client_gone(int client) {
  const auto circle = circle_of_.find(client);
  if (circle != circle_of_.end()) drop(uint64_t{circle->second});
  steps_.erase(client);
  close(client, CircleStep());
}

void Circles::stop(const Status& reason) {
  while (!open_.empty()) close(open_.begin()->first, reason);
}

}  // namespace tessera
