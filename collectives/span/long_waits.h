// SPDX-License-Identifier: Apache-2.0
//
// LongWaits: tells the coordinator what the devices of this client wait in, once a wait has lasted
// for kLongWait, and ends the runs of the circles that the coordinator finds among the waits of all
// clients (job/coordinator/circles.h). Each client has one.
//
//   a wait has lasted for a second:  note()
//     | its thread reports the long waits of all devices, and waits for a step
//     | takes the step, and reports again
//   no long wait is left: the thread sleeps
//
// Steps are shorter than kLongWait in a healthy job, so that it sends nothing.
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
  // What it needs of the client and its devices.
  class Site {
   public:
    virtual ~Site() = default;
    virtual std::vector<LocalWait> waits() = 0;
    // As the function of that name (device_wait.h).
    virtual bool confirms(const std::vector<DeviceWait>& pairs) = 0;
    // Blocks until this client has read the verdict of the run in which this device has waited,
    // which has ended: the device of this client that the run waited for would else find it open.
    virtual void await_verdict(const DeviceWait& ended) = 0;
    // Ends the run if the device still waits in it, and then calls `next`, in any case, maybe on
    // another thread. `is_held`: the device begins nothing else until release(), which may not
    // come.
    // `named`: what the error names.
    virtual void end(const DeviceWait& wait, const std::vector<DeviceWait>& named, bool is_held,
                     std::function<void()> next) = 0;
    virtual void release(const DeviceWait& wait) = 0;
  };

  // Both must outlive it.
  LongWaits(Coordinator& coordinator, Site& site) : coordinator_(coordinator), site_(site) {}

  // A device of this client has waited for kLongWait, and still does. Does not block.
  void note();
  // Afterwards the site and the coordinator are not used. Waits for a call of the coordinator that
  // is under way. Idempotent.
  void stop();

 private:
  void run();
  // The report that follows the step.
  WaitsReport take(const CircleStep& step);
  void end(const CircleStep& step);

  Coordinator& coordinator_;
  Site& site_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool is_running_ = false;
  bool is_stopping_ = false;
  uint64_t num_notes_ = 0;
  transport::Errands errands_{"the reports of long waits"};
};

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_LONG_WAITS_H_
