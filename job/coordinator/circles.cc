// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/circles.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/types/span.h"

namespace tessera {

Circles::~Circles() {
  if (search_.has_value()) deadlines_.remove(*search_);
  for (const auto& [number, circle] : circles_) deadlines_.remove(circle.expiry);
}

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
  }
  const auto step = steps_.find(client);
  if (step != steps_.end()) return close(client, steps_.extract(step).mapped());
  if (is_empty) return close(client, CircleStep());
  open.expiry = deadlines_.add(deadline, [this, client] { close(client, CircleStep()); });
  if (is_reply || search_.has_value()) return;
  const absl::Time due = now + kSearchPause;
  search_ = deadlines_.add(due, [this, due] { search(due); });
}

void Circles::close(int client, const StatusOr<CircleStep>& answer) {
  const auto open = open_.find(client);
  if (open == open_.end()) return;
  deadlines_.remove(open->second.expiry);
  for (const DeviceWait& wait : open->second.report.waits) {
    const auto known = waiting_.find(wait.device);
    if (known != waiting_.end() && known->second.wait == &wait) waiting_.erase(known);
  }
  callbacks_.push_back([done = std::move(open->second.done), answer] { done(answer); });
  open_.erase(open);
}

void Circles::take_reply(int client, const WaitsReport& report, absl::Time now) {
  const auto known = circles_.find(report.circle);
  const auto own = circle_of_.find(client);
  if (known == circles_.end() || own == circle_of_.end() || own->second != report.circle) return;
  Circle& circle = known->second;
  // Repeats the reply to an earlier step if the client has received no answer to it.
  if (report.at != circle.at) return;
  if (!report.is_done) return drop(report.circle);
  if (circle.at == 0) {
    circle.unconfirmed.erase(client);
    if (!circle.unconfirmed.empty()) return;
  } else if (circle.clients[circle.at - 1] != client) {
    return;
  }
  ++circle.at;
  set_limit(report.circle, circle, now);
  if (circle.at <= circle.waits.size()) {
    return give(circle.clients[circle.at - 1], report.circle, CircleStep::kEnd);
  }
  drop(report.circle);
}

// The runs in which devices wait, and the path of runs to the present one.
struct Circles::Path {
  static constexpr size_t kFollowed = SIZE_MAX;
  struct Run {
    Waiting nearest;                   // the wait that misses the fewest
    std::optional<size_t> depth = {};  // in `visits`; kFollowed: not any more
  };
  struct Visit {
    Waiting by;  // the device by which the run was reached
    Run* run;
    size_t range = 0;  // of the missing devices
    int next = 0;      // the first of them that has not been looked at
  };
  std::map<RunId, Run> runs;
  std::vector<Visit> visits;

  void enter(const Waiting& by, Run& run) {
    run.depth = visits.size();
    visits.push_back({by, &run});
  }
  void leave() {
    visits.back().run->depth = kFollowed;
    visits.pop_back();
  }
};

// Depth first, from each run to the runs in which its missing members wait.
void Circles::search(absl::Time now) {
  search_.reset();
  Path path;
  for (const auto& [device, waiting] : waiting_) {
    Path::Run& run = path.runs.try_emplace(waiting.wait->run, Path::Run{waiting}).first->second;
    const DeviceWait& nearest = *run.nearest.wait;
    if (waiting.wait->missing.size() < nearest.missing.size()) run.nearest = waiting;
  }
  std::vector<std::vector<Waiting>> circles;
  for (auto& [id, run] : path.runs) {
    if (!run.depth.has_value()) path.enter(run.nearest, run);
    while (!path.visits.empty()) {
      std::vector<Waiting> circle = follow(path);
      if (circle.empty()) continue;
      circles.push_back(std::move(circle));
      // Searches follow their other waits once those have ended with this one.
      while (!path.visits.empty()) path.leave();
    }
  }
  // Not before: a circle that begins answers the calls that have its waits.
  for (std::vector<Waiting>& circle : circles) {
    const bool is_free = std::all_of(circle.begin(), circle.end(), [this](const Waiting& w) {
      return open_.count(w.client) > 0 && circle_of_.count(w.client) == 0;
    });
    if (!is_free) continue;
    // The first run is one in which a device can be held. A circle of one host has none, and its
    // clients end it by themselves.
    const auto first = std::find_if(circle.begin(), circle.end(),
                                    [](const Waiting& w) { return w.wait->spans_hosts; });
    if (first == circle.end()) continue;
    std::rotate(circle.begin(), first, circle.end());
    begin(circle, now);
  }
}

std::vector<Circles::Waiting> Circles::follow(Path& path) const {
  Path::Visit& visit = path.visits.back();
  const Waiting& from = visit.run->nearest;
  const absl::Span<const IdRanges::Range> ranges = from.wait->missing.ranges();
  while (visit.range < ranges.size()) {
    const auto& [begin, end] = ranges[visit.range];
    const auto found = waiting_.lower_bound(std::max(visit.next, begin));
    if (found == waiting_.end() || found->first >= end) {
      ++visit.range;
      continue;
    }
    visit.next = found->first + 1;
    const Waiting& other = found->second;
    const DeviceWait& wait = *other.wait;
    const bool is_same_name = wait.name_hash != 0 && wait.name_hash == from.wait->name_hash;
    if (is_same_name && wait.run.group != from.wait->run.group) return {from, other};
    Path::Run& run = path.runs.at(wait.run);
    if (!run.depth.has_value()) {
      path.enter(other, run);
      return {};
    }
    // A device that waits in this run is not missing there.
    if (*run.depth == Path::kFollowed || &run == visit.run) continue;
    // The device waits there in place of the one by which the run was reached.
    std::vector<Waiting> circle = {other};
    for (size_t at = *run.depth + 1; at < path.visits.size(); ++at) {
      circle.push_back(path.visits[at].by);
    }
    return circle;
  }
  path.leave();
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

CircleStep Circles::step_for(int client, uint64_t number, CircleStep::Kind kind) const {
  const Circle& circle = circles_.at(number);
  const size_t n = circle.waits.size();
  CircleStep step = {.kind = kind, .number = number};
  const auto add = [&](size_t k) {
    step.waits.push_back(circle.waits[(k + n - 1) % n]);
    step.waits.push_back(circle.waits[k]);
  };
  if (kind == CircleStep::kConfirm) {
    for (size_t k = 0; k < n; ++k) {
      if (circle.clients[k] == client) add(k);
    }
  } else if (kind == CircleStep::kEnd) {
    step.at = static_cast<uint32_t>(circle.at);
    add(circle.at - 1);
    step.named.assign(circle.waits.begin(), circle.waits.begin() + std::min(n, kMostNamed));
  } else if (client == circle.clients[0]) {
    add(0);
  }
  return step;
}

void Circles::give(int client, uint64_t number, CircleStep::Kind kind) {
  CircleStep step = step_for(client, number, kind);
  if (open_.count(client) > 0) return close(client, std::move(step));
  steps_.insert_or_assign(client, std::move(step));
}

// A device that is held is released, also where not all runs have ended.
void Circles::drop(uint64_t number) {
  const auto known = circles_.find(number);
  if (known == circles_.end()) return;
  Circle& circle = known->second;
  deadlines_.remove(circle.expiry);
  for (const int client : std::set<int>(circle.clients.begin(), circle.clients.end())) {
    circle_of_.erase(client);
    steps_.erase(client);
    if (circle.at > 0) give(client, number, CircleStep::kRelease);
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
