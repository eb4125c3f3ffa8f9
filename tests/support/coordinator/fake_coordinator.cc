// SPDX-License-Identifier: Apache-2.0
#include "tests/support/coordinator/fake_coordinator.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "job/coordinator/device_wait.h"

namespace tessera::testing {

class FakeJob::Client : public Coordinator {
 public:
  Client(FakeJob& job, int id) : job_(job), id_(id) {}

  int client_id() const override { return id_; }
  absl::Span<const MemberInfo> members() const override { return job_.members_; }

  void set_lost_callback(LostCallback callback) override {
    std::map<int, Status> lost;
    {
      std::lock_guard<std::mutex> lock(job_.mutex_);
      callback_ = callback;
      lost = job_.lost_;
    }
    if (!callback) return;
    for (const auto& [client, reason] : lost) {
      if (client != id_) callback(client, reason);
    }
  }

  Status put(absl::string_view key, absl::string_view value) override {
    ++job_.num_calls_;
    std::lock_guard<std::mutex> lock(job_.mutex_);
    const auto [it, added] = job_.values_.emplace(std::string(key), std::string(value));
    if (!added && it->second != value) {
      return absl::AlreadyExistsError(absl::StrCat("key \"", key, "\" has another value"));
    }
    job_.changed_.notify_all();
    return absl::OkStatus();
  }

  StatusOr<std::string> get(absl::string_view key, int setter, absl::Time deadline) override {
    ++job_.num_calls_;
    std::unique_lock<std::mutex> lock(job_.mutex_);
    const std::string name(key);
    const auto settled = [&] {
      return job_.values_.count(name) > 0 || job_.lost_.count(setter) > 0;
    };
    if (!job_.wait_until(lock, deadline, settled)) {
      return absl::DeadlineExceededError(absl::StrCat("no client has put key \"", key, "\""));
    }
    if (job_.values_.count(name) == 0) return job_.lost_[setter];
    return job_.values_[name];
  }

  StatusOr<std::string> propose(absl::string_view series, uint32_t number, absl::string_view value,
                                absl::Time deadline) override {
    ++job_.num_calls_;
    std::unique_lock<std::mutex> lock(job_.mutex_);
    if (!job_.wait_until(lock, deadline, [this] { return job_.is_answering_; })) {
      return absl::DeadlineExceededError("the coordinator of the test does not answer");
    }
    const auto [it, added] = job_.values_.emplace(key_of(series, number), std::string(value));
    job_.changed_.notify_all();
    return it->second;
  }

  StatusOr<std::string> get_proposal(absl::string_view series, uint32_t number, int setter,
                                     absl::Time deadline) override {
    return get(key_of(series, number), setter, deadline);
  }

  Status check_in(absl::string_view name, absl::string_view value,
                  absl::Span<const int> participants, absl::Time deadline) override;

  StatusOr<CircleStep> report_waits(const WaitsReport&, absl::Time) override {
    return CircleStep();
  }
  Status leave(absl::Time deadline) override {
    std::unique_lock<std::mutex> lock(job_.mutex_);
    job_.left_[id_] = true;
    job_.changed_.notify_all();
    const auto all_left = [this] {
      for (size_t i = 0; i < job_.left_.size(); ++i) {
        if (!job_.left_[i] && job_.lost_.count(static_cast<int>(i)) == 0) return false;
      }
      return true;
    };
    if (job_.wait_until(lock, deadline, all_left)) return absl::OkStatus();
    return absl::DeadlineExceededError("some clients have not left the job");
  }

 private:
  friend class FakeJob;

  static std::string key_of(absl::string_view series, uint32_t number) {
    return absl::StrCat(series, " ", number);
  }

