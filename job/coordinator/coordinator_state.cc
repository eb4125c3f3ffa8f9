// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/coordinator_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/format.h"

namespace tessera {

CoordinatorState::CoordinatorState(Options options)
    : options_(std::move(options)), registrations_(options_, deadlines_, callbacks_, [this] {
        heartbeats_.emplace(registrations_.members(), options_.host_id);
        next_tick_ = now_ + registrations_.heartbeat_interval();
      }) {
  forget_job();
}

std::vector<std::function<void()>> CoordinatorState::take_callbacks() {
  std::vector<Loss> losses = std::exchange(new_losses_, {});
  if (!losses.empty() && loss_listener_) {
    // First: a client whose call fails may end the service, and all are told the cause before.
    callbacks_.insert(callbacks_.begin(),
                      [this, losses = std::move(losses)] { loss_listener_(losses); });
  }
  return std::exchange(callbacks_, {});
}

void CoordinatorState::answer(const Done& done, const Status& status) {
  callbacks_.push_back([done, status] { done(status); });
}

void CoordinatorState::register_client(Connection connection, const Registration& registration,
                                       absl::Time now, absl::Time deadline, Done done) {
  now_ = std::max(now_, now);
  const bool is_over = stopped_.ok() && left_.size() == static_cast<size_t>(options_.num_clients);
  if (is_over) forget_job();
  registrations_.register_client(connection, registration, now_, deadline, std::move(done));
}

// No call waits any more: each ended when its client or the client that it waited for had gone.
void CoordinatorState::forget_job() {
  registrations_.forget_job();
  heartbeats_.reset();
  lost_.clear();
  left_.clear();
  still_here_as_of_ = -1;
  next_tick_ = absl::InfiniteFuture();
  const auto describe = [this](int client) { return registrations_.describe(client); };
  key_values_.emplace(options_.num_clients, describe, deadlines_, callbacks_);
  check_ins_.emplace(options_.num_clients, describe, deadlines_, callbacks_);
  circles_.emplace(deadlines_, callbacks_);
}

void CoordinatorState::disconnected(Connection connection) {
  if (!stopped_.ok()) return;
  const std::optional<int> member = registrations_.disconnected(connection, now_);
  if (!member.has_value() || left_.count(*member) > 0 || lost_.count(*member) > 0) return;
  lose(IdRanges::of({*member}), loss_without_shutdown(registrations_.describe(*member)));
}

void CoordinatorState::heartbeat(Connection connection) {
  const std::optional<int> member = registrations_.heartbeat(connection);
  if (!member.has_value()) return;
  heartbeats_->heard(*member);
  const Status claim = registrations_.check_claim(*member);
  if (!claim.ok()) lose(IdRanges::of({*member}), claim);
}

StatusOr<int> CoordinatorState::client_of(Connection connection) const {
  const std::optional<int> member = registrations_.member_of(connection);
  if (!member.has_value()) {
    return absl::FailedPreconditionError("this connection has not registered as a client");
  }
  const auto lost = lost_.find(*member);
  if (lost == lost_.end()) return *member;
  return absl::FailedPreconditionError(
      absl::StrCat("this client was declared lost, and the others went on without it: ",
                   lost->second.message()));
}

void CoordinatorState::lose(const IdRanges& clients, const Status& reason) {
  clients.for_each([&](int id) { lost_.emplace(id, reason); });
  new_losses_.push_back({clients, reason});
  clients.for_each([&](int id) { gone(id, reason, reason); });
}

// Ends what waits for a client that was lost (own == reason) or leaves: its own check-ins with
// `own`; check-ins of others with it, and gets of keys that it would set, with `reason`.
void CoordinatorState::gone(int client_id, const Status& reason, const Status& own) {
  heartbeats_->client_gone(client_id);
  registrations_.client_gone(client_id);
  check_ins_->client_gone(client_id, reason, own);
  circles_->client_gone(client_id);
  key_values_->client_gone(client_id, reason);
  finish_leaving();
}

void CoordinatorState::leave(int client_id, absl::Time now, absl::Time deadline, Done done) {
  if (!stopped_.ok()) return answer(done, absl::OkStatus());
  if (!left_.insert(client_id).second) return answer(done, absl::OkStatus());
  const absl::Duration timeout = deadline - now;
  const auto expiry = deadlines_.add(deadline, [this, client_id, timeout] {
    const auto leaver = leaving_.find(client_id);
    // From now on it does not take part in calls of the others.
    new_losses_.push_back({IdRanges::of({client_id}), has_left(client_id)});
    answer(leaver->second.done, still_here(timeout));
    leaving_.erase(leaver);
  });
  leaving_.emplace(client_id, Leaver{std::move(done), expiry});
  gone(client_id, has_left(client_id),
       absl::CancelledError(absl::StrCat(registrations_.describe(client_id), " is shutting down")));
}

Status CoordinatorState::has_left(int client_id) const {
  return absl::UnavailableError(
      absl::StrCat(registrations_.describe(client_id), " has left the job"));
}

void CoordinatorState::report_waits(int client_id, WaitsReport report, absl::Time now,
                                    absl::Time deadline, Circles::Done done) {
  if (!stopped_.ok() || heartbeats_->is_gone(client_id)) {
    const Status over = stopped_.ok() ? has_left(client_id) : stopped_;
    callbacks_.push_back([done = std::move(done), over] { done(over); });
    return;
  }
  circles_->report(client_id, std::move(report), now, deadline, std::move(done));
}

std::vector<AwaitedCall> CoordinatorState::awaited(Connection connection) const {
  if (!stopped_.ok()) return {};
  const std::optional<int> member = registrations_.member_of(connection);
  if (!member.has_value()) return registrations_.awaited(connection);
  std::vector<AwaitedCall> calls = check_ins_->awaited(*member);
  if (leaving_.count(*member) > 0) {
    calls.push_back({.kind = AwaitedCall::kLeave,
                     .num_clients = options_.num_clients,
                     .missing = heartbeats_->not_gone()});
  }
  for (AwaitedCall& get : key_values_->awaited(*member)) calls.push_back(std::move(get));
  for (AwaitedCall& call : calls) {
    for (const int client : call.missing) {
      if (heartbeats_->is_silent(client)) call.silent.push_back(client);
    }
  }
  return calls;
}

// The clients that leave wait for each other: all are answered when every client has left or is
// lost.
void CoordinatorState::finish_leaving() {
  if (heartbeats_->num_gone() < options_.num_clients) return;
  for (const auto& [client, leaver] : std::exchange(leaving_, {})) {
    deadlines_.remove(leaver.expiry);
    answer(leaver.done, absl::OkStatus());
  }
}

Status CoordinatorState::still_here(absl::Duration timeout) {
  if (still_here_as_of_ != heartbeats_->num_gone()) {
    // Many leavers have one deadline, and get one list.
    still_here_ = name_clients(IdRanges::of(heartbeats_->not_gone()), options_.num_clients,
                               [this](int client) { return registrations_.describe(client); });
    still_here_as_of_ = heartbeats_->num_gone();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("shutdown: ", left_.size(), " of ", options_.num_clients, " clients arrived in ",
                   format_duration(timeout), "; missing ", still_here_));
}

void CoordinatorState::advance(absl::Time now) {
  now_ = std::max(now_, now);
  deadlines_.advance(now);
  if (now < next_tick_) return;
  // One tick, however late it is: what clients sent meanwhile may not have been read yet.
  next_tick_ = now + registrations_.heartbeat_interval();
  heartbeats_->tick(
      registrations_.heartbeat_interval(),
      [this](const IdRanges& clients, const Status& reason) { lose(clients, reason); });
}

absl::Time CoordinatorState::next_event() const { return std::min(next_tick_, deadlines_.next()); }

void CoordinatorState::stop() {
  if (!stopped_.ok()) return;
  stopped_ = absl::CancelledError(
      absl::StrCat("the coordinator at ", options_.address, " has shut down in order"));
  registrations_.stop(stopped_);
  check_ins_->stop(stopped_);
  circles_->stop(stopped_);
  key_values_->stop(stopped_);
  for (const auto& [client, leaver] : std::exchange(leaving_, {})) {
    deadlines_.remove(leaver.expiry);
    answer(leaver.done, absl::OkStatus());
  }
  next_tick_ = absl::InfiniteFuture();
}

}  // namespace tessera
