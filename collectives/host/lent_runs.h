// SPDX-License-Identifier: Apache-2.0
//
// LentRuns: runs that are done for this client, and whose input other members may still read.
//
//   lend()            on the list: the list owns the run, and with it the input
//     | reap(), where `is_over` says that no member reads the input any more
//   released
//
// Invariants:
//   1. a run is released exactly once, and only after `is_over` was true of it or by clear();
//   2. num_lent() counts a run from before lend() returns until after it is released.
//
// Thread-safe. reap() and clear() take the runs off the list while they ask `is_over`, without the
// lock: another thread sees such a run by num_lent() alone.
#ifndef TESSERA_COLLECTIVES_HOST_LENT_RUNS_H_
#define TESSERA_COLLECTIVES_HOST_LENT_RUNS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/functional/function_ref.h"

namespace tessera::host {

class LentRuns {
 public:
  // A run that can be lent.
  class Lendable {
   protected:
    ~Lendable() = default;
  };
  using IsOver = absl::FunctionRef<bool(const Lendable& run)>;

  LentRuns() = default;
  ~LentRuns() {
    clear([](const Lendable&) { return true; });
  }
  LentRuns(const LentRuns&) = delete;
  LentRuns& operator=(const LentRuns&) = delete;

  // `seq`: the number of the run's operation.
  void lend(std::shared_ptr<Lendable> run, uint32_t seq);
  // Releases the runs that are over. Returns the number of the oldest run that is not over, 0 where
  // none was found.
  uint32_t reap(IsOver is_over);
  // Releases all, and calls `end` for each before that.
  void clear(IsOver end);
  // Whether reap() may find any; a run that another thread lends just now may be missed.
  bool may_have_any() const { return num_lent_.load(std::memory_order_relaxed) != 0; }
  int num_lent() const { return num_lent_.load(std::memory_order_acquire); }

 private:
  struct Lent {
    std::shared_ptr<Lendable> run;
    uint32_t seq;
  };
  std::vector<Lent> take_all();
  void release(Lent& lent);

  std::atomic<int> num_lent_{0};
  std::mutex mutex_;        // guards what follows
  std::vector<Lent> lent_;  // without the runs that another thread looks at
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_LENT_RUNS_H_
