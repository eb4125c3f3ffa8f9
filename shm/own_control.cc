// SPDX-License-Identifier: Apache-2.0
#include "shm/own_control.h"

#include <utility>

#include "shm/activity.h"
#include "shm/group_table.h"

namespace tessera::shm {
namespace {

// Writes the activity of a device's stream into its slot of the control region. A task without a
// label belongs to a collective, which writes its activity itself.
class Observer : public StreamObserver {
 public:
  explicit Observer(DeviceActivity& slot) : slot_(slot) {}

  void task_started(absl::string_view label) override {
    if (label.empty()) return;
    Activity activity;
    activity.kind = DeviceActivity::kRunning;
    activity.has_label = true;
    activity.since_ns = monotonic_ns();
    write_activity(slot_, activity, label);
  }
  void task_finished() override { write_kind(slot_, DeviceActivity::kFinished); }

 private:
  DeviceActivity& slot_;
};

}  // namespace

StatusOr<OwnControl> OwnControl::create(int num_devices) {
  TESSERA_ASSIGN_OR_RETURN(SharedMapping region,
                           SharedMapping::create("tessera-control", kControlBytes));
  return OwnControl(std::move(region), num_devices);
}

OwnControl::OwnControl(SharedMapping region, int num_devices) : region_(std::move(region)) {
  auto* header = reinterpret_cast<ControlHeader*>(data());
  header->num_devices = num_devices;
  header->activities_offset = kActivitiesOffset;
  GroupTable::initialize(data(), slots_offset(num_devices));
  header->magic = kControlMagic;
  for (int i = 0; i < num_devices; ++i) {
    activities_.push_back(&activity_slot(data(), i));
    observers_.push_back(std::make_unique<Observer>(*activities_.back()));
  }
}

void OwnControl::publish_call(absl::string_view operation, bool is_waiting) const {
  Activity activity;
  activity.kind = is_waiting ? DeviceActivity::kWaiting : DeviceActivity::kFinished;
  activity.has_label = true;
  activity.since_ns = monotonic_ns();
  write_activity(call_slot(data(), static_cast<int>(activities_.size())), activity, operation);
}

}  // namespace tessera::shm
