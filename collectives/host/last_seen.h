// SPDX-License-Identifier: Apache-2.0
//
// What the clients of a host see of the devices of each other, in their control regions. Another
// process may be writing what is read here: all of it is compared with what there can be.
//
// Thread-safe.
#ifndef TESSERA_COLLECTIVES_HOST_LAST_SEEN_H_
#define TESSERA_COLLECTIVES_HOST_LAST_SEEN_H_

#include <cstdint>
#include <vector>

#include "collectives/host/activity.h"
#include "collectives/host/group_table.h"
#include "collectives/host/host_link.h"

namespace tessera::host {

// The activity of a device of a client of this host, with the default label if it wrote none.
ActivitySnapshot last_seen(const HostLink& link, int client, int ordinal);
// The devices of the group that an activity names; empty where that is not there any more.
std::vector<int32_t> devices_in(const HostLink& link, const Activity& activity);
// The device of any client. Devices are numbered by client.
GroupMember device_of_id(const HostLink& link, int device_id);

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_LAST_SEEN_H_
