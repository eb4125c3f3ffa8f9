// SPDX-License-Identifier: Apache-2.0
//
// connect_many: a coordinator and many clients with real connections on one machine. The service is
// a process of its own. The clients are threads of a few processes, each with its own connection.
//
//   connect_many({.num_clients = 1000, .num_processes = 4})                 their calls alone
//   connect_many({.num_clients = 64, .num_processes = 4, .num_hosts = 8})   clients of dtensor
//
// Without hosts a client makes only the coordinator's calls of create_mesh and of a barrier. With
// hosts it is a tessera::Client of one device, which calls create_mesh() and Mesh::barrier(). Their
// cost then includes the first barrier, which connects the clients to each other. All hosts are on
// one machine and use its loopback interface.
//
// A round is one call of all clients, and begins when the round before has ended. Its time is from
// the last return of the round before to its own last return. The calling process must not have
// used gRPC, because connect_many forks.
#ifndef TESSERA_BENCHMARKS_COORDINATOR_CONNECTIONS_H_
#define TESSERA_BENCHMARKS_COORDINATOR_CONNECTIONS_H_

#include "base/status.h"

namespace tessera::benchmarks {

struct ManyClients {
  int num_clients = 1000;
  int num_processes = 4;
  int num_hosts = 0;   // 0: no clients of dtensor
  int num_relays = 0;  // shared by the processes; 0: each client connects to the service
};

struct ConnectionTimes {
  double connect_seconds = 0;  // until all clients know all members
  // The first create_mesh and the first barrier.
  double first_mesh_seconds = 0;
  double first_barrier_seconds = 0;
  double barrier_seconds = 0;      // median of the later rounds
  double create_mesh_seconds = 0;  // median of the later rounds
  double leave_seconds = 0;
  long service_kib = 0;       // memory of the service with all connected
  long service_peak_kib = 0;  // at its peak
  long clients_kib = 0;       // of the processes of all clients
  long most_descriptors = 0;  // open files of a process of clients, with all connected
};

// Returns the first error of a client or of the service. The deadline is 10 minutes.
StatusOr<ConnectionTimes> connect_many(const ManyClients& clients);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_COORDINATOR_CONNECTIONS_H_
