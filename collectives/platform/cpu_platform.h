// SPDX-License-Identifier: Apache-2.0
//
// CpuPlatform: devices on the CPU, as many as a client asks for.
#ifndef TESSERA_COLLECTIVES_PLATFORM_CPU_PLATFORM_H_
#define TESSERA_COLLECTIVES_PLATFORM_CPU_PLATFORM_H_

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/host/device_mover.h"
#include "collectives/platform/platform.h"
#include "device/local_device.h"
#include "job/coordinator/coordinator.h"
#include "job/environment/environment.h"

namespace tessera {

class CpuPlatform final : public Platform {
 public:
  int default_num_devices() const override { return 1; }
  Status prepare(const JobEnvironment& /*job*/) override { return absl::OkStatus(); }
  Status join(Coordinator& coordinator, absl::Time deadline) override;
  StatusOr<std::vector<std::unique_ptr<LocalDevice>>> start_devices(const Start& start) override;
  host::MakeDeviceMover make_mover(std::shared_ptr<span::Network> /*network*/) override {
    return nullptr;
  }
  void end() override {}
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_PLATFORM_CPU_PLATFORM_H_
