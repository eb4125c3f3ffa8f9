// SPDX-License-Identifier: Apache-2.0
#include "collectives/group.h"

namespace tessera {

Work Group::start(CollectiveCall&& call) const {
  validate(call, size(), position_);
  return backend_->start(position_, std::move(call));
}

Work Group::barrier() const { return start(CollectiveCall{}); }

}  // namespace tessera
