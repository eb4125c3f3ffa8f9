// SPDX-License-Identifier: Apache-2.0
//
// open_platform: the only code that knows which kinds of devices there are.
#ifndef TESSERA_COLLECTIVES_PLATFORM_OPEN_PLATFORM_H_
#define TESSERA_COLLECTIVES_PLATFORM_OPEN_PLATFORM_H_

#include <memory>

#include "base/status.h"
#include "collectives/platform/platform.h"
#include "device/device.h"

namespace tessera {

// Unimplemented where this build does not have such devices; FailedPrecondition on a machine
// without any.
StatusOr<std::unique_ptr<Platform>> open_platform(DeviceType type, const PlatformOptions& options);

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_PLATFORM_OPEN_PLATFORM_H_
