// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/registrations.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/format.h"
#include "base/text.h"
#include "job/coordinator/id_ranges.h"

namespace tessera {
namespace {

constexpr int kMostDevices = 65'536;
// How long after the start of a job, at most, a second client of an id puts its member in doubt.
constexpr absl::Duration kLongestStart = absl::Minutes(10);

// InvalidArgument where the client is of another job than `job`.
Status check_job(const Registrations::Registration& registration, const std::string& job,
                 const std::string& address) {
  if (job.empty() || registration.job.empty() || registration.job == job) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(registration.member.to_string(), " belongs to job ", in_quotes(registration.job),
                   ", and the coordinator at ", address, " serves job ", in_quotes(job),
                   "; give each job an address of its own"));
}

Status check_registration(const Registrations::Registration& registration,
                          const Registrations::Options& options) {
  const MemberInfo& member = registration.member;
  const int num_clients = options.num_clients;
  if (member.build != options.build) {
    const auto text = [](const std::string& build) {
      return build.empty() ? std::string("a Tessera that does not say its version") : build;
    };
    return absl::InvalidArgumentError(
        absl::StrCat(member.to_string(), " has ", text(member.build), ", and the coordinator at ",
                     options.address, " has ", text(options.build),
                     "; build all programs of a job, and tessera_run, from one Tessera"));
  }
  if (registration.num_clients != num_clients) {
    return absl::InvalidArgumentError(
        absl::StrCat(member.to_string(), " was started for a job of ", registration.num_clients,
                     " clients, and the coordinator at ", options.address, " for one of ",
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

Status two_clients(const MemberInfo& first, const MemberInfo& second) {
  return absl::InvalidArgumentError(absl::StrCat("two clients have the id ", first.client_id, ": ",
                                                 first.to_string(), " and ", second.to_string(),
                                                 "; give each client an id, and each job an "
                                                 "address or a TESSERA_JOB, of its own"));
}

}  // namespace

Registrations::Registrations(const Options& options, DeadlineQueue& deadlines,
                             std::vector<std::function<void()>>& callbacks,
                             std::function<void()> complete)
    : options_(options),
      deadlines_(deadlines),
      callbacks_(callbacks),
      complete_(std::move(complete)) {
  forget_job();
}

void Registrations::answer(const Done& done, const Status& status) {
  callbacks_.push_back([done, status] { done(status); });
}

std::string Registrations::describe(int client) const {
  return members_.empty() ? absl::StrCat("client ", client) : members_[client].to_string();
}

std::optional<int> Registrations::member_of(Connection connection) const {
  const auto known = client_of_.find(connection);
  if (known == client_of_.end() || members_.empty()) return std::nullopt;
  return known->second;
}

void Registrations::register_client(Connection connection, const Registration& registration,
                                    absl::Time now, absl::Time deadline, Done done) {
  const MemberInfo& member = registration.member;
  if (begins_new_start(registration)) forget_failed_start();
  const Status other_job = check_job(registration, job_, options_.address);
  if (!other_job.ok()) return answer(done, other_job);
  if (job_.empty() && members_.empty()) job_ = registration.job;
  const Status valid = error_.ok() ? check_registration(registration, options_) : error_;
  if (!valid.ok()) {
    if (members_.empty()) fail(valid);
    note_told(connection, member.client_id);
    return answer(done, valid);
  }
  if (!members_.empty()) return add_claim(connection, registration, now, deadline, std::move(done));
  interval_ = std::min(interval_, registration.heartbeat_interval);
  longest_connect_ = std::max(longest_connect_, registration.connect_timeout);
  const auto same_id = registering_.find(member.client_id);
  if (same_id == registering_.end()) {
    add_registration(connection, registration, now, deadline, std::move(done));
  } else if (twins_.count(member.client_id) > 0) {
    const Status error = two_clients(same_id->second.member, member);
    fail(error);
    note_told(connection, member.client_id);
    answer(done, error);
  } else {
    // The restart of a client whose end is not known yet, or a mistake: a heartbeat of the first
    // one will say which.
    const absl::Duration timeout = registration.connect_timeout;
    Registering twin = {connection, member, std::move(done), {}};
    twin.expiry = deadlines_.add(deadline, [this, timeout] { expire(timeout); });
    add_twin(std::move(twin));
  }
}

// After a start that failed: whether this registration is of another one. Clients of the failed
// start that come late get its verdict.
bool Registrations::begins_new_start(const Registration& registration) const {
  if (error_.ok() || is_stopped_) return false;
  const auto told = told_ids_.find(registration.member.client_id);
  const bool is_again = told != told_ids_.end() && told->second == 0;
  const bool is_renamed =
      options_.job.empty() && !registration.job.empty() && registration.job != job_;
  const bool is_after_all = absl::IsDeadlineExceeded(error_) && told_.empty();
  return is_again || is_renamed || is_after_all;
}

void Registrations::forget_failed_start() {
  error_ = absl::OkStatus();
  told_.clear();
  told_ids_.clear();
  job_ = options_.job;
  interval_ = options_.heartbeat_interval;
  longest_connect_ = absl::ZeroDuration();
}

void Registrations::note_told(Connection connection, int client) {
  if (told_.emplace(connection, client).second) ++told_ids_[client];
}

// A client of an id that a member has. Two jobs with one address and one token, and no name, look
// like one job: each id of it has two clients, and the first of them became the member. That is
// known only when the other one comes; soon after the start neither can be told from the right one.
void Registrations::add_claim(Connection connection, const Registration& registration,
                              absl::Time now, absl::Time deadline, Done done) {
  const int id = registration.member.client_id;
  const Status error = two_clients(members_[id], registration.member);
  const bool is_late = now > start_ends_;
  if (is_late || gone_.count(id) > 0 || twins_.count(id) > 0) return answer(done, error);
  // The restart of a member whose end is not known yet, or a second client: as above.
  Registering claim = {connection, registration.member, std::move(done), {}};
  claim.expiry = deadlines_.add(deadline, [this, id] { refuse_claim(id); });
  add_twin(std::move(claim));
}

void Registrations::add_twin(Registering twin) {
  const int id = twin.member.client_id;
  twin_of_[twin.connection] = id;
  twins_.emplace(id, std::move(twin));
}

Registrations::Registering Registrations::take_twin(int client) {
  Registering twin = std::move(twins_.extract(client).mapped());
  twin_of_.erase(twin.connection);
  return twin;
}

void Registrations::refuse_claim(int member) {
  if (twins_.count(member) == 0) return;
  const Registering claim = take_twin(member);
  deadlines_.remove(claim.expiry);
  answer(claim.done, two_clients(members_[member], claim.member));
}

void Registrations::add_registration(Connection connection, const Registration& registration,
                                     absl::Time now, absl::Time deadline, Done done) {
  const absl::Duration timeout = registration.connect_timeout;
  Registering registering = {connection, registration.member, std::move(done), {}};
  registering.expiry = deadlines_.add(deadline, [this, timeout] { expire(timeout); });
  registering_.emplace(registration.member.client_id, std::move(registering));
  client_of_[connection] = registration.member.client_id;
  complete_if_all_came(now);
}

void Registrations::complete_if_all_came(absl::Time now) {
  if (static_cast<int>(registering_.size()) < options_.num_clients || !twins_.empty()) return;
  for (const auto& [id, registering] : registering_) {
    members_.push_back(registering.member);
    deadlines_.remove(registering.expiry);
    answer(registering.done, absl::OkStatus());
  }
  registering_.clear();
  ++num_jobs_;
  start_ends_ = now + std::min(longest_connect_, kLongestStart);
  complete_();
}

// Answers all that registered so far with the error.
void Registrations::fail(const Status& error) {
  error_ = error;
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

std::vector<int> Registrations::missing() const {
  std::vector<int> missing;
  for (int i = 0; i < options_.num_clients; ++i) {
    if (registering_.count(i) == 0) missing.push_back(i);
  }
  return missing;
}

void Registrations::expire(absl::Duration timeout) {
  const std::vector<int> missing = this->missing();
  if (missing.empty()) {
    const auto& [id, twin] = *twins_.begin();
    return fail(two_clients(registering_.at(id).member, twin.member));
  }
  fail(absl::DeadlineExceededError(
      absl::StrCat("job of ", options_.num_clients, " clients at ", options_.address, ": ",
                   not_in_time(absl::StrCat(missing.size() == 1 ? "client " : "clients ",
                                            IdRanges::of(missing).to_list(), " did not connect"),
                               timeout, "within"),
                   "; see whether they were started, and with this address")));
}

std::optional<int> Registrations::disconnected(Connection connection, absl::Time now) {
  const auto told = told_.find(connection);
  if (told != told_.end()) {
    --told_ids_[told->second];
    told_.erase(told);
  }
  const Status gone = absl::CancelledError("the client is gone");
  const auto twin_id = twin_of_.find(connection);
  const auto known = client_of_.find(connection);
  if (twin_id != twin_of_.end()) {
    const Registering twin = take_twin(twin_id->second);
    deadlines_.remove(twin.expiry);
    answer(twin.done, gone);
  } else if (known == client_of_.end()) {
    return std::nullopt;
  } else if (!members_.empty()) {
    return known->second;
  } else {
    const int id = known->second;
    const Registering first = std::move(registering_.extract(id).mapped());
    client_of_.erase(known);
    deadlines_.remove(first.expiry);
    answer(first.done, gone);
    if (twins_.count(id) > 0) {
      // The restart takes the place of the client that is gone.
      Registering restarted = take_twin(id);
      client_of_[restarted.connection] = id;
      registering_.emplace(id, std::move(restarted));
    }
  }
  complete_if_all_came(now);
  return std::nullopt;
}

std::optional<int> Registrations::heartbeat(Connection connection) {
  const auto known = client_of_.find(connection);
  if (known == client_of_.end()) return std::nullopt;
  if (!members_.empty()) return known->second;
  const auto twin = twins_.find(known->second);
  if (twin != twins_.end()) {
    fail(two_clients(registering_.at(known->second).member, twin->second.member));
  }
  return std::nullopt;
}

Status Registrations::check_claim(int member) const {
  const auto claim = twins_.find(member);
  if (claim == twins_.end()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      describe(member), " is lost: ", claim->second.member.to_string(),
      " came with the same id and token, and nothing tells which of them belongs to this job; "
      "give each job an address or a TESSERA_JOB of its own"));
}

void Registrations::client_gone(int member) {
  gone_.insert(member);
  refuse_claim(member);
}

void Registrations::forget_job() {
  forget_failed_start();
  members_.clear();
  client_of_.clear();
  gone_.clear();
  start_ends_ = absl::InfinitePast();
}

void Registrations::stop(const Status& reason) {
  is_stopped_ = true;
  fail(reason);
}

std::vector<AwaitedCall> Registrations::awaited(Connection connection) const {
  if (client_of_.count(connection) == 0 || !members_.empty()) return {};
  return {
      {.kind = AwaitedCall::kRegister, .num_clients = options_.num_clients, .missing = missing()}};
}

}  // namespace tessera
