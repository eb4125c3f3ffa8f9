// SPDX-License-Identifier: Apache-2.0
//
// connect_many: a coordinator and many clients over real connections of one machine: the service in
// a process of its own, the clients as threads of few processes, each with its own connection.
//
//   TESSERA_ASSIGN_OR_RETURN(ConnectionTimes times, connect_many(1000, 4));
//
// A round is one check-in of all clients, begun when the one before has ended; its time is from the
// last return of the round before to its own last return. The process that calls it must not have
// used gRPC, because it forks.
#ifndef TESSERA_BENCHMARKS_COORDINATOR_CONNECTIONS_H_
#define TESSERA_BENCHMARKS_COORDINATOR_CONNECTIONS_H_

#include "base/status.h"

namespace tessera::benchmarks {

struct ConnectionTimes {
  double connect_seconds = 0;      // until all clients know all members
  double barrier_seconds = 0;      // median of the rounds
  double create_mesh_seconds = 0;  // the same, of check-ins with the value that create_mesh has
  double leave_seconds = 0;
  long service_kib = 0;       // memory of the service with all connected
  long service_peak_kib = 0;  // at its peak
  long clients_kib = 0;       // of the processes of all clients
};

// The first error of a client, or of the service. Deadline: 5 minutes.
StatusOr<ConnectionTimes> connect_many(int num_clients, int num_processes);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_COORDINATOR_CONNECTIONS_H_
