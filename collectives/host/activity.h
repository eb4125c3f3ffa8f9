// SPDX-License-Identifier: Apache-2.0
//
// Reading and writing DeviceActivity: what the stream of a device is doing, for everybody to see.
#ifndef TESSERA_COLLECTIVES_HOST_ACTIVITY_H_
#define TESSERA_COLLECTIVES_HOST_ACTIVITY_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "collectives/host/control.h"

namespace tessera::host {

struct ActivitySnapshot {
  uint64_t kind = DeviceActivity::kNothing;
  uint64_t since_ns = 0;
  uint64_t leader_client = 0;
  uint64_t block_offset = 0;
  uint32_t seq = 0;
  uint64_t name_hash = 0;
  std::string label;
  // False where the writer was in the middle of writing, for long or for ever (it died): then the
  // fields need not belong together, and are good for a message alone.
  bool consistent = false;

  // "last seen at all_reduce ..., 31 s ago", "still in local_map for 2 s", "has not run anything".
  std::string to_string() const;
};

// One writer a slot: the device's stream.
void write_activity(DeviceActivity& slot, const ActivitySnapshot& snapshot);
// The state of the slot, from any client. Does not wait for a writer that is held up.
ActivitySnapshot read_activity(const DeviceActivity& slot);
// The slot of a device in its client's control region.
DeviceActivity& activity_slot(std::byte* control, int ordinal);

uint64_t monotonic_ns();

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_ACTIVITY_H_
