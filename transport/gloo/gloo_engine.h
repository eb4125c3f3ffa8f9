// SPDX-License-Identifier: Apache-2.0
//
// make_gloo_engine: the Engine by Gloo's transport over TCP.
//
// Messages go in packets of up to 256 KiB (transport/packet_connections.h), each client
// with a pair of Gloo's to each other one. Only Gloo's buffers and pairs are used: the collectives
// are ours. For each other client two threads wait for Gloo, which says what it has done to threads
// that wait alone; these wake the thread that has the engine's work.
//
// A program loads libgloo.so.0 at the first connect(), and does not link it.
#ifndef TESSERA_TRANSPORT_GLOO_GLOO_ENGINE_H_
#define TESSERA_TRANSPORT_GLOO_GLOO_ENGINE_H_

#include <memory>
#include <string>

#include "base/status.h"
#include "job/coordinator/coordinator.h"
#include "transport/engine.h"

namespace tessera::gloo {

struct GlooOptions {
  // The network interface of this client, such as "eth0"; empty: that of the host's own name.
  std::string interface;
  std::string library = "libgloo.so.0";  // tests give others
};

// `coordinator` must outlive the engine. Errors as of make_threaded_engine(). Unimplemented: this
// build has no Gloo; what to install. connect() is Unimplemented where the library is missing, and
// InvalidArgument where Gloo cannot use the interface.
StatusOr<std::unique_ptr<network::Engine>> make_gloo_engine(Coordinator& coordinator,
                                                            GlooOptions options);

}  // namespace tessera::gloo

#endif  // TESSERA_TRANSPORT_GLOO_GLOO_ENGINE_H_
