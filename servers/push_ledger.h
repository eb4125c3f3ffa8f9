// SPDX-License-Identifier: Apache-2.0
//
// PushLedger: the pushes that one parameter server has received, and which of them count. It is the
// server's half of the protocol of closure_scheduler.h.
//
//   worker:  stage(run, 0, v += 1) ...        kept aside; reads do not see it
//   chief:   update({3, commits: [run]})      the pushes that count now; the caller applies them
//
// Invariants:
//   1. A push counts exactly if an update commits its run, and then once: a repeated update has the
//      number of an applied update, and commits nothing.
//   2. Only the newest run of a worker is kept, ordered by session and then by number. A push never
//      counts if it is of an older run, a committed run, or a run in a closed session. An attempt
//      that was given up may send such a push at any time.
//   3. The ledger uses the memory of one run per worker, and none per closure.
//
// A value without I/O or locks; not thread-safe.
#ifndef TESSERA_SERVERS_PUSH_LEDGER_H_
#define TESSERA_SERVERS_PUSH_LEDGER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tessera::distribute {

// One run of a function on a worker: an attempt at a closure. `session` is the number of one
// connection of the chief to the worker; each connection has a new number. `run` counts the runs of
// a session from 1.
struct RunKey {
  int worker = 0;
  uint64_t session = 0;
  uint64_t run = 0;

  friend bool operator==(const RunKey&, const RunKey&) = default;
  std::string to_string() const;
};

enum class PushKind : uint8_t { kAssign, kAdd };

struct Push {
  PushKind kind = PushKind::kAdd;
  int variable = 0;
  int shard = 0;
  std::string bytes = {};  // the shard's
};

// One message from the chief to one parameter server. Numbers count from 1.
struct ServerUpdate {
  struct Commit {
    RunKey run = {};
    int num_pushes = 0;  // to this server
  };
  struct Closed {
    int worker = 0;
    uint64_t session = 0;
  };
  uint64_t number = 0;
  std::vector<Commit> commits = {};
  std::vector<Closed> closed = {};
};

class PushLedger {
 public:
  // Keeps a push, the index-th of its run to this server, until the run is committed. A push may be
  // staged again. Cancelled if the push can never count (invariant 2).
  Status stage(const RunKey& run, int index, Push push);

  // Returns the pushes that this update commits, in order. The caller applies all of them. If an
  // earlier update is missing or a push was not staged, changes nothing and returns Internal.
  StatusOr<std::vector<Push>> update(const ServerUpdate& update);

  // For messages, and to tell two ledgers apart.
  std::string to_string() const;

 private:
  struct Worker {
    uint64_t least_session = 0;  // earlier sessions are closed
    RunKey newest;
    bool is_committed = false;  // the newest run
    std::map<int, Push> pushes;
  };

  std::map<int, Worker> workers_;
  uint64_t last_number_ = 0;  // the latest applied update
};

}  // namespace tessera::distribute

#endif  // TESSERA_SERVERS_PUSH_LEDGER_H_
