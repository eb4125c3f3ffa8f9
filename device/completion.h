// SPDX-License-Identifier: Apache-2.0
//
// Completion: a Status that somebody will set once, and others wait for.
//
// Invariant: done() goes from false to true once, and status() never changes after that.
// Thread-safe. Waiting takes a lock; asking an already done Completion does not.
#ifndef TESSERA_DEVICE_COMPLETION_H_
#define TESSERA_DEVICE_COMPLETION_H_

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"
#include "base/status.h"

namespace tessera {

class Completion {
 public:
  Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  // The first call counts; later ones are ignored.
  void set(Status status);
  bool done() const { return done_.load(std::memory_order_acquire); }
  // The status that was set, OK as long as none was.
  Status status() const;
  // Blocks until set() has been called and returns its status.
  Status wait() const;
  // The same until `deadline`; false where it came first.
  bool wait_until(absl::Time deadline) const;

 private:
  std::atomic<bool> done_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Status status_;  // written once, under mutex_, before done_
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_COMPLETION_H_
