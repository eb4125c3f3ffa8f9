// SPDX-License-Identifier: Apache-2.0
//
// ClosureScheduler: makes the decisions of the chief: which worker runs which closure, which
// attempt at a closure counts, and which errors the program gets. It is the chief's half of this
// protocol:
//
//   chief                worker 1                       ps 0        ps 1
//     |-- run 3: add ------>|  runs the function          |           |
//     |                     |-- stage push 0 of run 3 --->|           |   kept aside
//     |                     |-- stage push 0 of run 3 --------------->|
//     |<- OK, pushes {1, 1}-|                             |           |
//     |   run 3 counts      |                             |           |   the decision
//     |-- update 9: commit run 3 ------------------------>|           |   applied, once
//     |-- update 4: commit run 3 ------------------------------------>|
//     |<- applied ----------------------------------------|-----------|
//     |   the closure is done; worker 1 gets the next one
//
// Why the pushes of a closure count exactly once, whichever tasks are killed, stopped or lost. The
// chief and a parameter server cannot be replaced: the loss of either loses variables.
//
//   1. Only the chief decides. A run counts from the moment when its answer OK reaches the chief
//      while it is the current run of its closure. By then all its pushes are staged on all
//      parameter servers, and no other run of this closure can become current afterwards.
//   2. A run whose worker is lost is given up, and is never current again. Its pushes are never
//      committed, whenever they are staged. So all counted pushes of a closure are from one run,
//      and the variables of all parameter servers agree.
//   3. The updates of a parameter server are numbered. One is under way at a time, and is sent
//      until it is answered. The server applies each number once (push_ledger.h).
//   4. A worker has one closure at a time. It gets the next one when all updates of the previous
//      one are applied, so its functions read the pushes of its earlier functions. A worker that
//      returns waits until all servers know that its earlier session is closed. Otherwise its first
//      pushes would replace pushes of a run that counts and is not yet applied.
//   5. The scheduler keeps nothing about a closure that is over. It recognizes a run by its
//      worker's session, of which only the newest counts, and by its number in the session.
//   6. Each worker has one position in a per-worker data set. A run begins at its worker's
//      position, and its answer carries the position that it has reached. The worker's position
//      moves there when the run begins to count, and never otherwise: a run that was given up or
//      has failed moves nothing. So the counted runs of a worker have read its data set from the
//      start, each batch once. A worker that returns continues there. A closure that runs again on
//      another worker reads from that worker's position.
//
// `tests/facts/parameter_servers.md` has the rules of errors: the first error cancels all waiting
// closures, running ones continue, and nothing starts until take_error() has returned the error.
//
// A value without I/O, locks or clocks: each event is a call, and the caller then takes the
// resulting actions. Not thread-safe. protocol_model_test runs it in every order of events.
#ifndef TESSERA_SERVERS_CLOSURE_SCHEDULER_H_
#define TESSERA_SERVERS_CLOSURE_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "servers/push_ledger.h"

namespace tessera::distribute {

using ClosureId = int64_t;

// A worker's position in a data set, as text that the chief does not parse. Empty: the start.
struct DatasetPosition {
  int dataset = 0;
  std::string position = {};
};

class ClosureScheduler {
 public:
  struct Options {
    std::vector<std::string> workers = {};  // their names in messages: "worker 0 (host-a:4000)"
    int num_ps = 1;
    int64_t queue_limit = 256 * 1024;
    absl::Duration worker_wait = absl::Hours(1);
    int max_attempts = 10;
  };
  // Tells a worker to run a closure.
  struct Dispatch {
    ClosureId closure = 0;
    int attempt = 0;  // from 1
    RunKey run = {};
  };
  // A closure that is over.
  struct Settled {
    ClosureId closure = 0;
    Status status = {};
  };

  explicit ClosureScheduler(Options options);

