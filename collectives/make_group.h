// SPDX-License-Identifier: Apache-2.0
//
// make_group(): the Group of one member of a back end's group. GroupAccess: from a Group back to
// the member. Internal: programs get groups from Client::group().
#ifndef TESSERA_COLLECTIVES_MAKE_GROUP_H_
#define TESSERA_COLLECTIVES_MAKE_GROUP_H_

#include <memory>
#include <utility>

#include "collectives/collective.h"
#include "collectives/group.h"
#include "collectives/group_backend.h"

namespace tessera::internal {

struct GroupAccess {
  static Group make(std::shared_ptr<const GroupMember> member) { return Group(std::move(member)); }
  // Requires a group that is not empty.
  static const GroupMember& member(const Group& group) { return *group.member_; }
};

inline Group make_group(std::shared_ptr<GroupBackend> backend, int position,
                        ReductionOrder order = ReductionOrder::kByHost) {
  return GroupAccess::make(
      std::make_shared<const GroupMember>(std::move(backend), position, order));
}

}  // namespace tessera::internal

#endif  // TESSERA_COLLECTIVES_MAKE_GROUP_H_
