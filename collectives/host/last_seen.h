// SPDX-License-Identifier: Apache-2.0
//
// The activities of the devices of a host, as its clients see them in the control regions. Another
// process may write while this one reads: all values that are read are checked to be possible.
//
// Thread-safe.
#ifndef TESSERA_COLLECTIVES_HOST_LAST_SEEN_H_
#define TESSERA_COLLECTIVES_HOST_LAST_SEEN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/reduce_op.h"
#include "collectives/op_kind.h"
#include "shm/activity.h"
#include "shm/group_table.h"
#include "shm/host_link.h"

namespace tessera::host {

// The code of a collective in an Activity: op:8 | dtype:4 | reduction:4 from the lowest bit.
inline uint16_t activity_code(OpKind op, DType dtype, ReduceOp reduction) {
  return static_cast<uint16_t>(static_cast<uint16_t>(op) | static_cast<uint16_t>(dtype) << 8 |
                               static_cast<uint16_t>(reduction) << 12);
}

// The activity of a device of a client of this host, with the default label if it wrote none.
shm::ActivitySnapshot last_seen(const shm::HostLink& link, int client, int ordinal);
// "last seen at all_reduce ..., 31 s ago", "still in local_map for 2 s", "which has not run any
// operation yet".
std::string describe_last_seen(const shm::ActivitySnapshot& seen);
// The devices of the group that an activity names; empty where the group does not exist any more.
std::vector<int32_t> devices_in(const shm::HostLink& link, const shm::Activity& activity);
// The device of any client. Devices are numbered by client.
shm::GroupMember device_of_id(const shm::HostLink& link, int device_id);

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_LAST_SEEN_H_
