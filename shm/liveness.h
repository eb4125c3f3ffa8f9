// SPDX-License-Identifier: Apache-2.0
//
// Liveness: which clients of the job can still take part, according to the reports of this client.
//
//   the kernel marks the client's life word   --+
//   its socket hangs up                       --+-->  report_lost()  -->  waiters, the listener
//   the coordinator misses its heartbeats     --+
//
// Invariants:
//   1. a lost client stays lost, with the first reason that was reported;
//   2. the listener is called once for each loss, after the loss can be read here;
//   3. a hang-up after a goodbye is an orderly leaving. It ends operations like a loss, with a text
//      of its own.
//
// Clients of other hosts have no life word: they are lost only by a report.
//
// Thread-safe.
#ifndef TESSERA_SHM_LIVENESS_H_
#define TESSERA_SHM_LIVENESS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "shm/death_watch.h"
#include "shm/host_members.h"

namespace tessera::shm {

class Liveness {
 public:
  // Receives the client that can no longer take part, and the Unavailable that operations get.
  using LostListener = std::function<void(int client, const Status& reason)>;

  // `wake` is called after each loss, before the listener: it wakes the waits for the client.
  Liveness(const HostMembers& members, std::function<void()> wake);

  // Watches the life words of the clients of this host, by client id; null for other clients. Must
  // return before has_died(), is_dead(), is_gone() and find_stopped() are called.
  Status watch(std::vector<LifeWord*> words);
  void stop_watching() { death_watch_.reset(); }

  // Sets the listener. It is called by the thread that notices a loss, and at once for earlier
  // losses. When this returns the previous listener is not running and will not be called again.
  void set_lost_listener(LostListener listener);
  // Reports a loss that was noticed elsewhere (the coordinator's heartbeats), also of this client.
  void report_lost(int client, const Status& reason);
  // The connection to the client is over: it has left, or is lost.
  void hang_up(int client);
  // The client has said goodbye: the hang-up that follows is no loss.
  void note_goodbye(int client);
  // This client leaves the job: hang-ups from now on are no losses.
  void leave();

  // OK while the client takes part; Internal for a number that is no client's.
  Status client_status(int client) const;
  // Members check this after they arrive; a loss is recorded before arrivals are scanned. With
  // seq_cst order at least one of the two sides sees the other.
  bool any_lost() const { return num_lost_.load(std::memory_order_seq_cst) > 0; }
  // Whether the client has said goodbye. Its process may live on, and read memory that was lent to
  // it.
  bool has_left(int client) const;
  // Whether the kernel has marked the client's process dead: the process does not read or write
  // memory any more.
  bool has_died(int client) const;
  // Whether the client is lost, or the kernel has marked it dead and the report is still under way.
  // The mark is visible before any client is told of the death.
  bool is_dead(int client) const { return has_died(client) || !client_status(client).ok(); }
  // Whether the client will not touch shared memory any more: its process has ended, or it has
  // closed its link. False for a client that is lost because it does not answer.
  bool is_gone(int client) const;
  // The loss of a client of this host whose process may still run: it may be stopped, and keep a
  // lock. OK where there is none.
  Status find_stopped() const;

 private:
  struct Client {
    Status status;  // OK, or why it is lost
    bool left = false;
  };

  const HostMembers& members_;
  const std::function<void()> wake_;
  std::vector<LifeWord*> words_;  // written by watch() alone
  std::unique_ptr<DeathWatch> death_watch_;
  std::atomic<int> num_lost_{0};
  // Held while the listener is called, so that it can be removed. Acquired before mutex_ where both
  // are.
  std::mutex listener_mutex_;
  mutable std::mutex mutex_;  // guards the members below
  std::vector<Client> clients_;
  LostListener listener_;
  bool leaving_ = false;
};

}  // namespace tessera::shm

#endif  // TESSERA_SHM_LIVENESS_H_
