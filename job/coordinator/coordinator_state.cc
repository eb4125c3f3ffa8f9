// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/coordinator_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/format.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr int kMostDevices = 65'536;
// How long after the start of a job, at most, a second client of an id puts its member in doubt.
constexpr absl::Duration kLongestStart = absl::Minutes(10);

}  // namespace

CoordinatorState::CoordinatorState(Options options)
    : options_(std::move(options)), job_(options_.job), interval_(options_.heartbeat_interval) {
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

std::string CoordinatorState::describe(int client_id) const {
  if (!members_.empty()) return members_[client_id].to_string();
  const auto it = registering_.find(client_id);
  return it == registering_.end() ? absl::StrCat("client ", client_id)
                                  : it->second.member.to_string();
}

// Registration. A client is unknown, then in registering_, then in members_ with all the others:
// complete_if_all_came() moves them together. A second registration of one id waits in twins_ until
// the first one disconnects (it was a restart, and takes the place) or sends a heartbeat (two
// clients have the id, and registration fails for all). The first error is kept and given to every
// later registration.
void CoordinatorState::register_client(Connection connection, const Registration& registration,
                                       absl::Time now, absl::Time deadline, Done done) {
  now_ = std::max(now_, now);
  const MemberInfo& member = registration.member;
  if (is_over()) forget_job();
  if (begins_new_start(registration)) forget_failed_start();
  const Status other_job = different_job(registration);
  if (!other_job.ok()) return answer(done, other_job);
  if (job_.empty() && members_.empty()) job_ = registration.job;
  const Status valid =
      registration_error_.ok() ? check_registration(registration) : registration_error_;
  if (!valid.ok()) {
    if (members_.empty()) fail_registration(valid);
    note_told(connection, member.client_id);
    return answer(done, valid);
  }
  if (!members_.empty()) return add_claim(connection, registration, deadline, std::move(done));
  interval_ = std::min(interval_, registration.heartbeat_interval);
  longest_connect_ = std::max(longest_connect_, registration.connect_timeout);
  const auto same_id = registering_.find(member.client_id);
  if (same_id == registering_.end()) {
    add_registration(connection, registration, deadline, std::move(done));
  } else if (twins_.count(member.client_id) > 0) {
    const Status error = two_clients(same_id->second.member, member);
    fail_registration(error);
    note_told(connection, member.client_id);
    answer(done, error);
  } else {
    // The restart of a client whose end is not known yet, or a mistake: a heartbeat of the first
    // one will say which.
    const absl::Duration timeout = registration.connect_timeout;
    Registering twin = {connection, member, std::move(done), {}};
    twin.expiry = deadlines_.add(deadline, [this, timeout] { missing_clients(timeout); });
    add_twin(std::move(twin));
  }
}

Status CoordinatorState::different_job(const Registration& registration) const {
  if (job_.empty() || registration.job.empty() || registration.job == job_) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(registration.member.to_string(), " belongs to job ", quoted(registration.job),
                   ", and the coordinator at ", options_.address, " serves job ", quoted(job_),
                   "; give each job an address of its own"));
}

Status CoordinatorState::check_registration(const Registration& registration) const {
  const MemberInfo& member = registration.member;
  const int num_clients = options_.num_clients;
  if (member.build != options_.build) {
    const auto text = [](const std::string& build) {
      return build.empty() ? std::string("a Tessera that does not say its version") : build;
    };
    return absl::InvalidArgumentError(
        absl::StrCat(member.to_string(), " has ", text(member.build), ", and the coordinator at ",
                     options_.address, " has ", text(options_.build),
                     "; build all programs of a job, and tessera_run, from one Tessera"));
  }
  if (registration.num_clients != num_clients) {
    return absl::InvalidArgumentError(
        absl::StrCat(member.to_string(), " was started for a job of ", registration.num_clients,
                     " clients, and the coordinator at ", options_.address, " for one of ",
                     num_clients, "; give all clients the same number"));
  }
  if (member.client_id < 0 || member.client_id >= num_clients) {
    return absl::InvalidArgumentError(absl::StrCat("client id ", member.client_id,
                                                   " is out of range; a job of ", num_clients,
                                                   " clients has ids 0 to ", num_clients - 1));
  }
  if (registration.heartbeat_interval < absl::Milliseconds(1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        member.to_string(), " asks for a heartbeat_interval of ",
        format_duration(registration.heartbeat_interval), "; it must be 1 ms or longer"));
  }
  if (member.num_local_devices < 1 || member.num_local_devices > kMostDevices) {
    return absl::InvalidArgumentError(absl::StrCat(member.to_string(), " says that it has ",
                                                   member.num_local_devices,
                                                   " devices; a client has 1 to ", kMostDevices));
  }
  return absl::OkStatus();
}

