// SPDX-License-Identifier: Apache-2.0
//
// DeviceWaits: the operations in which devices of a client wait for other devices, as reports of
// long waits list and describe them.
//
//   reports.set_source([&] { return waits.list(); });
//
// The waits are read from outside: a device writes its activity into the control region anyway, and
// nothing else happens in a wait.
// - Devices that wait in one operation (a relayout may have a group for each of them) count as one
//   wait.
// - Where a missing device waits itself, the text also names the devices at the end of that chain.
//   A client that is stuck is thus named by all clients that wait for it, directly or through
//   others.
//
// The thread of WaitReports calls the functions.
#ifndef TESSERA_COLLECTIVES_PLATFORM_DEVICE_WAITS_H_
#define TESSERA_COLLECTIVES_PLATFORM_DEVICE_WAITS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/wait_reports.h"
#include "collectives/host/conflicts.h"
#include "shm/group_table.h"
#include "shm/host_link.h"

namespace tessera {

namespace span {
class Network;
}  // namespace span

class DeviceWaits {
 public:
  // Both must outlive it. `network`: the connections to clients of other hosts; null where there
  // are none.
  DeviceWaits(shm::HostLink& link, span::Network* network);

  std::vector<WaitReports::Wait> list();
  // "client 1 (host-a, pid 7), in user code for 12 s since relayout #6; ...". `silent`: the clients
  // among them that miss heartbeats.
  WaitReports::Missing describe_clients(absl::Span<const int> clients,
                                        absl::Span<const int> silent);

 private:
  struct Awaited {
    shm::GroupMember device;
    bool is_awaited = false;
  };
  // The missing members for which these devices of this client wait in the operation; nothing where
  // none of the devices waits any more.
  std::optional<WaitReports::Missing> describe(const std::string& operation,
                                               absl::Span<const int> ordinals);
  // The devices at the ends of the chains of waits that begin with these, except themselves.
  std::vector<shm::GroupMember> find_ends(absl::Span<const shm::GroupMember> awaited);
  // The members that the operation of this device waits for.
  struct Group {
    std::vector<shm::GroupMember> members;
    std::vector<bool> awaited;
    bool all_arrived = false;
  };
  Group find_awaited(const host::OperationWait& wait);
  // The activities of these devices, by device. Asks the clients of other hosts, and waits briefly
  // for their answers.
  std::map<int, std::string> find_doing(absl::Span<const shm::GroupMember> devices);

  shm::HostLink& link_;
  span::Network* const network_;
  std::vector<shm::GroupMember> local_;  // by ordinal
  std::vector<shm::GroupMember> first_;  // of each client
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_PLATFORM_DEVICE_WAITS_H_
