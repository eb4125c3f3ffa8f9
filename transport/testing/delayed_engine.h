// SPDX-License-Identifier: Apache-2.0
//
// make_delayed: wraps an engine and delays its messages by times that a seed decides.
//
// Most messages are sent at once, some up to 2 ms later, and a few up to 20 ms: so messages of
// different tags and clients overtake each other in ways that a quiet network does not show.
//
// Invariant: messages of one client and tag keep their order. All invariants of Engine hold; before
// a cut and a stop the messages that wait are given to the engine, which ends them.
#ifndef TESSERA_TRANSPORT_TESTING_DELAYED_ENGINE_H_
#define TESSERA_TRANSPORT_TESTING_DELAYED_ENGINE_H_

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "transport/engine.h"

namespace tessera::transport {

// Errors as start_thread().
StatusOr<std::unique_ptr<Engine>> make_delayed(std::unique_ptr<Engine> engine, uint32_t seed);

}  // namespace tessera::transport

#endif  // TESSERA_TRANSPORT_TESTING_DELAYED_ENGINE_H_