// After a start that failed: whether this registration is of another one. Clients of the failed
// start that come late get its verdict.
bool CoordinatorState::begins_new_start(const Registration& registration) const {
  if (registration_error_.ok() || !stopped_.ok()) return false;
  const auto told = told_ids_.find(registration.member.client_id);
  const bool is_again = told != told_ids_.end() && told->second == 0;
  const bool is_renamed =
      options_.job.empty() && !registration.job.empty() && registration.job != job_;
  const bool is_after_all = absl::IsDeadlineExceeded(registration_error_) && told_.empty();
  return is_again || is_renamed || is_after_all;
}

void CoordinatorState::forget_failed_start() {
  registration_error_ = absl::OkStatus();
  told_.clear();
  told_ids_.clear();
  job_ = options_.job;
  interval_ = options_.heartbeat_interval;
  longest_connect_ = absl::ZeroDuration();
}

void CoordinatorState::note_told(Connection connection, int client_id) {
  if (told_.emplace(connection, client_id).second) ++told_ids_[client_id];
}

// A client of an id that a member has. Two jobs with one address and one token, and no name, look
// like one job: each id of it has two clients, and the first of them became the member. That is
// known only when the other one comes; soon after the start neither can be told from the right one.
void CoordinatorState::add_claim(Connection connection, const Registration& registration,
                                 absl::Time deadline, Done done) {
  const int id = registration.member.client_id;
  const Status error = two_clients(members_[id], registration.member);
  const bool is_late = now_ > start_ends_;
  if (is_late || heartbeats_->is_gone(id) || twins_.count(id) > 0) return answer(done, error);
  // The restart of a member whose end is not known yet, or a second client: as above.
  Registering claim = {connection, registration.member, std::move(done), {}};
  claim.expiry = deadlines_.add(deadline, [this, id] { refuse_claim(id); });
  add_twin(std::move(claim));
}

void CoordinatorState::add_twin(Registering twin) {
  const int id = twin.member.client_id;
  twin_of_[twin.connection] = id;
  twins_.emplace(id, std::move(twin));
}

CoordinatorState::Registering CoordinatorState::take_twin(int client_id) {
  Registering twin = std::move(twins_.extract(client_id).mapped());
  twin_of_.erase(twin.connection);
  return twin;
}

void CoordinatorState::refuse_claim(int client_id) {
  if (twins_.count(client_id) == 0) return;
  const Registering claim = take_twin(client_id);
  deadlines_.remove(claim.expiry);
  answer(claim.done, two_clients(members_[client_id], claim.member));
}

bool CoordinatorState::is_over() const {
  return stopped_.ok() && left_.size() == static_cast<size_t>(options_.num_clients);
}

// No call waits any more: each ended when its client or the client that it waited for had gone.
void CoordinatorState::forget_job() {
  forget_failed_start();
  members_.clear();
  heartbeats_.reset();
  client_of_.clear();
  lost_.clear();
  left_.clear();
  still_here_as_of_ = -1;
  start_ends_ = absl::InfinitePast();
  next_tick_ = absl::InfiniteFuture();
  const auto describe_client = [this](int client) { return describe(client); };
  key_values_.emplace(options_.num_clients, describe_client, deadlines_, callbacks_);
  check_ins_.emplace(options_.num_clients, describe_client, deadlines_, callbacks_);
  circles_.emplace(deadlines_, callbacks_);
}

