// SPDX-License-Identifier: Apache-2.0
//
// start_operation(): starts any operation of a Group, for tests that pass arguments which the typed
// functions of Group do not take: a label, a detail, Buffers, a reduction of boxes.
#ifndef TESSERA_COLLECTIVES_TESTING_START_OPERATION_H_
#define TESSERA_COLLECTIVES_TESTING_START_OPERATION_H_

#include <utility>

#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/group.h"
#include "collectives/group_backend.h"
#include "collectives/make_group.h"
#include "collectives/memory.h"
#include "collectives/work.h"

namespace tessera::internal {

// Starts an operation as the group's member. Not for messages.
inline Work start_operation(const Group& group, const CollectiveSpec& spec,
                            const CallMemory& memory, Arguments arguments = {}) {
  return GroupAccess::member(group).start(spec, memory, std::move(arguments));
}

}  // namespace tessera::internal

#endif  // TESSERA_COLLECTIVES_TESTING_START_OPERATION_H_
