// SPDX-License-Identifier: Apache-2.0
//
// Registrations: the clients of a job from the first one that connects to the members of a complete
// job.
//
//   unknown --> registering --> member    all together, when the last one has registered
//                    \--> refused          with the error of the start; late clients too
//
// A second registration of one id waits as the twin of the first. If the first one disconnects, the
// second was a restart and takes its place. If the first one sends a heartbeat, two clients have
// the id, and registration fails for all. In a complete job such a twin is a claim: see
// register_client().
//
// Invariants:
//   1. each registration is answered once;
//   2. a start has one error: all clients that registered, and late clients, get it. A client that
//      has received it and registers again, or a client of another job, begins a new start;
//   3. members() is empty until the job is complete, and then constant until forget_job();
//   4. a call takes O(log n), and a call that answers all clients O(n log n).
//
// Not thread-safe.
#ifndef TESSERA_JOB_COORDINATOR_REGISTRATIONS_H_
#define TESSERA_JOB_COORDINATOR_REGISTRATIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "job/coordinator/coordinator.h"
#include "job/coordinator/deadline_queue.h"

namespace tessera {

class Registrations {
 public:
  using Connection = uint64_t;
  using Done = std::function<void(const Status&)>;

  struct Options {
    int num_clients = 1;
    std::string address = {};  // for messages
    std::string job = {};      // identity; empty: the job of the first client that has one
    absl::Duration heartbeat_interval = absl::Seconds(1);  // the longest; clients may ask for less
    // MemberInfo::host_id and build of the service. Clients on this host can always be reached.
    std::string host_id = {};
    std::string build = {};
  };
  struct Registration {
    MemberInfo member = {};
    int num_clients = 1;
    std::string job = {};
    absl::Duration heartbeat_interval = absl::InfiniteDuration();
    absl::Duration connect_timeout = absl::Seconds(60);  // for messages
  };

  // `complete` is called when the last client has registered. Answers are appended to `callbacks`.
  Registrations(const Options& options, DeadlineQueue& deadlines,
                std::vector<std::function<void()>>& callbacks, std::function<void()> complete);
  Registrations(const Registrations&) = delete;
  Registrations& operator=(const Registrations&) = delete;

  // Answered when all clients have registered. Different num_clients, and two clients of one id
  // that both live, fail the start of the job.
  //
  // When the job is complete, a second client of an id is refused. If both live, and the job has
  // not been complete for longer than its clients' connect_timeout, the member should be lost too
  // (check_claim): clients of two jobs may have been mixed. A client of another job is refused
  // without effect on the member.
  void register_client(Connection connection, const Registration& registration, absl::Time now,
                       absl::Time deadline, Done done);
  // Removes a registration that is not complete. Returns the member whose connection this was, if
  // it belonged to a member.
  std::optional<int> disconnected(Connection connection, absl::Time now);
  // Notes that the client of this connection lives. Returns the member that it is, if any.
  std::optional<int> heartbeat(Connection connection);
  // Unavailable where another client claims the id of this member, which lives.
  Status check_claim(int member) const;
  // Notes that the member is lost or has left: claims of its id are refused.
  void client_gone(int member);
  // Begins the next job. Requires that no registration waits.
  void forget_job();
  // Answers all that wait, and all later ones, with the reason.
  void stop(const Status& reason);

  const std::vector<MemberInfo>& members() const { return members_; }
  // The member of this connection, once the job is complete.
  std::optional<int> member_of(Connection connection) const;
  std::string describe(int client) const;
  // The number of jobs that have been complete so far.
  int num_jobs() const { return num_jobs_; }
  // The shortest interval that a client asked for.
  absl::Duration heartbeat_interval() const { return interval_; }
  // The wait of the client of this connection, if it waits for others to register.
  std::vector<AwaitedCall> awaited(Connection connection) const;

 private:
  // A client that waits for the others to register, or a twin.
  struct Registering {
    Connection connection = 0;
    MemberInfo member;
    Done done;
    DeadlineQueue::Handle expiry;
  };

  void answer(const Done& done, const Status& status);
  bool begins_new_start(const Registration& registration) const;
  void forget_failed_start();
  void note_told(Connection connection, int client);
  void add_registration(Connection connection, const Registration& registration, absl::Time now,
                        absl::Time deadline, Done done);
  void add_claim(Connection connection, const Registration& registration, absl::Time now,
                 absl::Time deadline, Done done);
  void add_twin(Registering twin);
  Registering take_twin(int client);
  void refuse_claim(int member);
  void fail(const Status& error);
  std::vector<int> missing() const;
  void expire(absl::Duration timeout);
  void complete_if_all_came(absl::Time now);

  const Options options_;
  DeadlineQueue& deadlines_;
  std::vector<std::function<void()>>& callbacks_;
  const std::function<void()> complete_;

  std::string job_;
  absl::Duration interval_;
  absl::Duration longest_connect_;          // of the clients
  std::map<int, Registering> registering_;  // by client
  std::map<int, Registering> twins_;   // wait until it is known whether the first of their id lives
  std::map<Connection, int> twin_of_;  // the ids of those
  std::unordered_map<Connection, int> client_of_;  // the other clients, and the members
  Status error_;                                   // of a failed start
  bool is_stopped_ = false;
  std::map<Connection, int> told_;  // the clients that got the error and are still connected
  std::map<int, int> told_ids_;     // ids that got it; the number of each id in told_
  std::vector<MemberInfo> members_;
  std::set<int> gone_;  // members
  absl::Time start_ends_ = absl::InfinitePast();
  int num_jobs_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_REGISTRATIONS_H_