Status CoordinatorState::two_clients(const MemberInfo& first, const MemberInfo& second) const {
  return absl::InvalidArgumentError(absl::StrCat("two clients have the id ", first.client_id, ": ",
                                                 first.to_string(), " and ", second.to_string(),
                                                 "; give each client an id, and each job an "
                                                 "address or a TESSERA_JOB, of its own"));
}

void CoordinatorState::add_registration(Connection connection, const Registration& registration,
                                        absl::Time deadline, Done done) {
  const absl::Duration timeout = registration.connect_timeout;
  Registering registering = {connection, registration.member, std::move(done), {}};
  registering.expiry = deadlines_.add(deadline, [this, timeout] { missing_clients(timeout); });
  registering_.emplace(registration.member.client_id, std::move(registering));
  client_of_[connection] = registration.member.client_id;
  complete_if_all_came();
}

void CoordinatorState::complete_if_all_came() {
  if (static_cast<int>(registering_.size()) < options_.num_clients || !twins_.empty()) return;
  for (const auto& [id, registering] : registering_) {
    members_.push_back(registering.member);
    deadlines_.remove(registering.expiry);
    answer(registering.done, absl::OkStatus());
  }
  registering_.clear();
  heartbeats_.emplace(members_, options_.host_id);
  ++num_jobs_;
  start_ends_ = now_ + std::min(longest_connect_, kLongestStart);
  next_tick_ = now_ + interval_;
}

// Answers all that registered so far with the error.
void CoordinatorState::fail_registration(const Status& error) {
  registration_error_ = error;
  twin_of_.clear();
  for (auto* const waiting : {&registering_, &twins_}) {
    for (const auto& [id, registering] : std::exchange(*waiting, {})) {
      deadlines_.remove(registering.expiry);
      client_of_.erase(registering.connection);
      note_told(registering.connection, id);
      answer(registering.done, error);
    }
  }
}

void CoordinatorState::missing_clients(absl::Duration timeout) {
  std::vector<int> missing;
  for (int i = 0; i < options_.num_clients; ++i) {
    if (registering_.count(i) == 0) missing.push_back(i);
  }
  if (missing.empty()) {
    const auto& [id, twin] = *twins_.begin();
    return fail_registration(two_clients(registering_.at(id).member, twin.member));
  }
  fail_registration(absl::DeadlineExceededError(
      absl::StrCat("job of ", options_.num_clients, " clients at ", options_.address, ": ",
                   not_in_time(absl::StrCat(missing.size() == 1 ? "client " : "clients ",
                                            IdRanges::of(missing).to_list(), " did not connect"),
                               timeout, "within"),
                   "; see whether they were started, and with this address")));
}

// Takes back a registration that is not complete. False if the connection is that of a member.
bool CoordinatorState::withdraw(Connection connection) {
  const auto twin_id = twin_of_.find(connection);
  if (twin_id != twin_of_.end()) {
    const Registering twin = take_twin(twin_id->second);
    deadlines_.remove(twin.expiry);
    answer(twin.done, absl::CancelledError("the client is gone"));
    return true;
  }
  const auto known = client_of_.find(connection);
  if (known == client_of_.end()) return true;
  const auto registering = registering_.find(known->second);
  if (registering == registering_.end()) return false;
  deadlines_.remove(registering->second.expiry);
  answer(registering->second.done, absl::CancelledError("the client is gone"));
  registering_.erase(registering);
  client_of_.erase(known);
  return true;
}

void CoordinatorState::disconnected(Connection connection) {
  if (!stopped_.ok()) return;
  const auto told = told_.find(connection);
  if (told != told_.end()) {
    --told_ids_[told->second];
    told_.erase(told);
  }
  const auto known = client_of_.find(connection);
  const int id = known == client_of_.end() ? -1 : known->second;
  if (!withdraw(connection)) {
    if (left_.count(id) == 0 && lost_.count(id) == 0) {
      lose(IdRanges::of({id}), loss_without_shutdown(describe(id)));
    }
    return;
  }
  if (twins_.count(id) > 0) {
    // The restart takes the place of the client that is gone.
    Registering restarted = take_twin(id);
    client_of_[restarted.connection] = id;
    registering_.emplace(id, std::move(restarted));
  }
  if (registration_error_.ok() && members_.empty()) complete_if_all_came();
}

