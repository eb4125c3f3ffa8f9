// SPDX-License-Identifier: Apache-2.0
#include "collectives/group.h"

namespace tessera {

Work Group::start(CollectiveCall call) const {
  return backend_->start(position_, validated(std::move(call), device_ids(), position_));
}

Work Group::barrier() const { return start(CollectiveCall{}); }

}  // namespace tessera
