// SPDX-License-Identifier: Apache-2.0
//
// Quarantine: keeps the memory of failed runs that other members may still read or write.
//
//   keep()    the quarantine owns the run, and with it its memory
//     | reap(), where `are_others_done` says that no member accesses the memory any more
//   released
//
// Invariant: a run is released only after `are_others_done` was true for its number, or by clear().
// A run that was kept with Until::kShutdown is released by clear() alone: a device may still work
// on it.
//
// Thread-safe. Runs are destroyed without the lock, since destroying their buffers may run the
// user's code.
#ifndef TESSERA_COLLECTIVES_HOST_QUARANTINE_H_
#define TESSERA_COLLECTIVES_HOST_QUARANTINE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"

namespace tessera::host {

class Quarantine {
 public:
  enum class Until { kOthersAreDone, kShutdown };

  void keep(std::shared_ptr<const void> run, uint32_t seq, Until until) {
    std::lock_guard<std::mutex> lock(mutex_);
    kept_.push_back({std::move(run), seq, until});
    has_any_.store(true, std::memory_order_relaxed);
  }
  void reap(absl::FunctionRef<bool(uint32_t seq)> are_others_done) {
    if (!has_any_.load(std::memory_order_relaxed)) return;
    std::vector<Kept> gone;  // destroyed without the lock
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(kept_, [&](Kept& kept) {
      if (kept.until == Until::kShutdown || !are_others_done(kept.seq)) return false;
      gone.push_back(std::move(kept));
      return true;
    });
    has_any_.store(!kept_.empty(), std::memory_order_relaxed);
  }
  void clear() {
    std::vector<Kept> gone;
    std::lock_guard<std::mutex> lock(mutex_);
    kept_.swap(gone);
    has_any_.store(false, std::memory_order_relaxed);
  }

 private:
  struct Kept {
    std::shared_ptr<const void> run;
    uint32_t seq;
    Until until;
  };

  std::atomic<bool> has_any_{false};  // may be read without the lock
  std::mutex mutex_;                  // guards the members below
  std::vector<Kept> kept_;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_QUARANTINE_H_