  FakeJob& job_;
  const int id_;
  // Guarded by the job's mutex.
  LostCallback callback_;
  std::map<std::string, int> num_check_ins_;
};

FakeJob::FakeJob(absl::Span<const int> devices_by_client) {
  for (size_t i = 0; i < devices_by_client.size(); ++i) {
    const int id = static_cast<int>(i);
    MemberInfo member;
    member.client_id = id;
    member.host = "host-a";
    member.host_id = "boot-a";
    member.pid = getpid();
    member.incarnation = i + 1;
    member.num_local_devices = devices_by_client[i];
    member.device_type = "cpu";
    members_.push_back(member);
    clients_.push_back(std::make_unique<Client>(*this, id));
  }
  left_.resize(members_.size());
}

FakeJob::~FakeJob() = default;

Coordinator& FakeJob::coordinator(int client) { return *clients_[client]; }

void FakeJob::set_host_id(int client, std::string host_id) {
  members_[client].host_id = std::move(host_id);
}

void FakeJob::set_answering(bool is_answering) {
  std::lock_guard<std::mutex> lock(mutex_);
  is_answering_ = is_answering;
  changed_.notify_all();
}

void FakeJob::declare_lost(int client, const Status& reason) {
  std::vector<Coordinator::LostCallback> callbacks;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!lost_.emplace(client, reason).second) return;
    for (auto& [key, check_in] : check_ins_) {
      const auto& who = check_in.participants;
      if (std::find(who.begin(), who.end(), client) != who.end()) settle(check_in, reason);
    }
    for (const auto& other : clients_) {
      if (other->id_ != client && other->callback_) callbacks.push_back(other->callback_);
    }
    changed_.notify_all();
  }
  for (const auto& callback : callbacks) callback(client, reason);
}

template <class Ready>
bool FakeJob::wait_until(std::unique_lock<std::mutex>& lock, absl::Time deadline, Ready ready) {
  if (deadline == absl::InfiniteFuture()) {
    changed_.wait(lock, ready);
    return true;
  }
  return changed_.wait_until(lock, to_chrono_steady(deadline), ready);
}

void FakeJob::settle(CheckIn& check_in, const Status& verdict) {
  if (check_in.settled) return;
  check_in.settled = true;
  check_in.verdict = verdict;
  changed_.notify_all();
}

Status FakeJob::Client::check_in(absl::string_view name, absl::string_view value,
                                 absl::Span<const int> participants, absl::Time deadline) {
  std::unique_lock<std::mutex> lock(job_.mutex_);
  const std::string key(name);
  CheckIn& agreement = job_.check_ins_[{key, num_check_ins_[key]++}];
  agreement.participants.assign(participants.begin(), participants.end());
  agreement.values.emplace(id_, std::string(value));
  agreement.deadline = std::min(agreement.deadline, deadline);
  const auto& [first_client, first_value] = *agreement.values.begin();
  if (first_value != value) {
    job_.settle(agreement, absl::InvalidArgumentError(absl::StrCat(
                               name, " differs: ", job_.members_[first_client].to_string(), " has ",
                               first_value, ", ", job_.members_[id_].to_string(), " has ", value)));
  }
  for (const int client : participants) {
    if (job_.lost_.count(client) > 0) job_.settle(agreement, job_.lost_[client]);
  }
  if (agreement.values.size() == participants.size()) job_.settle(agreement, absl::OkStatus());
  job_.changed_.notify_all();
  // The earliest deadline decides; a later caller may bring an earlier one.
  while (!agreement.settled) {
    const absl::Time until = agreement.deadline;
    const bool in_time = job_.wait_until(
        lock, until, [&] { return agreement.settled || agreement.deadline < until; });
    if (in_time) continue;
    std::vector<std::string> missing;
    for (const int client : participants) {
      if (agreement.values.count(client) == 0) {
        missing.push_back(job_.members_[client].to_string());
      }
    }
    job_.settle(agreement, absl::DeadlineExceededError(
                               absl::StrCat(name, ": missing ", absl::StrJoin(missing, ", "))));
  }
  return agreement.verdict;
}

}  // namespace tessera::testing
