// SPDX-License-Identifier: Apache-2.0
//
// LossTeller: calls the callback of a client for each lost client, once, on a thread of its own:
// the callback may wait for other clients, and must not prevent this client from counting the
// answers of the service.
//
// Invariants:
//   1. the callback is called in the order in which losses were added, and one call after the
//      other;
//   2. when set_callback() returns, the previous callback does not run any more;
//   3. the first reason of a client counts.
//
// Thread-safe.
#ifndef TESSERA_JOB_COORDINATOR_LOSS_TELLER_H_
#define TESSERA_JOB_COORDINATOR_LOSS_TELLER_H_

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "base/status.h"
#include "base/thread.h"
#include "job/coordinator/coordinator.h"

namespace tessera {

class LossTeller {
 public:
  LossTeller() = default;
  ~LossTeller() { stop(); }
  LossTeller(const LossTeller&) = delete;
  LossTeller& operator=(const LossTeller&) = delete;

  Status start();
  // Stops calling the callback. Idempotent.
  void stop();
  // Sets the callback, and calls it at once for every client that is lost already.
  void set_callback(Coordinator::LostCallback callback);
  void add(int client, const Status& reason);
  bool is_lost(int client);

 private:
  void run();

  // Guards callback_, and is held while it runs: threads that add losses must not acquire it.
  // Acquired before mutex_ where both are.
  std::recursive_mutex callback_mutex_;
  Coordinator::LostCallback callback_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::map<int, Status> lost_;
  std::deque<int> untold_;  // of these, in the order in which they were lost
  bool is_over_ = false;
  Thread thread_;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_LOSS_TELLER_H_
