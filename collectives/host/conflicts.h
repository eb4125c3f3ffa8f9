// SPDX-License-Identifier: Apache-2.0
//
// Detects that an operation of a group can never be joined, as far as the clients of this host see:
// members have called different operations, operations of several groups wait for each other in a
// circle, or two barriers of one name are on groups that overlap.
//
// Thread-safe.
#ifndef TESSERA_COLLECTIVES_HOST_CONFLICTS_H_
#define TESSERA_COLLECTIVES_HOST_CONFLICTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/host/group_records.h"
#include "shm/group_table.h"
#include "shm/host_link.h"

namespace tessera::host {

// An operation that a device waits in.
struct OperationWait {
  shm::GroupMember device;
  GroupRecords group;  // the members on this host
  uint32_t seq = 0;
  std::string label;
  absl::Time since;
  uint64_t name_hash = 0;
  size_t waited_for_by = 0;  // in the search: index of the wait that led here
  bool has_arrived = false;

  // The devices on this host that have not arrived.
  std::vector<int> missing() const;
  // The members for which the device waits now. Where some have not arrived, it waits for their
  // arrival. Where all have arrived, it waits until the others finish. Where the record is not
  // free, it waits until the others are done with the operation before. All false where the
  // operation is over.
  struct Awaited {
    std::vector<bool> members;
    bool all_arrived = false;
  };
  Awaited awaited() const;
  // Settles the operation, if it is still open.
  void end(const Status& error) const;
};

// The operation in which a device of any client waits, as far as clients of this host see it.
// Nothing where the device waits in no operation of a group, or is on another host.
std::optional<OperationWait> wait_of(shm::HostLink& link, const shm::GroupMember& device);
// As wait_of(), also where the operation has begun to move bytes, or still waits for its record.
std::optional<OperationWait> operation_of(shm::HostLink& link, const shm::GroupMember& device);

// Settles this operation, at which `op`'s member has arrived, and operations of other groups, if
// they wait for each other as far as the clients of this host see.
void check_conflicts(const GroupRecords& group, const MemberOp& op);
// Finds another barrier of the same name whose group overlaps with this group.
std::optional<OperationWait> find_same_name(const GroupRecords& group, const MemberOp& op);
// As describe_missing(), for the operation of any group in which the member's device waits; empty
// if it waits in none.
std::string describe_wait(const GroupRecords& group, int member);

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_CONFLICTS_H_
