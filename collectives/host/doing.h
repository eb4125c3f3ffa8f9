// SPDX-License-Identifier: Apache-2.0
//
// The activity of a client of this host, as reports of long waits describe the clients that they
// name.
//
//   describe_doing(link, device)   "in user code for 12 s since relayout #6"
//                                  "in local_map for 2 s", "waiting in create_mesh {x=2} for 5 s"
//                                  "stopped, in user code for 12 s since relayout #6"
//
// Reads the control region of the client, which every client of the host maps, and the state of its
// process. Any thread. Does not block.
#ifndef TESSERA_COLLECTIVES_HOST_DOING_H_
#define TESSERA_COLLECTIVES_HOST_DOING_H_

#include <string>

#include "job/coordinator/coordinator.h"
#include "shm/group_table.h"
#include "shm/host_link.h"

namespace tessera::host {

// The activity of the device and, where it is idle, of its client. Requires that the client is on
// this host.
std::string describe_doing(const shm::HostLink& link, const shm::GroupMember& device);

// "stopped", or "stopped by a debugger", for the process of a client of this host; empty where it
// is neither, or its state is not known.
std::string describe_stop(const MemberInfo& member);

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_DOING_H_