  // Events. The ids of closures count from 0. add() queues a closure even if has_room() is false.
  ClosureId add(std::string function, absl::Time now);
  // Adds a closure that fails before it can run.
  ClosureId add_failed(const Status& status);
  // The session number for a connection to this worker. New at each call.
  uint64_t new_session(int worker) { return ++workers_[worker].last_session; }
  void worker_up(int worker, uint64_t session);
  void worker_lost(int worker, const Status& why, absl::Time now);
  // A worker has answered with its status and, if it is OK, with the number of pushes that it has
  // staged on each parameter server and its positions in the data sets that it has read. Ignores
  // the answer of a run that is not current. Numbers of unknown servers or data sets fail the run
  // as Internal.
  void run_finished(const RunKey& run, const Status& status, absl::Span<const int> num_pushes,
                    std::vector<DatasetPosition> positions = {});
  void update_applied(int ps, uint64_t number);
  // The variables are gone: all closures fail with `why`, now and later.
  void ps_lost(const Status& why);
  void advance(absl::Time now);
  // The program ends: every closure is Cancelled.
  void stop();
  // Adds a data set that each worker reads from its start. The numbers of data sets count from 0.
  int add_dataset();

  // The actions to take. Each Dispatch and Settled is returned once.
  std::vector<Dispatch> take_dispatches();
  std::vector<Settled> take_settled() { return std::exchange(settled_, {}); }
  // The update to send to a parameter server until update_applied(); null if there is none.
  const ServerUpdate* update(int ps);

  // Whether the queue has room for one more closure.
  bool has_room() const;
  // Every closure is over.
  bool is_idle() const { return closures_.empty(); }
  bool has_error() const { return !error_.ok(); }
  // The first error since the last call, with the number of other closures that failed; OK if none.
  Status take_error();
  // Whether the worker is up and this run still occupies it.
  bool is_current(const RunKey& run) const;
  // The position at which the next run of this worker begins to read.
  const std::string& position(int dataset, int worker) const { return positions_[dataset][worker]; }
  // The session of a worker that is up, else nothing.
  std::optional<uint64_t> session(int worker) const;

  // For messages, and to tell two schedulers apart.
  std::string to_string() const;

 private:
  enum class State { kQueued, kRunning, kCommitting };
  struct Closure {
    std::string function = {};
    State state = State::kQueued;
    int attempt = 0;
    RunKey run;                // once it runs
    int num_updates_left = 0;  // kCommitting: updates not yet applied
  };
  struct Worker {
    bool is_up = false;
    uint64_t last_session = 0;
    RunKey run;             // the latest
    bool is_busy = false;   // with `run`
    ClosureId closure = 0;  // the closure of `run`
    int num_closing = 0;    // servers that have not yet closed an earlier session
  };
  struct ParameterServer {
    std::optional<ServerUpdate> under_way;
    std::vector<ClosureId> under_way_closures;
    ServerUpdate next;
    std::vector<ClosureId> next_closures;
    uint64_t last_number = 0;
  };

  // Checks whether an answer OK of this worker is possible.
  Status check_answer(int worker, absl::Span<const int> num_pushes,
                      absl::Span<const DatasetPosition> positions) const;
  void settle(ClosureId closure, Status status);
  // Settles the closure with an error for the program, and cancels the waiting closures.
  void fail(ClosureId closure, const Status& status);
  Status cancelled() const;
  void release(const RunKey& run);
  bool has_worker() const;

  Options options_;
  std::map<ClosureId, Closure> closures_;  // closures that are not over
  std::deque<ClosureId> queue_;            // closures that are kQueued
  std::vector<Worker> workers_;
  std::vector<ParameterServer> ps_;
  std::vector<std::vector<std::string>> positions_;  // by data set and worker
  std::vector<Settled> settled_;
  ClosureId next_closure_ = 0;
  std::optional<absl::Time> no_worker_since_ = absl::InfinitePast();  // unset: a worker is up
  std::string why_no_worker_;                                         // the latest loss
  Status error_;  // the first error that take_error() has not returned
  int num_others_ = 0;
  Status ps_lost_;
};

}  // namespace tessera::distribute

#endif  // TESSERA_SERVERS_CLOSURE_SCHEDULER_H_
