// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/format.h"

namespace tessera {
namespace {

constexpr int kMissedHeartbeats = 3;
// How much later than the others the first heartbeat may come: the client has to be told first that
// the job is complete, and to open its session.
constexpr absl::Duration kTimeToOpenSession = absl::Seconds(5);

}  // namespace

CoordinatorState::CoordinatorState(int num_clients, std::string address,
                                   absl::Duration heartbeat_interval)
    : num_clients_(num_clients),
      address_(std::move(address)),
      heartbeat_interval_(heartbeat_interval) {
  for (int i = 0; i < num_clients; ++i) leaving_.participants.push_back(i);
}

void CoordinatorState::answer(const Done& done, const Status& status) {
  callbacks_.push_back([done, status] { done(status); });
}

std::string CoordinatorState::describe(int client_id) const {
  const auto it = registered_.find(client_id);
  return it == registered_.end() ? absl::StrCat("client ", client_id) : it->second.to_string();
}

void CoordinatorState::fail_registration(const Status& error) {
  registration_error_ = error;
  for (const Done& done : std::exchange(registering_, {})) answer(done, error);
}

void CoordinatorState::register_client(const MemberInfo& member, int num_clients, absl::Time now,
                                       absl::Time deadline, Done done) {
  const auto refuse = [&](const Status& error) {
    if (members_.empty() && registration_error_.ok()) fail_registration(error);
    answer(done, error);
  };
  if (!registration_error_.ok()) return answer(done, registration_error_);
  if (num_clients != num_clients_) {
    return refuse(absl::InvalidArgumentError(
        absl::StrCat(member.to_string(), " was started for a job of ", num_clients,
                     " clients, and the coordinator at ", address_, " for one of ", num_clients_,
                     "; give all clients the same number")));
  }
  if (member.client_id < 0 || member.client_id >= num_clients_) {
    return refuse(absl::InvalidArgumentError(
        absl::StrCat("client id ", member.client_id, " is out of range; a job of ", num_clients_,
                     " clients has ids 0 to ", num_clients_ - 1)));
  }
  const auto [it, is_new] = registered_.try_emplace(member.client_id, member);
  if (!is_new) {
    return refuse(absl::InvalidArgumentError(
        absl::StrCat("two clients have the id ", member.client_id, ": ", it->second.to_string(),
                     " and ", member.to_string(), "; give each client an id of its own")));
  }
  registration_start_ = std::min(registration_start_, now);
  registration_deadline_ = std::min(registration_deadline_, deadline);
  registering_.push_back(std::move(done));
  if (static_cast<int>(registered_.size()) < num_clients_) return;
  for (const auto& [id, info] : registered_) {
    members_.push_back(info);
    // From now on: it may have died while it waited for the others.
    last_heartbeat_[id] = now + kTimeToOpenSession;
  }
  registration_deadline_ = absl::InfiniteFuture();
  for (const Done& waiting : std::exchange(registering_, {})) answer(waiting, absl::OkStatus());
}

void CoordinatorState::session_started(int client_id, absl::Time now) {
  // One that came too late stays lost, and one that nobody knows is not missed.
  if (last_heartbeat_.count(client_id) > 0) last_heartbeat_[client_id] = now;
}

void CoordinatorState::heartbeat(int client_id, absl::Time now) {
  if (last_heartbeat_.count(client_id) > 0) last_heartbeat_[client_id] = now;
}

void CoordinatorState::session_ended(int client_id) {
  if (last_heartbeat_.erase(client_id) == 0 || left_.count(client_id) > 0) return;
  lose(client_id, " is lost: its connection to the coordinator broke off");
}

void CoordinatorState::lose(int client_id, const std::string& how) {
  const Status reason = absl::UnavailableError(absl::StrCat(describe(client_id), how));
  if (!lost_.try_emplace(client_id, reason).second) return;
  last_heartbeat_.erase(client_id);
  for (auto& [key, check_in] : check_ins_) {
    const bool concerned = std::find(check_in.participants.begin(), check_in.participants.end(),
                                     client_id) != check_in.participants.end();
    if (concerned && !check_in.settled) settle(check_in, with_context(reason, key.first));
  }
  if (loss_listener_) {
    callbacks_.push_back([this, client_id, reason] { loss_listener_(client_id, reason); });
  }
  // Those that wait to leave wait for the living only.
  advance(absl::InfinitePast());
}

Status CoordinatorState::check_alive(int client_id) const {
  const auto it = lost_.find(client_id);
  if (it == lost_.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "this client was declared lost, and the others went on without it: ", it->second.message()));
}

