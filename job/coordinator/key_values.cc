// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/key_values.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tessera {
namespace {

// The key under which calls that wait for a proposal are found.
std::string key_of_proposal(absl::string_view series, uint32_t number) {
  return absl::StrCat(series, " ", number);
}

}  // namespace

KeyValues::KeyValues(int num_clients, std::function<std::string(int)> describe,
                     DeadlineQueue& deadlines, std::vector<std::function<void()>>& callbacks)
    : describe_(std::move(describe)),
      deadlines_(deadlines),
      callbacks_(callbacks),
      num_waiting_(num_clients),
      awaited_by_(num_clients) {}

void KeyValues::answer(const Found& found, const StatusOr<std::string>& value) {
  callbacks_.push_back([found, value] { found(value); });
}

Status KeyValues::put(absl::string_view key, absl::string_view value) {
  if (!stopped_.ok()) return stopped_;
  const auto known = values_.find(std::string(key));
  if (known != values_.end()) {
    if (known->second == value) return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrCat("key ", in_quotes(key), " has another value already; use a new key"));
  }
  const auto num_bytes = static_cast<int64_t>(key.size() + value.size());
  if (num_bytes > kMostBytes - value_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("key ", in_quotes(key.substr(0, 100)), " needs ", num_bytes,
                     " bytes; the coordinator holds ", value_bytes_, " of at most ", kMostBytes,
                     "; use fewer and smaller values"));
  }
  value_bytes_ += num_bytes;
  values_.emplace(key, value);
  wake_waiters(std::string(key), value);
  return absl::OkStatus();
}

void KeyValues::wake_waiters(const std::string& key, absl::string_view value) {
  const auto waiting = waiters_of_.find(key);
  if (waiting == waiters_of_.end()) return;
  for (const uint64_t number : std::set<uint64_t>(waiting->second)) {
    finish(number, std::string(value));
  }
}

StatusOr<std::string> KeyValues::propose(absl::string_view series, uint32_t number,
                                         absl::string_view value) {
  if (!stopped_.ok()) return stopped_;
  if (series.size() + value.size() > kMostProposalBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(series.substr(0, 100), " ", number, ": series and value have ",
                     series.size() + value.size(), " bytes; use at most ", kMostProposalBytes));
  }
  bool is_new;
  std::string first = proposals_.propose(series, number, value, &is_new);
  if (is_new) wake_waiters(key_of_proposal(series, number), first);
  return first;
}

// Answers at once if the key is set or cannot be set any more; else the get waits for put(), for
// the end of the setter, for its deadline or for stop(), and finish() answers it.
void KeyValues::get(int client, absl::string_view key, int setter, absl::Time deadline,
                    Found found) {
  if (!stopped_.ok()) return answer(found, stopped_);
  const auto known = values_.find(std::string(key));
  if (known != values_.end()) return answer(found, known->second);
  wait_for(client, std::string(key), setter, deadline, std::move(found));
}

void KeyValues::get_proposal(int client, absl::string_view series, uint32_t number, int setter,
                             absl::Time deadline, Found found) {
  if (!stopped_.ok()) return answer(found, stopped_);
  if (const std::string* const known = proposals_.find(series, number)) {
    return answer(found, *known);
  }
  const std::string key = key_of_proposal(series, number);
  if (proposals_.is_forgotten(series, number)) {
    return answer(found, absl::NotFoundError(absl::StrCat(
                             in_quotes(key), " is forgotten: ", Proposals::kMostOfSeries,
                             " later ones are known; see why this client is so far behind the "
                             "others")));
  }
  wait_for(client, key, setter, deadline, std::move(found));
}

void KeyValues::wait_for(int client, const std::string& key, int setter, absl::Time deadline,
                         Found found) {
  const auto num_clients = static_cast<int>(awaited_by_.size());
  if (setter < 0 || setter >= num_clients) {
    return answer(found, absl::InvalidArgumentError(absl::StrCat(
                             "key ", in_quotes(key), " would be set by client ", setter,
                             "; the job has ", num_clients, " clients, 0 to ", num_clients - 1)));
  }
  const auto gone = gone_.find(setter);
  if (gone != gone_.end()) return answer(found, gone->second);
  if (num_waiting_[client] == kMostWaitingCalls) {
    return answer(found, absl::ResourceExhaustedError(absl::StrCat(
                             describe_(client), " waits for ", kMostWaitingCalls,
                             " keys already, the most that a client may; wait for fewer")));
  }
  ++num_waiting_[client];
  const uint64_t number = ++last_waiter_;
  const auto expiry = deadlines_.add(deadline, [this, number, key] {
    finish(number, absl::DeadlineExceededError(
                       absl::StrCat("key ", in_quotes(key),
                                    " was not set in time; see whether the client that "
                                    "sets it has reached that call")));
  });
  waiters_of_[key].insert(number);
  awaited_by_[setter].insert(number);
  waiters_.emplace(number, Waiter{client, setter, key, std::move(found), expiry});
}

void KeyValues::finish(uint64_t number, const StatusOr<std::string>& value) {
  const auto it = waiters_.find(number);
  const Waiter& waiter = it->second;
  deadlines_.remove(waiter.expiry);
  --num_waiting_[waiter.client];
  awaited_by_[waiter.setter].erase(number);
  const auto same_key = waiters_of_.find(waiter.key);
  same_key->second.erase(number);
  if (same_key->second.empty()) waiters_of_.erase(same_key);
  answer(waiter.found, value);
  waiters_.erase(it);
}

void KeyValues::client_gone(int client, const Status& reason) {
  gone_.emplace(client, reason);
  for (const uint64_t number : std::set<uint64_t>(awaited_by_[client])) finish(number, reason);
}

void KeyValues::stop(const Status& reason) {
  stopped_ = reason;
  while (!waiters_.empty()) finish(waiters_.begin()->first, reason);
}

std::vector<AwaitedCall> KeyValues::awaited(int client) const {
  std::vector<AwaitedCall> calls;
  for (const auto& [number, waiter] : waiters_) {
    if (waiter.client != client) continue;
    calls.push_back({.kind = AwaitedCall::kGet,
                     .text = waiter.key,
                     .num_clients = 2,
                     .missing = {waiter.setter}});
  }
  return calls;
}

}  // namespace tessera
