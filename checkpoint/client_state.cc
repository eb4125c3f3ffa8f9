// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/client_state.h"

#include <memory>

namespace tessera::checkpoint::internal {

ClientState& ClientState::of(const Client& client) {
  return static_cast<ClientState&>(tessera::internal::background_work_of(
      client, [] { return std::make_unique<ClientState>(); }));
}

}  // namespace tessera::checkpoint::internal
