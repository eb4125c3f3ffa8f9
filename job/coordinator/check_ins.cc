// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/check_ins.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/format.h"

namespace tessera {

std::string name_clients(const IdRanges& clients, int num_clients,
                         const std::function<std::string(int)>& describe) {
  std::vector<std::string> named;
  clients.for_each([&](int client) {
    if (named.size() < kMostNamed) named.push_back(describe(client));
  });
  const std::string first = absl::StrJoin(named, ", ");
  if (clients.size() <= kMostNamed) return first;
  return absl::StrCat("clients ", clients.to_list(), " of ", num_clients, ", the first are ",
                      first);
}

CheckIns::CheckIns(int num_clients, std::function<std::string(int)> describe,
                   DeadlineQueue& deadlines, std::vector<std::function<void()>>& callbacks)
    : num_clients_(num_clients),
      describe_(std::move(describe)),
      deadlines_(deadlines),
      callbacks_(callbacks),
      open_of_(num_clients),
      waiting_in_(num_clients),
      is_gone_(num_clients) {}

CheckIns::~CheckIns() = default;

// A call joins an open check-in of its name and participants, gets the verdict of a check-in that
// has failed without it, or opens a new one. Then the check-in settles if its values differ, if all
// have arrived, or if it is part of a circle.
void CheckIns::check_in(Call call, absl::Time now, Done done) {
  const Status valid = check(call);
  if (!valid.ok()) return answer(done, valid);
  const Key key = {call.name, call.participants};
  Open* check_in = find_open(key, call.client);
  if (check_in == nullptr || check_in->value != call.value) {
    Status verdict;
    if (take_stored(key, call, &verdict)) return answer(done, verdict);
  }
  if (check_in == nullptr) {
    // No participant of an open check-in is lost or has left. That must hold of a new one too.
    const std::pair<int, Status>* const gone = first_gone(call.participants);
    if (gone != nullptr) return answer(done, with_context(gone->second, call.name));
    check_in = open(call, now);
  }
  skip_stored(key, call.client, kMostStored);
  const std::pair<int, std::string> first = {check_in->first_client, check_in->value};
  arrive(check_in, call.client, now, call.deadline, std::move(done));
  if (first.second != call.value) {
    settle(check_in, disagreement(call.name, first, {call.client, call.value}));
  } else if (check_in->num_arrived == call.participants.size()) {
    settle(check_in, absl::OkStatus());
  } else {
    link_arrival(check_in, call.client);
    break_circle(check_in);
  }
}

Status CheckIns::check(const Call& call) const {
  if (!stopped_.ok()) return with_context(stopped_, call.name);
  const size_t num_bytes = call.name.size() + call.value.size();
  if (num_bytes > kMostNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat(call.name.substr(0, 100),
                                                   ": name and value have ", num_bytes,
                                                   " bytes; use at most ", kMostNameBytes));
  }
  const absl::Span<const IdRanges::Range> ranges = call.participants.ranges();
  if (!call.participants.contains(call.client) || ranges.front().begin < 0 ||
      ranges.back().end > num_clients_) {
    return absl::InvalidArgumentError(
        absl::StrCat(call.name, ": participants ", call.participants.to_string(), " of ",
                     describe_(call.client), " must be clients from 0 to ", num_clients_ - 1,
                     " with client ", call.client, " among them"));
  }
  if (waiting_in_[call.client].size() == kMostWaitingCalls) {
    return absl::ResourceExhaustedError(
        absl::StrCat(call.name, ": ", describe_(call.client), " waits in ", kMostWaitingCalls,
                     " check-ins already, the most that a client may; wait for fewer"));
  }
  return absl::OkStatus();
}

const std::pair<int, Status>* CheckIns::first_gone(const IdRanges& participants) {
  // It stays the first: clients go one after the other.
  if (!last_asked_.empty() && last_asked_ == participants) return &gone_[last_first_gone_];
  const auto first = std::find_if(gone_.begin(), gone_.end(), [&](const auto& gone) {
    return participants.contains(gone.first);
  });
  if (first == gone_.end()) return nullptr;
  last_asked_ = participants;
  last_first_gone_ = first - gone_.begin();
  return &*first;
}

CheckIns::Open* CheckIns::find_open(const Key& key, int client) {
  const auto found = open_.find(key);
  if (found == open_.end()) return nullptr;
  for (const std::unique_ptr<Open>& check_in : found->second) {
    if (!check_in->arrived[client]) return check_in.get();
  }
  return nullptr;
}

