// SPDX-License-Identifier: Apache-2.0
//
// Turns: the order of the operations of one client. Internal to dtensor/.
//
//   TESSERA_ASSIGN_OR_RETURN(const Turn turn, runtime.turns().take());
//   ... give every device its part of the operation ...
//
// Invariants:
//   1. one thread at a time holds a turn, so that two operations are in the same order on every
//      device;
//   2. after close() no operation begins, and every operation that began has reached all of its
//      devices.
//
// Thread-safe.
#ifndef TESSERA_DTENSOR_TURNS_H_
#define TESSERA_DTENSOR_TURNS_H_

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/status.h"
#include "collectives/platform/client_devices.h"

namespace tessera {

// A place in the order. The thread that starts an operation holds it from the first device that
// gets a part of the operation to the last. Meanwhile the thread must not wait for another thread
// or client, nor call a function of the user's.
using Turn = std::unique_lock<std::mutex>;

class Turns {
 public:
  // `devices` must outlive the object.
  Turns(const ClientDevices& devices, int client_id) : devices_(devices), client_id_(client_id) {}

  // The errors of check_open().
  StatusOr<Turn> take();
  // FailedPrecondition after close(), and in a forked child.
  Status check_open() const;
  // Returns whether it was open.
  bool close();
  // Numbers the operations of this client, equal on all clients of an SPMD program.
  uint64_t next_op_number() { return op_number_.fetch_add(1, std::memory_order_relaxed) + 1; }

 private:
  const ClientDevices& devices_;
  const int client_id_;
  std::atomic<bool> open_{true};
  std::atomic<uint64_t> op_number_{0};
  std::mutex mutex_;  // a Turn; taken before the locks of streams, groups and memory
};

}  // namespace tessera

#endif  // TESSERA_DTENSOR_TURNS_H_
