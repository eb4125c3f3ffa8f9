// SPDX-License-Identifier: Apache-2.0
#include "collectives/platform/open_platform.h"

#include "collectives/platform/cpu_platform.h"
#include "collectives/platform/gpu_platform.h"

namespace tessera {

StatusOr<std::unique_ptr<Platform>> open_platform(DeviceType type, const PlatformOptions& options) {
  if (type == DeviceType::kCpu) return std::make_unique<CpuPlatform>();
  return GpuPlatform::create(options);
}

}  // namespace tessera