CheckIns::Open* CheckIns::open(Call& call, absl::Time now) {
  const Key key = {call.name, call.participants};
  Open* const result = open_[key].emplace_back(std::make_unique<Open>()).get();
  ++num_open_;
  result->number = ++last_number_;
  result->key = key;
  result->value = call.value;
  result->first_client = call.client;
  result->start = now;
  result->arrived.resize(num_clients_);
  call.participants.for_each([&](int client) {
    open_of_[client].insert(result);
    for (Open* const other : waiting_in_[client]) {
      if (other->key.first != call.name) continue;
      ++result->waits_for[other];
      other->waited_by.insert(result);
    }
  });
  return result;
}

void CheckIns::arrive(Open* check_in, int client, absl::Time now, absl::Time deadline, Done done) {
  waiting_in_[client].push_back(check_in);
  check_in->arrived[client] = true;
  ++check_in->num_arrived;
  check_in->waiting.emplace_back(client, std::move(done));
  if (deadline < check_in->deadline) {
    deadlines_.remove(check_in->expiry);
    check_in->deadline = std::max(deadline, now);
    check_in->expiry = deadlines_.add(deadline, [this, check_in] { expire(check_in); });
  }
}

// Keeps the wait graph: waits_for[b] of check-in a counts the clients that are missing in a and
// wait in b. The client is no longer missing in this check-in, so this one's edges to where the
// client waits go; check-ins in which it is missing get an edge to this one.
void CheckIns::link_arrival(Open* check_in, int client) {
  const std::string& name = check_in->key.first;
  for (Open* const other : waiting_in_[client]) {
    if (other == check_in || other->key.first != name) continue;
    const auto edge = check_in->waits_for.find(other);
    if (--edge->second > 0) continue;
    check_in->waits_for.erase(edge);
    other->waited_by.erase(check_in);
  }
  for (Open* const other : open_of_[client]) {
    if (other->arrived[client] || other->key.first != name) continue;
    ++other->waits_for[check_in];
    check_in->waited_by.insert(other);
  }
}

// Searches the wait graph breadth first from this check-in back to itself, and settles all
// check-ins of the circle found. The edges that an arrival adds begin or end at its check-in, so a
// new circle goes through it.
void CheckIns::break_circle(Open* check_in) {
  std::map<Open*, Open*, Older> reached_from;
  std::deque<Open*> next = {check_in};
  while (!next.empty() && reached_from.count(check_in) == 0) {
    Open* const from = next.front();
    next.pop_front();
    for (const auto& [to, count] : from->waits_for) {
      if (reached_from.emplace(to, from).second) next.push_back(to);
    }
  }
  if (reached_from.count(check_in) == 0) return;
  std::vector<Open*> circle = {check_in};
  for (Open* at = reached_from[check_in]; at != check_in; at = reached_from[at]) {
    circle.push_back(at);
  }
  const auto part_of = [](const Open& open) {
    return std::make_pair(open.first_client,
                          absl::StrCat(open.value, " with clients ", open.key.second.to_string()));
  };
  auto first = part_of(*circle[0]);
  auto second = part_of(*circle[1]);
  if (second.first < first.first) std::swap(first, second);
  const Status verdict = disagreement(check_in->key.first, first, second);
  for (Open* const open : circle) settle(open, verdict);
}

void CheckIns::expire(Open* check_in) { settle(check_in, missing_at_deadline(*check_in)); }

// Answers all that wait, removes the check-in from the graph, and stores the verdict for the
// participants that have not arrived.
void CheckIns::settle(Open* check_in, const Status& verdict) {
  deadlines_.remove(check_in->expiry);
  Stored stored = {check_in->value, verdict, {}};
  for (Open* const other : check_in->waited_by) other->waits_for.erase(check_in);
  for (const auto& [other, count] : check_in->waits_for) other->waited_by.erase(check_in);
  check_in->key.second.for_each([&](int client) {
    open_of_[client].erase(check_in);
    if (check_in->arrived[client]) {
      std::erase(waiting_in_[client], check_in);
    } else {
      stored.untold.insert(stored.untold.end(), client);
    }
  });
  for (const auto& [client, done] : check_in->waiting) answer(done, verdict);
  const Key key = check_in->key;
  const auto same = open_.find(key);
  same->second.remove_if([&](const auto& open) { return open.get() == check_in; });
  if (same->second.empty()) open_.erase(same);
  --num_open_;

  if (stored.untold.empty()) return;
  stored_[key].push_back(std::move(stored));
  stored_order_.push_back(key);
  if (stored_order_.size() <= kMostStored) return;
  const auto oldest = stored_.find(stored_order_.front());
  stored_order_.pop_front();
  oldest->second.pop_front();
  if (oldest->second.empty()) stored_.erase(oldest);
}

