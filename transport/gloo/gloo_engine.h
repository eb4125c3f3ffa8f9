// SPDX-License-Identifier: Apache-2.0
//
// make_gloo_engine: the Engine by Gloo's transport over TCP.
//
// A client has a pair of Gloo to each other client, on which messages go in packets of up to 256
// KiB (transport/packet_connections.h). The engine uses Gloo's pairs and buffers, not its
// collectives. Gloo reports the end of a transfer only to a thread that waits for it. So each pair
// has two threads, for receives and for sends; they wake the thread that has the engine's work.
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
  // The network interface of this client, such as "eth0"; empty: the interface of the host's own
  // name.
  std::string interface;
  std::string library = "libgloo.so.0";  // tests give others
};

// `coordinator` must outlive the engine. Errors as of make_threaded_engine(). Unimplemented: this
// build has no Gloo; what to install. connect() is Unimplemented where the library is missing, and
// InvalidArgument where Gloo cannot use the interface.
StatusOr<std::unique_ptr<transport::Engine>> make_gloo_engine(Coordinator& coordinator,
                                                              GlooOptions options);

}  // namespace tessera::gloo

#endif  // TESSERA_TRANSPORT_GLOO_GLOO_ENGINE_H_
