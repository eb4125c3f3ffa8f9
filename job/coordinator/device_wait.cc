// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/device_wait.h"

#include <cstddef>

namespace tessera {

bool confirms(const std::vector<DeviceWait>& pairs,
              absl::FunctionRef<std::optional<RunId>(int device)> run_of,
              absl::FunctionRef<bool(int device, const RunId& run)> has_arrived) {
  for (size_t k = 0; k + 1 < pairs.size(); k += 2) {
    const RunId& before = pairs[k].run;
    const DeviceWait& own = pairs[k + 1];
    if (run_of(own.device) != own.run) return false;
    if (has_arrived(own.device, before)) return false;
  }
  return true;
}

}  // namespace tessera
