// SPDX-License-Identifier: Apache-2.0
//
// CheckIns: the named agreements of a job that have not been reached yet, and the verdicts that
// some participant has not received yet.
//
//   client 0   check_in("create_mesh", "{x=3}", [0-2])  waits  --+
//   client 2   check_in("create_mesh", "{x=3}", [0-2])  waits  --+--> all OK
//   client 1   check_in("create_mesh", "{x=3}", [0-2])  ---------+
//
// A check-in is one name with one set of participants. Invariants:
//   1. All participants that wait in one check-in get the same Status, exactly once.
//   2. A call joins the oldest open check-in of its name and participants in which its client does
//      not wait yet. So a client that left out a call does not lag behind: it joins the check-in in
//      which the others wait now.
//   3. A participant that is late for failed check-ins gets their verdicts, each once and in their
//      order, unless the others have begun the next check-in and its value equals the value of the
//      call. A call with another value than a failed check-in skips that failure and the earlier
//      ones.
//   4. Clients that wait for each other under one name with different participants (in a circle of
//      any length) fail immediately: no further call could end their wait.
//   5. Memory is bounded: a check-in is forgotten when all participants have its verdict. Of the
//      check-ins whose verdict some participants never fetch, the last kMostStored are kept.
//
// A check-in of n clients takes O(n log n) in all, and the end of a client O(log n) for each
// participant of its check-ins. Not thread-safe.
#ifndef TESSERA_JOB_COORDINATOR_CHECK_INS_H_
#define TESSERA_JOB_COORDINATOR_CHECK_INS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "job/coordinator/coordinator.h"
#include "job/coordinator/deadline_queue.h"
#include "job/coordinator/id_ranges.h"

namespace tessera {

// How many clients one message describes: its text is sent to every client.
inline constexpr int kMostNamed = 16;

// "client 1 (host-b, pid 4711), client 3 (host-c, pid 4712)", as `describe` names them. Where there
// are more than kMostNamed, their ranges and the first ones: "clients 8-15, 24-9999 of 10000, the
// first are client 8 (host-b, pid 4711), ...".
std::string name_clients(const IdRanges& clients, int num_clients,
                         const std::function<std::string(int)>& describe);

class CheckIns {
 public:
  using Done = std::function<void(const Status&)>;
  static constexpr size_t kMostStored = 256;
  static constexpr size_t kMostNameBytes = 64 << 10;  // of name and value
  static constexpr int kMostWaitingCalls = 1024;      // per client

  struct Call {
    int client = 0;
    std::string name;
    std::string value;
    IdRanges participants;
    absl::Time deadline = absl::InfiniteFuture();
  };

  // `describe` names a client in messages. Answers are appended to `callbacks`.
  CheckIns(int num_clients, std::function<std::string(int)> describe, DeadlineQueue& deadlines,
           std::vector<std::function<void()>>& callbacks);
  ~CheckIns();
  CheckIns(const CheckIns&) = delete;
  CheckIns& operator=(const CheckIns&) = delete;

  // InvalidArgument unless the participants are clients of the job, the caller among them.
  void check_in(Call call, absl::Time now, Done done);
  // Removes the client: check-ins with it fail with `reason`, now and later, and its own calls fail
  // with `own`. The first reason of a client stays.
  void client_gone(int client, const Status& reason, const Status& own);
  // Fails everything that waits, and all later calls.
  void stop(const Status& reason);

  // The waiting calls of this client, with the clients that they wait for.
  std::vector<AwaitedCall> awaited(int client) const;
  size_t num_open() const { return num_open_; }
  size_t num_stored() const { return stored_order_.size(); }

 private:
  using Key = std::pair<std::string, IdRanges>;
  struct Open;
  // Orders check-ins by their opening, so that changes of several are made in this order.
  struct Older {
    bool operator()(const Open* a, const Open* b) const { return a->number < b->number; }
  };
  // One agreement that is not settled.
  struct Open {
    uint64_t number = 0;
    Key key;
    std::string value;
    int first_client = 0;
    absl::Time start;
    std::vector<bool> arrived;  // by client
    int64_t num_arrived = 0;
    std::vector<std::pair<int, Done>> waiting;
    // The check-ins of this name in which a client waits that is missing here, and the number of
    // such clients.
    std::map<Open*, int, Older> waits_for;
    std::set<Open*, Older> waited_by;  // check-ins whose waits_for has this one
    absl::Time deadline = absl::InfiniteFuture();
    DeadlineQueue::Handle expiry;
  };
  // A failure whose verdict some participants have not received.
  struct Stored {
    std::string value;
    Status verdict;
    std::set<int> untold;  // clients
  };

  // Whether the call may be made.
  Status check(const Call& call) const;
  Open* find_open(const Key& key, int client);
  Open* open(Call& call, absl::Time now);
  // The participant that was the first to leave or to be lost, and the reason; null if there is
  // none.
  const std::pair<int, Status>* first_gone(const IdRanges& participants);
  void arrive(Open* check_in, int client, absl::Time now, absl::Time deadline, Done done);
  void link_arrival(Open* check_in, int client);
  // The first verdict for which this call is late, if there is one; it counts as delivered.
  bool take_stored(const Key& key, const Call& call, Status* verdict);
  // Skips the first `count` failures for the client.
  void skip_stored(const Key& key, int client, size_t count);
  void settle(Open* check_in, const Status& verdict);
  void expire(Open* check_in);
  void break_circle(Open* check_in);
  void answer(const Done& done, const Status& status);
  Status disagreement(const std::string& name, const std::pair<int, std::string>& first,
                      const std::pair<int, std::string>& second) const;
  static std::vector<int> missing_in(const Open& check_in);
  Status missing_at_deadline(const Open& check_in) const;

  const int num_clients_;
  const std::function<std::string(int)> describe_;
  DeadlineQueue& deadlines_;
  std::vector<std::function<void()>>& callbacks_;

  std::map<Key, std::list<std::unique_ptr<Open>>> open_;  // oldest first
  size_t num_open_ = 0;
  uint64_t last_number_ = 0;
  std::vector<std::set<Open*, Older>> open_of_;  // by client: check-ins with this participant
  std::vector<std::vector<Open*>> waiting_in_;   // by client: check-ins at which it has arrived
  std::map<Key, std::list<Stored>> stored_;      // oldest first; no list is empty
  std::deque<Key> stored_order_;                 // a key for each that is stored, oldest first
  std::vector<std::pair<int, Status>> gone_;     // in the order in which they went
  std::vector<bool> is_gone_;                    // by client
  Status stopped_;                               // the result of calls after stop()
  // The last answer of first_gone() that was not null: the others of a group ask the same next.
  IdRanges last_asked_;
  size_t last_first_gone_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_CHECK_INS_H_
