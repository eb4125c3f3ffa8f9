// SPDX-License-Identifier: Apache-2.0
//
// OwnControl: the control region of this client (control.h), which its peers map too. The client
// publishes there the activities of its devices and its waiting threads.
//
// Each slot has one writer at a time (activity.h); otherwise immutable once made.
#ifndef TESSERA_SHM_OWN_CONTROL_H_
#define TESSERA_SHM_OWN_CONTROL_H_

#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "device/cpu/arena.h"
#include "device/stream.h"
#include "shm/control.h"
#include "shm/death_watch.h"

namespace tessera::shm {

class OwnControl {
 public:
  static StatusOr<OwnControl> create(int num_devices);

  std::byte* data() const { return region_.data(); }
  int fd() const { return region_.fd(); }
  LifeWord& life() const { return reinterpret_cast<ControlHeader*>(data())->life; }

  // Publishes the activity of a device of this client. A collective publishes its own, by
  // activity(): its task has no label.
  StreamObserver* observer(int ordinal) const { return observers_[ordinal].get(); }
  DeviceActivity& activity(int ordinal) const { return *activities_[ordinal]; }
  // Publishes that a thread of this client waits in a call that no device executes, or that no
  // thread waits any more. Called by one thread at a time.
  void publish_call(absl::string_view operation, bool is_waiting) const;

 private:
  OwnControl(SharedMapping region, int num_devices);

  SharedMapping region_;
  std::vector<DeviceActivity*> activities_;  // of the devices of this client
  std::vector<std::unique_ptr<StreamObserver>> observers_;
};

}  // namespace tessera::shm

#endif  // TESSERA_SHM_OWN_CONTROL_H_
