// SPDX-License-Identifier: Apache-2.0
//
// make_ucx_engine: the Engine by UCX. It uses TCP on one interface by default, and otherwise the
// transports that the environment's UCX_NET_DEVICES and UCX_TLS allow.
//
// Messages are tagged and sent eagerly. The engine's thread sleeps in poll() on the event
// descriptors of its workers and on an eventfd for submissions.
//
// UCX detects that the process of a peer has ended. It does not detect that a peer is stopped, or
// that the network has failed with data under way. See transport/engine.h.
#ifndef TESSERA_TRANSPORT_UCX_UCX_ENGINE_H_
#define TESSERA_TRANSPORT_UCX_UCX_ENGINE_H_

#include <memory>
#include <string>

#include "base/status.h"
#include "base/wait_policy.h"
#include "job/coordinator/coordinator.h"
#include "transport/engine.h"

namespace tessera::ucx {

struct UcxOptions {
  // The network interface of this client, such as "eth0"; empty: UCX chooses.
  std::string interface;
  // How the engine's thread waits before it sleeps.
  WaitPolicy wait_policy;
};

// `coordinator` must outlive the engine. ResourceExhausted: no thread or no descriptor. UCX itself
// is loaded by the first connect().
StatusOr<std::unique_ptr<transport::Engine>> make_ucx_engine(Coordinator& coordinator,
                                                             UcxOptions options);

}  // namespace tessera::ucx

#endif  // TESSERA_TRANSPORT_UCX_UCX_ENGINE_H_