bool CheckIns::take_stored(const Key& key, const Call& call, Status* verdict) {
  const auto found = stored_.find(key);
  if (found == stored_.end()) return false;
  size_t count = 0;
  for (const Stored& stored : found->second) {
    ++count;
    if (stored.untold.count(call.client) == 0) continue;
    // A call with another value is a later one: this client has left out the failed call.
    if (stored.value != call.value && !absl::IsInvalidArgument(stored.verdict)) continue;
    *verdict = stored.verdict;
    skip_stored(key, call.client, count);
    return true;
  }
  return false;
}

void CheckIns::skip_stored(const Key& key, int client, size_t count) {
  const auto found = stored_.find(key);
  if (found == stored_.end()) return;
  std::list<Stored>& all = found->second;
  for (auto it = all.begin(); it != all.end() && count > 0; --count) {
    it->untold.erase(client);
    const bool is_told = it->untold.empty();
    if (is_told) stored_order_.erase(std::find(stored_order_.begin(), stored_order_.end(), key));
    it = is_told ? all.erase(it) : std::next(it);
  }
  if (all.empty()) stored_.erase(found);
}

void CheckIns::client_gone(int client, const Status& reason, const Status& own) {
  if (is_gone_[client]) return;
  is_gone_[client] = true;
  gone_.emplace_back(client, reason);
  const std::vector<Open*> concerned(open_of_[client].begin(), open_of_[client].end());
  for (Open* const check_in : concerned) {
    settle(check_in, with_context(check_in->arrived[client] ? own : reason, check_in->key.first));
  }
}

void CheckIns::stop(const Status& reason) {
  stopped_ = reason;
  while (!open_.empty()) {
    Open* const check_in = open_.begin()->second.front().get();
    settle(check_in, with_context(reason, check_in->key.first));
  }
}

void CheckIns::answer(const Done& done, const Status& status) {
  callbacks_.push_back([done, status] { done(status); });
}

Status CheckIns::disagreement(const std::string& name, const std::pair<int, std::string>& first,
                              const std::pair<int, std::string>& second) const {
  return absl::InvalidArgumentError(absl::StrCat(
      name, ": clients disagree: ", describe_(first.first), " has ", first.second, ", ",
      describe_(second.first), " has ", second.second, "; make the same call on every client"));
}

std::vector<int> CheckIns::missing_in(const Open& check_in) {
  std::vector<int> missing;
  check_in.key.second.for_each([&](int client) {
    if (!check_in.arrived[client]) missing.push_back(client);
  });
  return missing;
}

std::vector<AwaitedCall> CheckIns::awaited(int client) const {
  std::vector<AwaitedCall> calls;
  for (const Open* const open : waiting_in_[client]) {
    calls.push_back({.kind = AwaitedCall::kCheckIn,
                     .text = open->value,
                     .num_clients = static_cast<int>(open->key.second.size()),
                     .missing = missing_in(*open)});
  }
  return calls;
}

Status CheckIns::missing_at_deadline(const Open& check_in) const {
  const std::vector<int> missing = missing_in(check_in);
  const auto describe = [&](int client) {
    std::string text = describe_(client);
    for (const Open* const other : waiting_in_[client]) {
      if (other->key.first != check_in.key.first) continue;
      absl::StrAppend(&text, ", which waits with ", other->value, " for clients ",
                      other->key.second.to_string());
    }
    return text;
  };
  const std::string arrived =
      absl::StrCat(check_in.num_arrived, " of ", check_in.key.second.size(), " clients arrived");
  return absl::DeadlineExceededError(absl::StrCat(
      check_in.key.first, ": ", not_in_time(arrived, check_in.deadline - check_in.start),
      "; missing ", name_clients(IdRanges::of(missing), num_clients_, describe)));
}

}  // namespace tessera
