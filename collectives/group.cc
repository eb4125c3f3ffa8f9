// SPDX-License-Identifier: Apache-2.0
#include "collectives/group.h"

namespace tessera {

Work Group::start(GroupBackend::Fill fill) const {
  return backend_->start(position_, [&](CollectiveCall& call) {
    fill(call);
    validate(call, size(), position_);
  });
}

Work Group::barrier() const {
  return start([](CollectiveCall&) {});
}

}  // namespace tessera
