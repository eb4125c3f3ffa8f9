// SPDX-License-Identifier: Apache-2.0
//
// Links: the connections of a client to clients of other hosts, as the runs of its groups see them.
// A connection that breaks while both clients live is made again.
//
//   up --the engine reports it broken--> down --connect()--> up
//                                         |
//                                         +--the client is lost: stays down
//
//   run.num_breaks = links.num_breaks();             a run begins
//   links.are_up({2, 3})                             it may send
//   links.find_broken({2, 3}, run.num_breaks)        why it cannot go on
//
// The engine of each end reports the break, and both ends connect again, until they have met.
//
// Invariants:
//   1. A run that was under way when one of its connections broke fails, even if the connection is
//      up again: letters and blocks of the run may be lost. A run that begins later waits until the
//      connection is up.
//   2. Such a run fails when the connection is up again, or kLossLimit after it broke. Until then
//      the coordinator may report that a client is lost, which is the reason of the failure then.
//
// Thread-safe. The thread that connects starts at the first break.
#ifndef TESSERA_TRANSPORT_LINKS_H_
#define TESSERA_TRANSPORT_LINKS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "transport/engine.h"
#include "transport/errands.h"

namespace tessera::transport {

class Links {
 public:
  // How long to wait, after a connection broke, for the coordinator to say which client is lost.
  static constexpr absl::Duration kLossLimit = absl::Seconds(2);

  // Receives changes of the connections. Called without a lock.
  class Site {
   public:
    // Whether the client is lost; then no attempt is made.
    virtual bool is_lost(int client) = 0;
    // The connection has broken: letters and blocks that it has brought of runs that have not begun
    // here are void. `number` is the number of the break; a run that began before it has a smaller
    // num_breaks. Called by the engine's callbacks; must not block.
    virtual void connection_broke(int client, uint64_t number) = 0;
    // The connection is made again: first for the letters, and then for runs, which may send on it.
    virtual void reopen_letters(int client) = 0;
    virtual void connection_is_up(int client) = 0;

   protected:
    ~Site() = default;
  };

  // Engine and site must outlive it. Listens to the engine's losses.
  Links(Engine& engine, Site& site);
  ~Links();
  // Makes no more attempts. Does not wait for an attempt under way; stopping the engine ends it.
  void begin_stop() { connecting_.begin_stop(); }
  void stop() { connecting_.stop(); }

  // How many connections have broken so far.
  uint64_t num_breaks() const { return num_breaks_.load(std::memory_order_acquire); }
  bool are_up(absl::Span<const int> clients) const;
  // Whether a connection of a run that began after so many breaks has broken since, or is down.
  bool have_broken(absl::Span<const int> clients, uint64_t num_breaks) const;
  // The error of a run with these clients that began after so many breaks (invariant 2).
  Status find_broken(absl::Span<const int> clients, uint64_t num_breaks) const;

 private:
  struct Break {
    uint64_t number = 0;  // the first one has 1
    absl::Time since;
    absl::Time up_since = absl::InfinitePast();
    Status reason;
    bool is_down = true;
  };

  // The thread's next work.
  struct Down {
    std::vector<int> clients;  // whose connection is down, and which are not lost
    uint64_t num_breaks;       // when it was looked up
  };

  void note_broken(int client, const Status& reason);
  // Returns when no connection is down that may come up again.
  void connect_again();
  // Whether the connection is up.
  bool try_to_connect(int client);
  Down find_down();

  Engine& engine_;
  Site& site_;
  std::atomic<uint64_t> num_breaks_{0};
  std::atomic<int> num_down_{0};
  mutable std::mutex mutex_;     // guards the members below
  std::map<int, Break> breaks_;  // the last break of each client
  bool is_connecting_ = false;   // connect_again() runs, or is about to
  Errands connecting_{"connections to other hosts"};
};

}  // namespace tessera::transport

#endif  // TESSERA_TRANSPORT_LINKS_H_