void CoordinatorState::heartbeat(Connection connection) {
  const auto known = client_of_.find(connection);
  if (known == client_of_.end()) return;
  const int id = known->second;
  if (!members_.empty()) {
    heartbeats_->heard(id);
    const auto claim = twins_.find(id);
    if (claim == twins_.end() || heartbeats_->is_gone(id)) return;
    lose(id, absl::StrCat(" is lost: ", claim->second.member.to_string(),
                          " came with the same id and token, and nothing tells which of them "
                          "belongs to this job; give each job an address or a TESSERA_JOB of its "
                          "own"));
    return;
  }
  const auto twin = twins_.find(id);
  if (twin == twins_.end()) return;
  fail_registration(two_clients(registering_.at(id).member, twin->second.member));
}

StatusOr<int> CoordinatorState::client_of(Connection connection) const {
  const auto known = client_of_.find(connection);
  if (known == client_of_.end() || members_.empty()) {
    return absl::FailedPreconditionError("this connection has not registered as a client");
  }
  const auto lost = lost_.find(known->second);
  if (lost == lost_.end()) return known->second;
  return absl::FailedPreconditionError(
      absl::StrCat("this client was declared lost, and the others went on without it: ",
                   lost->second.message()));
}

void CoordinatorState::lose(int client_id, const std::string& how) {
  if (lost_.count(client_id) > 0) return;
  lose(IdRanges::of({client_id}), absl::UnavailableError(absl::StrCat(describe(client_id), how)));
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
  refuse_claim(client_id);
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
    // From now on it does not serve what the others still do with it.
    new_losses_.push_back({IdRanges::of({client_id}), has_left(client_id)});
    answer(leaver->second.done, still_here(timeout));
    leaving_.erase(leaver);
  });
  leaving_.emplace(client_id, Leaver{std::move(done), expiry});
  gone(client_id, has_left(client_id),
       absl::CancelledError(absl::StrCat(describe(client_id), " is shutting down")));
}

Status CoordinatorState::has_left(int client_id) const {
  return absl::UnavailableError(absl::StrCat(describe(client_id), " has left the job"));
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
  const auto known = client_of_.find(connection);
  if (known == client_of_.end() || !stopped_.ok()) return {};
  const int id = known->second;
  const auto missing_where = [this](const auto& is_missing) {
    std::vector<int> missing;
    for (int client = 0; client < options_.num_clients; ++client) {
      if (is_missing(client)) missing.push_back(client);
    }
    return missing;
  };
  if (members_.empty()) {
    return {{.kind = AwaitedCall::kRegister,
             .num_clients = options_.num_clients,
             .missing = missing_where([&](int c) { return registering_.count(c) == 0; })}};
  }
  std::vector<AwaitedCall> calls = check_ins_->awaited(id);
  if (leaving_.count(id) > 0) {
    calls.push_back({.kind = AwaitedCall::kLeave,
                     .num_clients = options_.num_clients,
                     .missing = missing_where([&](int c) { return !heartbeats_->is_gone(c); })});
  }
  for (AwaitedCall& get : key_values_->awaited(id)) calls.push_back(std::move(get));
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
    std::vector<int> missing;
    for (int i = 0; i < options_.num_clients; ++i) {
      if (!heartbeats_->is_gone(i)) missing.push_back(i);
    }
    still_here_ = name_clients(IdRanges::of(missing), options_.num_clients,
                               [this](int client) { return describe(client); });
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
  next_tick_ = now + interval_;
  heartbeats_->tick(
      interval_, [this](const IdRanges& clients, const Status& reason) { lose(clients, reason); });
}

absl::Time CoordinatorState::next_event() const { return std::min(next_tick_, deadlines_.next()); }

void CoordinatorState::stop() {
  if (!stopped_.ok()) return;
  stopped_ = absl::CancelledError(
      absl::StrCat("the coordinator at ", options_.address, " has shut down in order"));
  fail_registration(stopped_);
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
