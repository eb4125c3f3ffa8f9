// SPDX-License-Identifier: Apache-2.0
//
// LongWaits: reports to the coordinator the calls in which devices of this client wait, once a wait
// has lasted for kLongWait. It ends the runs of the circles that the coordinator finds among the
// waits of all clients (job/coordinator/circles.h). Each client has one.
//
//   a wait has lasted for a second:  note()
//     | its thread reports the long waits of all devices, and waits for a step
//     | takes the step, and reports again
//   no long wait is left: the thread sleeps
//
// A healthy job sends nothing, because its steps are shorter than kLongWait.
//
// Thread-safe. The functions of the site are called by the thread, without a lock.
#ifndef TESSERA_COLLECTIVES_SPAN_LONG_WAITS_H_
#define TESSERA_COLLECTIVES_SPAN_LONG_WAITS_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "absl/time/time.h"
#include "job/coordinator/coordinator.h"
#include "job/coordinator/device_wait.h"
#include "shm/host_link.h"
#include "transport/errands.h"

namespace tessera::span {

// A device of this client that waits in a run for others, and since when.
struct LocalWait {
  DeviceWait wait;
  absl::Time since;
};

class LongWaits {
 public:
  // The functions that it needs of the client and its devices.
  class Site {
   public:
    virtual ~Site() = default;
    virtual std::vector<LocalWait> waits() = 0;
    // As confirms() of device_wait.h.
    virtual bool confirms(const std::vector<DeviceWait>& pairs) = 0;
    // Blocks until this client has read the verdict of the run in which this device has waited, and
    // which has ended. Otherwise the device of this client for which the run waited would still
    // find it open.
    virtual void await_verdict(const DeviceWait& ended) = 0;
    // Ends the run if the device still waits in it, and then always calls `next`, maybe on another
    // thread. `is_held`: the device begins nothing else until release(), which may never be called.
    // `named`: the waits that the error names.
    virtual void end(const DeviceWait& wait, const std::vector<DeviceWait>& named, bool is_held,
                     std::function<void()> next) = 0;
    virtual void release(const DeviceWait& wait) = 0;
  };

  // Both must outlive it.
  LongWaits(Coordinator& coordinator, Site& site) : coordinator_(coordinator), site_(site) {}

  // Reports that a device of this client has waited for kLongWait, and still waits. Does not block.
  void note();
  // Afterwards the site and the coordinator are not used. Waits for a call of the coordinator that
  // is under way. Idempotent.
  void stop();

 private:
  void run();
  // The report after the step.
  WaitsReport take(const CircleStep& step);
  void end(const CircleStep& step);

  Coordinator& coordinator_;
  Site& site_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool is_running_ = false;
  bool is_stopping_ = false;
  uint64_t num_notes_ = 0;
  transport::Errands errands_{"the reports of long waits"};
};

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_LONG_WAITS_H_
