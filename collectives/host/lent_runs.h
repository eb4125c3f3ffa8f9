// SPDX-License-Identifier: Apache-2.0
//
// LentRuns: runs that are done for this client, while other members may still read their input.
//
//   lend()            on the list: the list owns the run, and with it the input
//     | reap(), where `is_over` says that no member reads the input any more
//   released
//
// Invariants:
//   1. a run is released exactly once, and only after `is_over` was true of it or by clear();
//   1. a run is released exactly once, and only after `is_over` was true for it or by clear();
//
// Thread-safe. reap() and clear() take the runs off the list while they ask `is_over`, without the
// lock: another thread sees such a run by num_lent() alone.
#ifndef TESSERA_COLLECTIVES_HOST_LENT_RUNS_H_
#define TESSERA_COLLECTIVES_HOST_LENT_RUNS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "collectives/host/op_record.h"

namespace tessera::host {

template <class Run>
class LentRuns {
 public:
  using IsOver = absl::FunctionRef<bool(const Run& run)>;

  LentRuns() = default;
  ~LentRuns() {
    clear([](const Run&) { return true; });
  }
  LentRuns(const LentRuns&) = delete;
  LentRuns& operator=(const LentRuns&) = delete;

  // `seq`: the number of the run's operation.
  void lend(std::shared_ptr<Run> run, uint32_t seq) {
    num_lent_.fetch_add(1, std::memory_order_relaxed);
    std::lock_guard<std::mutex> lock(mutex_);
    lent_.push_back({std::move(run), seq});
  }
  // Releases the runs that are over. Returns the number of the oldest run that is not over, 0 where
  // none was found.
  uint32_t reap(IsOver is_over) {
    uint32_t oldest = 0;
    std::vector<Lent> runs = take_all();
    std::erase_if(runs, [&](Lent& lent) {
      if (is_over(*lent.run)) {
        release(lent);
        return true;
      }
      if (oldest == 0 || is_later(oldest, lent.seq)) oldest = lent.seq;
      return false;
    });
    std::lock_guard<std::mutex> lock(mutex_);
    lent_.swap(runs);  // with the memory of the list, also where nothing is left in it
    for (Lent& lent : runs) lent_.push_back(std::move(lent));
    return oldest;
  }
  // Releases all runs, and calls `end` for each before its release.
  void clear(IsOver end) {
    for (Lent& lent : take_all()) {
      end(*lent.run);
      release(lent);
    }
  }
  // Whether reap() may find any run; it may miss a run that another thread lends at this moment.
  bool may_have_any() const { return num_lent_.load(std::memory_order_relaxed) != 0; }
  int num_lent() const { return num_lent_.load(std::memory_order_acquire); }

 private:
  struct Lent {
    std::shared_ptr<Run> run;
    uint32_t seq;
  };
  std::vector<Lent> take_all() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(lent_, {});
  }
  void release(Lent& lent) {
    lent.run.reset();
    num_lent_.fetch_sub(1, std::memory_order_release);
  }

  std::atomic<int> num_lent_{0};
  std::mutex mutex_;        // guards the members below
  std::vector<Lent> lent_;  // without the runs that another thread looks at
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_LENT_RUNS_H_
