// SPDX-License-Identifier: Apache-2.0
//
// CoordinatorState: the state of the coordinator, without transport, threads or a clock of its own.
//
// A call that may have to wait takes a callback, which gets the answer exactly once: now, when an
// event settles it, when advance() passes its deadline, or at stop(). Callbacks are collected and
// run by the caller after the state is consistent again (take_callbacks).
//
// A client is identified by its connection, a random number that only the service and this client
// know. A call with that number is a call of the client that registered with it. When the
// connection ends, the client is lost.
//
// Invariants: the invariants of Coordinator (coordinator.h), and:
//   1. every callback runs exactly once;
//   2. time goes forward only: advance(now) with now ascending;
//   3. heartbeats are counted (heartbeats.h). A coordinator that was stopped, or that wakes late,
//      counts all the time that it missed as one tick, so that each client has another interval to
//      send a heartbeat;
//   4. a heartbeat costs O(1), a call O(log n), and the stored state is bounded by the constants
//      below.
//
// Not thread-safe: the service guards it.
#ifndef TESSERA_JOB_COORDINATOR_COORDINATOR_STATE_H_
#define TESSERA_JOB_COORDINATOR_COORDINATOR_STATE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "job/coordinator/check_ins.h"
#include "job/coordinator/circles.h"
#include "job/coordinator/coordinator.h"
#include "job/coordinator/deadline_queue.h"
#include "job/coordinator/heartbeats.h"
#include "job/coordinator/id_ranges.h"
#include "job/coordinator/key_values.h"
#include "job/coordinator/registrations.h"

namespace tessera {

class CoordinatorState {
 public:
  using Connection = Registrations::Connection;
  using Done = Registrations::Done;
  using Options = Registrations::Options;
  using Registration = Registrations::Registration;
  // Clients that were lost by one event, and how.
  struct Loss {
    IdRanges clients;
    Status reason;
  };
  using LossListener = std::function<void(const std::vector<Loss>& losses)>;

  explicit CoordinatorState(Options options);

  // Called once for all losses since the last take_callbacks(), as the first of the callbacks:
  // before the calls that the losses end are answered.
  void set_loss_listener(LossListener listener) { loss_listener_ = std::move(listener); }

  // See Registrations. When every client has left the job is over, and a registration begins the
  // next one.
  void register_client(Connection connection, const Registration& registration, absl::Time now,
                       absl::Time deadline, Done done);
  const Registrations& registrations() const { return registrations_; }

  void heartbeat(Connection connection);
  // The connection has ended. While clients register, this removes its registration; later the
  // client is lost, unless it has left.
  void disconnected(Connection connection);
  // The client of this connection. FailedPrecondition if it was declared lost or has not
  // registered.
  StatusOr<int> client_of(Connection connection) const;

  // The values and check-ins of this job.
  KeyValues& key_values() { return *key_values_; }
  CheckIns& check_ins() { return *check_ins_; }
  // Each caller gets the answer that holds at its own deadline. Until then it serves the others;
  // the remaining clients then learn of it as of a loss, with "... has left the job".
  void leave(int client_id, absl::Time now, absl::Time deadline, Done done);

  // Takes a report of the waits of the client's devices and of its last step: see circles.h.
  void report_waits(int client_id, WaitsReport report, absl::Time now, absl::Time deadline,
                    Circles::Done done);

  // The waiting calls of the client of this connection, its registration included.
  std::vector<AwaitedCall> awaited(Connection connection) const;

  // Settles everything that is due at `now`; a client that has missed its heartbeats is lost.
  // next_event() is the time at which something is due next.
  void advance(absl::Time now);
  absl::Time next_event() const;
  // Cancels all waiting calls and all later ones. Clients that wait in leave() have left.
  void stop();

  // The callbacks to run now, outside of any lock.
  std::vector<std::function<void()>> take_callbacks();

 private:
  struct Leaver {
    Done done;
    DeadlineQueue::Handle expiry;
  };

  void answer(const Done& done, const Status& status);
  void forget_job();
  void lose(const IdRanges& clients, const Status& reason);
  void gone(int client_id, const Status& reason, const Status& own);
  void finish_leaving();
  Status still_here(absl::Duration timeout);
  Status has_left(int client_id) const;

  const Options options_;
  LossListener loss_listener_;
  std::vector<Loss> new_losses_;  // which the listener does not know yet
  std::vector<std::function<void()>> callbacks_;
  DeadlineQueue deadlines_;

  Registrations registrations_;
  Status stopped_;  // the result of calls after stop()

  absl::Time now_ = absl::InfinitePast();  // the latest `now` of a call
  absl::Time next_tick_ = absl::InfiniteFuture();
  std::optional<Heartbeats> heartbeats_;  // once complete
  std::map<int, Status> lost_;
  std::set<int> left_;
  std::string still_here_;     // names the clients that are not gone
  int still_here_as_of_ = -1;  // the number of gone clients at that time; -1: not known

  std::optional<KeyValues> key_values_;  // of this job
  std::optional<CheckIns> check_ins_;    // of this job
  std::optional<Circles> circles_;       // of this job
  std::map<int, Leaver> leaving_;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_COORDINATOR_STATE_H_
