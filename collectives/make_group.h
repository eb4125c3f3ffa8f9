// SPDX-License-Identifier: Apache-2.0
//
// make_group(): the Group of one member of a back end's group. Internal: programs get groups from
// Client::group().
#ifndef TESSERA_COLLECTIVES_MAKE_GROUP_H_
#define TESSERA_COLLECTIVES_MAKE_GROUP_H_

#include <memory>
#include <utility>

#include "collectives/collective.h"
#include "collectives/group.h"
#include "collectives/group_backend.h"

namespace tessera::internal {

inline Group make_group(std::shared_ptr<GroupBackend> backend, int position,
                        ReductionOrder order = ReductionOrder::kByHost) {
  return Group(std::make_shared<const GroupMember>(std::move(backend), position, order));
}

}  // namespace tessera::internal

#endif  // TESSERA_COLLECTIVES_MAKE_GROUP_H_
