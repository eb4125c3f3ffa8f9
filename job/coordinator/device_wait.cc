// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/device_wait.h"

namespace tessera {

bool confirms(const std::vector<DeviceWait>& circle, const DeviceWaitSource& client) {
  for (size_t k = 0; k < circle.size(); ++k) {
    const DeviceWait& wait = circle[k];
    if (!client.is_own(wait.device)) continue;
    const RunId& before = circle[(k + circle.size() - 1) % circle.size()].run;
    if (client.run_of(wait.device) != wait.run) return false;
    if (client.has_arrived(wait.device, before)) return false;
  }
  return true;
}

}  // namespace tessera
