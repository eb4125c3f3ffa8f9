// SPDX-License-Identifier: Apache-2.0
#include "collectives/platform/cpu_platform.h"

#include "absl/strings/str_cat.h"
#include "device/cpu/cpu_device.h"
#include "device/device.h"

namespace tessera {

Status CpuPlatform::join(Coordinator& coordinator, absl::Time /*deadline*/) {
  return check_device_types(coordinator.members());
}

StatusOr<std::vector<std::unique_ptr<LocalDevice>>> CpuPlatform::start_devices(const Start& start) {
  std::vector<std::unique_ptr<LocalDevice>> devices;
  for (const Device& device : start.devices) {
    TESSERA_ASSIGN_OR_RETURN(
        devices.emplace_back(),
        CpuDevice::create(
            absl::StrCat("device ", device.id, " (number ", device.ordinal + 1, " of ",
                         start.devices.size(), " of client ", device.client_id, ")"),
            start.link.own_control().observer(device.ordinal), start.pool));
  }
  return devices;
}

}  // namespace tessera
