// SPDX-License-Identifier: Apache-2.0
//
// Completion: a one-shot Status: set once, awaited from any thread.
//
// Invariants:
//   1. done() goes from false to true once, and status() never changes after that;
//   2. the set() that counts does not touch the object any more once a waiter can see that it is
//      done, so that the waiter may destroy it. A thread that may call set() a second time keeps
//      the object alive.
//
// Thread-safe, without a lock. Sixteen bytes: operations have two, buffers one or more.
#ifndef TESSERA_DEVICE_COMPLETION_H_
#define TESSERA_DEVICE_COMPLETION_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "base/status.h"

namespace tessera {

class Completion {
 public:
  Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  // The first call counts; later ones are ignored. Done when any of them returns.
  void set(Status status);
  bool done() const { return (state_.load(std::memory_order_acquire) & kDone) != 0; }
  // The status that was set, OK as long as none was.
  Status status() const;
  // Blocks until set() has been called and returns its status.
  Status wait() const;
  // As wait(), until `deadline`; false where the deadline passed first.
  bool wait_until(absl::Time deadline) const;

 private:
  // Bits of state_.
  static constexpr uint32_t kClaimed = 1;  // a thread writes status_
  static constexpr uint32_t kDone = 2;
  static constexpr uint32_t kSleepers = 4;  // a thread sleeps, or will at once

  bool park_until(absl::Time deadline) const;

  mutable std::atomic<uint32_t> state_{0};
  Status status_;  // written once, between kClaimed and kDone
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_COMPLETION_H_
