// SPDX-License-Identifier: Apache-2.0
//
// make_mpi_engine: the Engine by a communicator of MPI.
//
// Messages go in packets of up to 256 KiB (transport/packet_connections.h). One thread,
// the engine's, makes all calls of MPI. MPI has nothing to sleep on, so the thread polls: it
// yields, then sleeps for 20 us between polls, up to 500 us after a while without a message.
//
// MPI does not report that a peer has ended: the coordinator's losses and deadlines decide. A
// request with a peer that has stopped or ended may stay in MPI; the packet owns its memory, and is
// kept until MPI_Finalize(). Many implementations of MPI end all their processes when one is lost;
// that is a setting of their launcher (docs/internals/between_hosts.md).
#ifndef TESSERA_TRANSPORT_MPI_MPI_ENGINE_H_
#define TESSERA_TRANSPORT_MPI_MPI_ENGINE_H_

#include <memory>

#include "base/status.h"
#include "job/coordinator/coordinator.h"
#include "transport/engine.h"
#include "transport/mpi/calls.h"

namespace tessera::mpi {

// `coordinator` must outlive the engine. Errors as of make_threaded_engine().
StatusOr<std::unique_ptr<transport::Engine>> make_mpi_engine(Coordinator& coordinator,
                                                             std::shared_ptr<Calls> calls);

}  // namespace tessera::mpi

#endif  // TESSERA_TRANSPORT_MPI_MPI_ENGINE_H_
