// SPDX-License-Identifier: Apache-2.0
//
// ClosureScheduler: the decisions of the chief: which worker runs which closure, which attempt at
// it counts, and which errors the program is told. It is the chief's half of this protocol:
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
// Why pushes of a closure count exactly once, whatever is killed, stopped or lost (a parameter
// server and the chief cannot be replaced: with one of them the variables are gone):
//
//   1. The chief alone decides. A run counts from the moment that its answer OK reaches the chief
//      while it is the current run of its closure. All its pushes are staged then, on all parameter
//      servers, and no other run of this closure can become current afterwards.
//   2. A run that was given up, because its worker is lost, is never current again. Its pushes,
//      staged before, between or after, are never committed, so that none of them counts. All
//      pushes that count for one closure are of one run: the variables of all parameter servers
//      agree.
//   3. The updates of one parameter server are numbered; one is under way at a time, and is sent
//      until it is answered. The server applies a number once (push_ledger.h).
//   4. A worker has one closure at a time, and gets the next one when all updates of the one before
//      are applied: its functions read the pushes of its earlier functions. So does a worker that
//      is back: it waits until all servers know that its session before is closed. Otherwise its
//      first pushes would replace pushes of a run that counts and is not applied yet.
//   5. Nothing is remembered of a closure that is over: a run is recognized by its worker's
//      session, of which only the newest counts, and by its number in it.
//   6. Each worker has one position in a per-worker data set. A run begins at its worker's
//      position, and its answer carries the position that it has reached. The position moves to it
//      in the moment in which the run begins to count, and never otherwise: a run that was given
//      up, or that has failed, moves nothing. So the runs of a worker that count have read its data
//      set from the start, each batch once, whatever was lost between them; a worker that is back
//      goes on there, and a closure that runs again on another worker reads from that one's
//      position.
//
// `tests/facts/parameter_servers.md` has the rules of errors: the first error cancels all waiting
// closures, running ones go on, and nothing starts until take_error() has told the error.
//
// A value without I/O, locks or clocks: each event is a call, and the actions that follow are taken
// from it afterwards. Not thread-safe. protocol_model_test runs it in every order of events.
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

// Where a worker is in a data set, as text that the chief does not read; empty: at the start.
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
  // A closure that a worker is to run.
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

  // Events. The ids of closures count from 0. A closure that is added while has_room() is false is
  // queued nevertheless.
  ClosureId add(std::string function, absl::Time now);
  // Adds a closure that fails before it can run.
  ClosureId add_failed(const Status& status);
  // The number that a connection to this worker gets: a new one each time.
  uint64_t new_session(int worker) { return ++workers_[worker].last_session; }
  void worker_up(int worker, uint64_t session);
  void worker_lost(int worker, const Status& why, absl::Time now);
  // The worker has answered: its status, and to OK the number of pushes that it has staged on each
  // parameter server, and where it is in the data sets that it has read. The answer of a run that
  // is not current is ignored. A run whose numbers are of no server or no data set fails as
  // Internal.
  void run_finished(const RunKey& run, const Status& status, absl::Span<const int> num_pushes,
                    std::vector<DatasetPosition> positions = {});
  void update_applied(int ps, uint64_t number);
  // The variables are gone: all closures fail with `why`, now and later.
  void ps_lost(const Status& why);
  void advance(absl::Time now);
  // The end of the program: every closure is Cancelled.
  void stop();
  // A data set that each worker reads from its start. Their numbers count from 0.
  int add_dataset();

  // The actions to take. Each Dispatch and Settled is returned once.
  std::vector<Dispatch> take_dispatches();
  std::vector<Settled> take_settled() { return std::exchange(settled_, {}); }
  // The update to send to a parameter server until update_applied(); null: none.
  const ServerUpdate* update(int ps);

  // The queue takes one more closure, or add() does not queue it.
  bool has_room() const;
  // Every closure is over.
  bool is_idle() const { return closures_.empty(); }
  bool has_error() const { return !error_.ok(); }
  // The first error since the last call, with the number of other closures that failed; OK: none.
  Status take_error();
  // Whether a run still occupies the worker, which is up.
  bool is_current(const RunKey& run) const;
  // Where the next run of this worker begins to read.
  const std::string& position(int dataset, int worker) const { return positions_[dataset][worker]; }
  // The session of a worker that is up; else nothing.
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
    int num_updates_left = 0;  // kCommitting: until they are applied
  };
  struct Worker {
    bool is_up = false;
    uint64_t last_session = 0;
    RunKey run;             // the last one
    bool is_busy = false;   // with `run`
    ClosureId closure = 0;  // of `run`
    int num_closing = 0;    // servers that do not know yet that an earlier session is closed
  };
  struct ParameterServer {
    std::optional<ServerUpdate> under_way;
    std::vector<ClosureId> under_way_closures;
    ServerUpdate next;
    std::vector<ClosureId> next_closures;
    uint64_t last_number = 0;
  };

  // Whether an answer OK of this worker can be true.
  Status check_answer(int worker, absl::Span<const int> num_pushes,
                      absl::Span<const DatasetPosition> positions) const;
  void settle(ClosureId closure, Status status);
  // Settles with an error that the program is told, and cancels the waiting closures.
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
  std::optional<absl::Time> no_worker_since_ = absl::InfinitePast();  // unset: there is one
  std::string why_no_worker_;                                         // the last loss
  Status error_;                                                      // the first that was not told
  int num_others_ = 0;
  Status ps_lost_;
};

}  // namespace tessera::distribute

#endif  // TESSERA_SERVERS_CLOSURE_SCHEDULER_H_
