// SPDX-License-Identifier: Apache-2.0
//
// ThreadedEngine: an Engine with one thread, which runs the Connections of a library.
//
//   submissions of any thread ---> queue ---> the engine's thread: start, meet, cut, progress
//   connect(): offer() here, the coordinator's key-value space, meet() with the peer's offer
//
// The thread sleeps in poll() on the descriptors of its Connections and on an eventfd for
// submissions.
// - While other threads are in wait(), one of these does the work, and hands it to the next waiter
//   when its own wait is over.
// - The engine's thread takes over after 1 ms without a waiter (16 ms after a long wait). Traffic
//   stalls until then: waking the thread after each wait would cost as much as the waiters save.
// - The offers of two engines of different libraries do not meet: connect() is InvalidArgument at
//   both.
#ifndef TESSERA_TRANSPORT_THREADED_ENGINE_H_
#define TESSERA_TRANSPORT_THREADED_ENGINE_H_

#include <memory>
#include <string>

#include "base/status.h"
#include "base/wait_policy.h"
#include "job/coordinator/coordinator.h"
#include "transport/connection_states.h"
#include "transport/engine.h"

namespace tessera::transport {

struct EngineSettings {
  std::string name;  // of the library, one word of small letters
  // How the engine's thread waits before it sleeps.
  WaitPolicy wait_policy = {};
};

// `coordinator` must outlive the engine. ResourceExhausted: no thread or no descriptor.
StatusOr<std::unique_ptr<Engine>> make_threaded_engine(Coordinator& coordinator,
                                                       EngineSettings settings,
                                                       const MakeConnections& make_connections);

}  // namespace tessera::transport

#endif  // TESSERA_TRANSPORT_THREADED_ENGINE_H_