Status CoordinatorState::put(absl::string_view key, absl::string_view value) {
  const auto [it, is_new] = values_.try_emplace(std::string(key), value);
  if (!is_new && it->second != value) {
    return absl::AlreadyExistsError(
        absl::StrCat("key \"", key, "\" has another value already; use a new key"));
  }
  for (const Waiter& waiter : waiters_) {
    if (waiter.key != key) continue;
    callbacks_.push_back([found = waiter.found, text = it->second] { found(text); });
  }
  std::erase_if(waiters_, [&](const Waiter& waiter) { return waiter.key == key; });
  return absl::OkStatus();
}

void CoordinatorState::get(absl::string_view key, absl::Time deadline, Found found) {
  const auto it = values_.find(std::string(key));
  if (!stopped_.ok()) {
    callbacks_.push_back([found, status = stopped_] { found(status); });
  } else if (it == values_.end()) {
    waiters_.push_back({std::string(key), deadline, std::move(found)});
  } else {
    callbacks_.push_back([found, text = it->second] { found(text); });
  }
}

void CoordinatorState::settle(CheckIn& check_in, const Status& verdict) {
  check_in.settled = true;
  check_in.verdict = verdict;
  for (const Done& done : std::exchange(check_in.waiting, {})) answer(done, verdict);
  for (const auto& [client, value] : check_in.values) check_in.told.insert(client);
}

void CoordinatorState::check_in(int client_id, absl::string_view name, absl::string_view value,
                                absl::Span<const int> participants, absl::Time now,
                                absl::Time deadline, Done done) {
  if (!stopped_.ok()) return answer(done, with_context(stopped_, name));
  const Status valid = check_participants(client_id, name, participants);
  if (!valid.ok()) return answer(done, valid);
  const CheckInKey key = {std::string(name), ++instances_[{std::string(name), client_id}]};
  CheckIn& check_in = check_ins_[key];
  const bool is_first = check_in.first_client < 0;
  if (is_first) {
    check_in.first_client = client_id;
    check_in.participants.assign(participants.begin(), participants.end());
    check_in.start = now;
  }
  check_in.values[client_id] = std::string(value);
  if (check_in.settled) {
    answer(done, check_in.verdict);
    check_in.told.insert(client_id);
  } else {
    check_in.waiting.push_back(std::move(done));
    check_in.deadline = std::min(check_in.deadline, deadline);
    const std::string& first_value = check_in.values[check_in.first_client];
    if (first_value != value) {
      settle(check_in, disagreement(name, check_in.first_client, first_value, client_id, value));
    } else if (absl::MakeConstSpan(check_in.participants) != participants) {
      const auto list = [](absl::Span<const int> clients) {
        return absl::StrCat("participants [", absl::StrJoin(clients, ", "), "]");
      };
      settle(check_in, disagreement(name, check_in.first_client, list(check_in.participants),
                                    client_id, list(participants)));
    }
  }
  for (const int participant : check_in.participants) {
    const auto it = lost_.find(participant);
    if (it != lost_.end() && !check_in.settled) settle(check_in, with_context(it->second, name));
  }
  if (!check_in.settled && check_in.values.size() == check_in.participants.size()) {
    settle(check_in, absl::OkStatus());
  }
  // Kept for those that are still to come.
  const bool all_told = std::all_of(
      check_in.participants.begin(), check_in.participants.end(),
      [&](int client) { return check_in.told.count(client) > 0 || lost_.count(client) > 0; });
  if (check_in.settled && all_told) check_ins_.erase(key);
}

Status CoordinatorState::disagreement(absl::string_view name, int first, absl::string_view its,
                                      int second, absl::string_view other) const {
  return absl::InvalidArgumentError(absl::StrCat(name, ": clients disagree: ", describe(first),
                                                 " has ", its, ", ", describe(second), " has ",
                                                 other, "; make the same call on every client"));
}

Status CoordinatorState::check_participants(int client_id, absl::string_view name,
                                            absl::Span<const int> participants) const {
  const std::set<int> distinct(participants.begin(), participants.end());
  const bool in_range =
      !distinct.empty() && *distinct.begin() >= 0 && *distinct.rbegin() < num_clients_;
  if (in_range && distinct.size() == participants.size() && distinct.count(client_id) > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": participants [", absl::StrJoin(participants, ", "), "] of ",
                   describe(client_id), " must be different clients from 0 to ", num_clients_ - 1,
                   " with client ", client_id, " among them"));
}

