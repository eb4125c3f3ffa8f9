// SPDX-License-Identifier: Apache-2.0
//
// CoordinatorState: what the coordinator knows, without transport, threads or a clock of its own.
//
// A call that may have to wait takes a callback, which gets the answer exactly once: now, when an
// event settles it, when advance() passes its deadline, or at stop(). Callbacks are collected and
// run by whoever called in, after the state is consistent again (take_callbacks).
//
// Invariants: those of Coordinator (coordinator.h), and:
//   1. every callback runs exactly once;
//   2. time goes forward only: advance(now) with now ascending.
//
// Not thread-safe: the service guards it.
#ifndef TESSERA_JOB_COORDINATOR_STATE_H_
#define TESSERA_JOB_COORDINATOR_STATE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "job/coordinator.h"

namespace tessera {

class CoordinatorState {
 public:
  using Done = std::function<void(const Status&)>;
  using Found = std::function<void(const StatusOr<std::string>&)>;
  using LossListener = std::function<void(int client_id, const Status& reason)>;

  // A client is lost after three heartbeats that did not come.
  CoordinatorState(int num_clients, std::string address, absl::Duration heartbeat_interval);

  // Called for every loss, among the callbacks.
  void set_loss_listener(LossListener listener) { loss_listener_ = std::move(listener); }

  // Answered when all clients have registered. Two clients of one id, or of different
  // num_clients, fail the whole job unless it is complete.
  void register_client(const MemberInfo& member, int num_clients, absl::Time now,
                       absl::Time deadline, Done done);
  const std::vector<MemberInfo>& members() const { return members_; }

  // The client's session is open; its heartbeats are expected as soon as the job is complete.
  void session_started(int client_id, absl::Time now);
  void heartbeat(int client_id, absl::Time now);
  // The client's connection is gone: a loss, unless it has left.
  void session_ended(int client_id);

  // Why, by client.
  const std::map<int, Status>& lost() const { return lost_; }

  Status put(absl::string_view key, absl::string_view value);
  void get(absl::string_view key, absl::Time deadline, Found found);
  // InvalidArgument unless the participants are different clients of the job, the caller among
  // them.
  void check_in(int client_id, absl::string_view name, absl::string_view value,
                absl::Span<const int> participants, absl::Time now, absl::Time deadline, Done done);
  void leave(int client_id, absl::Time now, absl::Time deadline, Done done);

  // FailedPrecondition for a client that was declared lost.
  Status check_alive(int client_id) const;

  // Settles what is due. next_event() is when the next thing will be.
  void advance(absl::Time now);
  absl::Time next_event() const;
  // Cancels everything that waits, and whatever comes after.
  void stop();

  // The callbacks to run now, outside of any lock.
  std::vector<std::function<void()>> take_callbacks() { return std::exchange(callbacks_, {}); }

 private:
  // One agreement: who has come, and what they were told or wait for.
  struct CheckIn {
    std::vector<int> participants;
    std::map<int, std::string> values;  // by client, of those that have come
    int first_client = -1;
    absl::Time start;
    absl::Time deadline = absl::InfiniteFuture();
    std::vector<Done> waiting;
    bool settled = false;
    Status verdict;
    std::set<int> told;  // forgotten when all participants that live have been
  };
  struct Waiter {
    std::string key;
    absl::Time deadline;
    Found found;
  };
  using CheckInKey = std::pair<std::string, int64_t>;

  void answer(const Done& done, const Status& status);
  void settle(CheckIn& check_in, const Status& verdict);
  void fail_registration(const Status& error);
  Status check_participants(int client_id, absl::string_view name,
                            absl::Span<const int> participants) const;
  Status disagreement(absl::string_view name, int first, absl::string_view its, int second,
                      absl::string_view other) const;
  Status missing_at(const std::string& subject, const CheckIn& check_in, absl::Time now) const;
  void lose(int client_id, const std::string& how);
  std::string describe(int client_id) const;

  const int num_clients_;
  const std::string address_;
  const absl::Duration heartbeat_interval_;
  LossListener loss_listener_;
  std::vector<std::function<void()>> callbacks_;

  std::map<int, MemberInfo> registered_;
  std::vector<Done> registering_;
  absl::Time registration_start_ = absl::InfiniteFuture();
  absl::Time registration_deadline_ = absl::InfiniteFuture();
  Status registration_error_;
  std::vector<MemberInfo> members_;  // all, once complete
  Status stopped_;                   // what calls after stop() are told

  std::map<int, absl::Time> last_heartbeat_;
  std::map<int, Status> lost_;
  std::set<int> left_;

  std::map<std::string, std::string> values_;
  std::vector<Waiter> waiters_;
  std::map<CheckInKey, CheckIn> check_ins_;
  std::map<std::pair<std::string, int>, int64_t> instances_;  // calls by (name, client)
  CheckIn leaving_;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_STATE_H_