Status CoordinatorState::missing_at(const std::string& subject, const CheckIn& check_in,
                                    absl::Time now) const {
  std::vector<std::string> missing;
  for (const int client : check_in.participants) {
    if (check_in.values.count(client) == 0 && lost_.count(client) == 0) {
      missing.push_back(describe(client));
    }
  }
  return absl::DeadlineExceededError(absl::StrCat(subject, ": ", check_in.values.size(), " of ",
                                                  check_in.participants.size(), " clients came in ",
                                                  format_duration(now - check_in.start),
                                                  "; missing ", absl::StrJoin(missing, ", ")));
}

void CoordinatorState::leave(int client_id, absl::Time now, absl::Time deadline, Done done) {
  const Status alive = check_alive(client_id);
  if (!alive.ok()) return answer(done, alive);
  if (leaving_.settled) return answer(done, leaving_.verdict);
  if (leaving_.values.empty()) leaving_.start = now;
  left_.insert(client_id);
  leaving_.values[client_id] = "";
  leaving_.deadline = std::min(leaving_.deadline, deadline);
  leaving_.waiting.push_back(std::move(done));
  advance(absl::InfinitePast());
}

void CoordinatorState::advance(absl::Time now) {
  if (now >= registration_deadline_ && registration_error_.ok()) {
    std::vector<int> missing;
    for (int i = 0; i < num_clients_; ++i) {
      if (registered_.count(i) == 0) missing.push_back(i);
    }
    fail_registration(absl::DeadlineExceededError(absl::StrCat(
        "job of ", num_clients_, " clients at ", address_, ": ",
        missing.size() == 1 ? "client " : "clients ", absl::StrJoin(missing, ", "),
        " did not connect within ", format_duration(registration_deadline_ - registration_start_),
        "; see whether they were started, and with this address")));
  }
  for (const Waiter& waiter : waiters_) {
    if (waiter.deadline > now) continue;
    callbacks_.push_back([waiter] {
      waiter.found(absl::DeadlineExceededError(
          absl::StrCat("key \"", waiter.key,
                       "\" was not set in time; see whether the client that "
                       "sets it has come so far")));
    });
  }
  std::erase_if(waiters_, [&](const Waiter& waiter) { return waiter.deadline <= now; });
  for (auto& [key, check_in] : check_ins_) {
    if (!check_in.settled && check_in.deadline <= now) {
      settle(check_in, missing_at(key.first, check_in, check_in.deadline));
    }
  }
  std::vector<int> silent;
  for (const auto& [client, time] : last_heartbeat_) {
    if (time + kMissedHeartbeats * heartbeat_interval_ <= now && left_.count(client) == 0) {
      silent.push_back(client);
    }
  }
  for (const int client : silent) {
    lose(client, absl::StrCat(" was declared lost: it missed ", kMissedHeartbeats,
                              " heartbeats of ", format_duration(heartbeat_interval_)));
  }
  if (!leaving_.settled && !leaving_.values.empty()) {
    const bool all =
        std::all_of(leaving_.participants.begin(), leaving_.participants.end(),
                    [&](int client) { return left_.count(client) > 0 || lost_.count(client) > 0; });
    if (all) {
      settle(leaving_, absl::OkStatus());
    } else if (leaving_.deadline <= now) {
      settle(leaving_, missing_at("shutdown", leaving_, leaving_.deadline));
    }
  }
}

absl::Time CoordinatorState::next_event() const {
  absl::Time next = registration_error_.ok() ? registration_deadline_ : absl::InfiniteFuture();
  for (const Waiter& waiter : waiters_) next = std::min(next, waiter.deadline);
  for (const auto& [key, check_in] : check_ins_) {
    if (!check_in.settled) next = std::min(next, check_in.deadline);
  }
  for (const auto& [client, time] : last_heartbeat_) {
    if (left_.count(client) > 0) continue;
    next = std::min(next, time + kMissedHeartbeats * heartbeat_interval_);
  }
  if (!leaving_.settled && !leaving_.values.empty()) next = std::min(next, leaving_.deadline);
  return next;
}

void CoordinatorState::stop() {
  const Status cancelled =
      absl::CancelledError(absl::StrCat("the coordinator at ", address_, " is shutting down"));
  stopped_ = cancelled;
  fail_registration(cancelled);
  for (auto& [key, check_in] : check_ins_) {
    if (!check_in.settled) settle(check_in, with_context(cancelled, key.first));
  }
  if (!leaving_.settled) settle(leaving_, absl::OkStatus());
  for (const Waiter& waiter : std::exchange(waiters_, {})) {
    callbacks_.push_back([waiter, cancelled] { waiter.found(cancelled); });
  }
}

}  // namespace tessera
